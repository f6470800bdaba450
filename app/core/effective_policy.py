"""What is in force for one question: resolved once, before anything runs. The core reads nothing else.

Every special case is a bound on the same choice. A caller's wish, an operator's rule, exploration and a failed upstream
set a minimum k or a maximum k.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.core.artifact import Artifact, PolicyFit, Thresholds
from app.core.available import Answer, Available
from app.core.calibrator import Calibrator
from app.core.policy import Ask, Policy, Reason, Retrieval
from app.errors import NoPassages, UpstreamError

# Why none, few or many passages are read.
_REASONS = (Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN)
# The parts that a search needs.
_SEARCHING = frozenset({"embedder", "vectors"})


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same number of passages, and why."""

    k: int
    why: Reason


@dataclass(frozen=True, slots=True)
class Graded:
    """The paper's policy: thresholds on p0, the probability that the closed-book answer is right, choose k."""

    thresholds: Thresholds
    few: int
    many: int

    def choose(self, p0: float, *, required: bool) -> tuple[int, Reason]:
        """The number of passages. Where passages are required, k=0 becomes `few`; binary knows only `many`."""
        region = self.thresholds.region(p0)
        if not required:
            return (0, self.few, self.many)[region], _REASONS[region]
        binary = self.thresholds.tau0 == self.thresholds.tau1
        return self.many if region == 2 or binary else self.few, Reason.RETRIEVAL_REQUIRED


@dataclass(frozen=True, slots=True)
class Sampled:
    """What chance decides about a question, drawn before anything runs.

    `share` is how likely exploration is. `explore` is None where the policy chooses; else a number in [0, 1) that picks
    one of the permitted k's. `shadow`: ask again at every k later. `solicit`: ask for feedback.
    """

    share: float = 0.0
    explore: float | None = None
    shadow: bool = False
    solicit: bool = False


NOT_SAMPLED = Sampled()


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """Everything that decides about one question."""

    # Ascending, from 0 to the most passages that are ever read.
    ks: tuple[int, ...]
    kind: Fixed | Graded
    # Bounds on k, for the answer that is given.
    minimum: int
    maximum: int
    # Whether that answer must come from passages.
    required: bool = False
    # P(right) of an answer by its own signals, for each k; empty where nothing is calibrated.
    heads: Mapping[int, Calibrator] = field(default_factory=dict)
    # The confidence below which an answer is withheld; None where none is.
    tau: float | None = None
    abstain: bool = True
    # Whether this is exactly the policy that was certified.
    certifiable: bool = False
    version: str | None = None
    # The thresholds in force, for the receipt; None where a fixed k serves instead.
    thresholds: Thresholds | None = None
    # What chance decides; it picks k only where `sampled.explore` says so.
    sampled: Sampled = NOT_SAMPLED
    failure: UpstreamError | NoPassages | None = None

    @property
    def permitted(self) -> tuple[int, ...]:
        """The k's that the caller and the operator allow."""
        return self.ks[1:] if self.required else self.ks

    @property
    def explored(self) -> bool:
        """Whether chance chose k."""
        return self.sampled.explore is not None

    @property
    def search_failed(self) -> bool:
        """Whether passages were wanted and could not be had."""
        failure = self.failure
        return isinstance(failure, NoPassages) or (failure is not None and failure.upstream in _SEARCHING)

    def bounded(self, k: int) -> int:
        """The permitted k that is nearest."""
        return min(max(k, self.minimum), self.maximum)

    def confidence(self, answer: Answer) -> float | None:
        """P(this answer is right); None where nothing is calibrated for its k, or a signal is missing."""
        head = self.heads.get(answer.k)
        return None if head is None else head.predict(answer.signals)

    def may_withhold(self, k: int) -> bool:
        """Whether an answer at k can still be withheld once its confidence is known."""
        return self.abstain and self.tau is not None and k in self.heads


def resolve(
    options: Ask,
    artifact: Artifact | None,
    *,
    ks: tuple[int, ...],
    allow_uncertified: bool = False,
    revoked: bool = False,
    bypassed: bool = False,
    mandatory: bool = False,
    sampled: Sampled = NOT_SAMPLED,
) -> EffectivePolicy:
    """Work out what decides about a question. `artifact` matches what runs; None: nothing is calibrated.

    `mandatory`: a rule of the operator asks for passages, as the caller's `required` does.
    """
    forbidden = options.retrieval is Retrieval.FORBIDDEN or options.policy is Policy.NEVER
    required = not forbidden and (mandatory or options.retrieval is Retrieval.REQUIRED)
    off = forbidden or revoked or bypassed
    fit = None if off else _fit(options, artifact, allow_uncertified=allow_uncertified)
    if forbidden:
        kind: Fixed | Graded = Fixed(0, Reason.RETRIEVAL_FORBIDDEN)
    elif options.policy is Policy.ALWAYS:
        kind = Fixed(ks[-1], Reason.RETRIEVAL_REQUIRED)
    elif artifact is None:
        kind = Fixed(ks[-1], Reason.NOT_CALIBRATED)
    elif fit is None:
        kind = Fixed(artifact.fallback_action, Reason.BYPASSED if bypassed else Reason.NOT_CERTIFIED)
    else:
        kind = _without_needless_probe(Graded(fit.thresholds, artifact.ks[1], artifact.ks[-1]), required=required)
    tau = _tau(artifact, allow_uncertified=allow_uncertified) if artifact is not None and not revoked else None
    # Chance varies only what a probability decides, and never what an operator's rule decides: the log would hold these
    # questions without any chance of k=0, and could not tell them from others.
    explores = isinstance(kind, Graded) and not mandatory
    policy = EffectivePolicy(
        ks=ks,
        kind=kind,
        minimum=ks[1] if required else 0,
        maximum=0 if forbidden else ks[-1],
        required=required,
        heads=artifact.calibrators if artifact is not None else {},
        tau=tau,
        abstain=options.abstain,
        certifiable=not required and _certifiable(options, artifact, fit, tau),
        version=artifact.version if artifact is not None else None,
        thresholds=fit.thresholds if fit is not None else None,
        sampled=sampled if explores else replace(sampled, share=0.0, explore=None),
    )
    if policy.sampled.explore is None:
        return policy
    permitted = policy.permitted
    target = permitted[int(policy.sampled.explore * len(permitted))]
    return replace(policy, minimum=target, maximum=target, certifiable=False)


def _fit(options: Ask, artifact: Artifact | None, *, allow_uncertified: bool) -> PolicyFit | None:
    """The fitted thresholds that may decide, if any."""
    fit = artifact.policies.get(options.policy.value) if artifact is not None else None
    return fit if fit is not None and (fit.certificate is not None or allow_uncertified) else None


def _without_needless_probe(graded: Graded, *, required: bool) -> Fixed | Graded:
    """A fixed k where every probability leads to the same one above 0. K never grows with p, so both ends tell."""
    (most, why), (least, _) = (graded.choose(p, required=required) for p in (0.0, 1.0))
    return Fixed(most, why) if most == least > 0 else graded


def _tau(artifact: Artifact, *, allow_uncertified: bool) -> float | None:
    abstention = artifact.abstention
    return abstention.tau if abstention.certificate is not None or allow_uncertified else None


def _certifiable(options: Ask, artifact: Artifact | None, fit: PolicyFit | None, tau: float | None) -> bool:
    """Exactly the certified policy: its thresholds, the whole collection, and no abstention beyond a certified one."""
    if artifact is None or fit is None:
        return False
    # Abstention is certified for the answers of the graded policy; another policy gives other answers.
    covered = artifact.abstention.certificate is not None and options.policy is Policy.GRADED
    return fit.certificate is not None and not options.filtered and (not options.abstain or tau is None or covered)


def after_failure(policy: EffectivePolicy, available: Available, error: UpstreamError | NoPassages) -> EffectivePolicy:
    """Go on with the answers at hand: lower the maximum to the largest. Raises where none of them may be given.

    One failure can be made up for. After a second nothing is left to try.
    """
    if policy.failure is not None:
        raise error
    failed = replace(policy, failure=error, certifiable=False)
    if failed.search_failed:
        if policy.required:
            if isinstance(error, NoPassages) and policy.abstain:
                # Below the minimum: the search worked, and there is nothing that may be given.
                return replace(failed, maximum=0)
            raise error
        if 0 not in policy.heads:
            # Nothing could say how sure a closed-book answer is.
            raise error
        return _lowered(failed, max(available.answers, default=0))
    given = [k for k in available.answers if k in policy.permitted]
    if not given:
        raise error
    return _lowered(failed, max(given))


def _lowered(policy: EffectivePolicy, maximum: int) -> EffectivePolicy:
    return replace(policy, minimum=min(policy.minimum, maximum), maximum=maximum)
