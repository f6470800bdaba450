"""Everything that decides about one question, resolved once, before any upstream call. The core reads nothing else.

Every special case is a bound on the same choice. A caller's option, an operator's rule, exploration and a failed
upstream call set a minimum k or a maximum k.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.core.artifact import UNREACHABLE, Artifact, PolicyFit, Thresholds
from app.core.available import Answer, Available
from app.core.calibrator import Calibrator
from app.core.policy import AskOptions, Policy, Reason, Retrieval
from app.errors import NoPassages, UpstreamError

# The reasons for no, few and many passages.
_REASONS = (Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN)
# The upstreams that a search needs.
_SEARCHING = frozenset({"embedder", "vectors"})


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same number of passages, and the reason."""

    k: int
    why: Reason


@dataclass(frozen=True, slots=True)
class Graded:
    """The paper's policy: thresholds on p0, the probability that the closed-book answer is right, choose k."""

    thresholds: Thresholds
    few: int
    many: int

    def choose(self, p0: float) -> tuple[int, Reason]:
        """The number of passages, and the reason."""
        region = self.thresholds.region(p0)
        return (0, self.few, self.many)[region], _REASONS[region]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What is drawn at random about a question, before any upstream call.

    `share` is the probability of exploration. `explore` is None if the policy chooses, else a number in [0, 1) that
    picks one of the permitted k's. `shadow`: answer it again at every k later. `solicit`: ask the caller for feedback.
    """

    share: float = 0.0
    explore: float | None = None
    shadow: bool = False
    solicit: bool = False


NOT_SAMPLED = Sampled()


@dataclass(frozen=True, slots=True)
class Failure:
    """An upstream call that failed. It is a bound on k like any other: the answer comes from what is available."""

    error: UpstreamError | NoPassages
    # The largest k whose answer can still be given; None if there is none.
    maximum: int | None

    @property
    def in_search(self) -> bool:
        """Whether the search failed or found nothing."""
        return _in_search(self.error)


def _in_search(error: UpstreamError | NoPassages) -> bool:
    return isinstance(error, NoPassages) or error.upstream in _SEARCHING


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """Everything that decides about one question."""

    # Ascending, from 0 to the largest number of passages.
    ks: tuple[int, ...]
    kind: Fixed | Graded
    # Bounds on k, for the answer that is given. A failure lowers them further.
    minimum: int
    maximum: int
    # Whether that answer must come from passages.
    required: bool = False
    # P(right) of an answer by its own signals, for each k; empty if nothing is calibrated.
    heads: Mapping[int, Calibrator] = field(default_factory=dict)
    # Answers with a lower confidence are withheld; None: no answer is.
    tau: float | None = None
    abstain: bool = True
    # Whether this is exactly the policy that was certified.
    certifiable: bool = False
    version: str | None = None
    # The fitted thresholds, for the receipt; None if a fixed k is read instead.
    thresholds: Thresholds | None = None
    # What was drawn at random; it picks k only if `sampled.explore` is set.
    sampled: Sampled = NOT_SAMPLED
    # Set by `after_failure`; everything else stays as it was resolved.
    failure: Failure | None = None

    @property
    def permitted(self) -> tuple[int, ...]:
        """The k's that the caller and the operator allow."""
        return self.ks[1:] if self.required else self.ks

    @property
    def explored(self) -> bool:
        """Whether k was drawn at random."""
        return self.sampled.explore is not None

    def bounded(self, k: int) -> int | None:
        """The nearest k that can be given; None if a failure leaves none."""
        k = min(max(k, self.minimum), self.maximum)
        if self.failure is None:
            return k
        return None if self.failure.maximum is None else min(k, self.failure.maximum)

    def confidence(self, answer: Answer) -> float | None:
        """P(this answer is right); None if its k is not calibrated, or a signal is missing."""
        head = self.heads.get(answer.k)
        return None if head is None else head.predict(answer.signals)

    def may_withhold(self, k: int) -> bool:
        """Whether an answer at k can still be withheld once its confidence is known."""
        return self.abstain and self.tau is not None and k in self.heads


def resolve(
    options: AskOptions,
    artifact: Artifact | None,
    *,
    ks: tuple[int, ...],
    allow_uncertified: bool = False,
    revoked: bool = False,
    bypassed: bool = False,
    mandatory: bool = False,
    sampled: Sampled = NOT_SAMPLED,
) -> EffectivePolicy:
    """Resolve what decides about a question. `artifact` matches the running system; None: nothing is calibrated.

    `mandatory`: a rule of the operator requires passages, as the caller's `required` does.
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
        kind = Fixed(artifact.fallback_k, Reason.BYPASSED if bypassed else Reason.NOT_CERTIFIED)
    else:
        kind = _graded(fit.thresholds, artifact, required=required)
    tau = _tau(artifact, allow_uncertified=allow_uncertified) if artifact is not None and not revoked else None
    # Explore only questions that a probability decides. Where an operator's rule decides, k=0 could not be drawn, and a
    # refit could not recognise these questions in the log.
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


def _fit(options: AskOptions, artifact: Artifact | None, *, allow_uncertified: bool) -> PolicyFit | None:
    """The fitted thresholds that may decide, if any."""
    fit = artifact.policies.get(options.policy.value) if artifact is not None else None
    return fit if fit is not None and (fit.certificate is not None or allow_uncertified) else None


def _graded(thresholds: Thresholds, artifact: Artifact, *, required: bool) -> Fixed | Graded:
    """The thresholds as a choice of k; a fixed k if every probability leads to the same k above 0.

    If passages are required, no probability reaches tau0. The binary policy has no `few`, and then always reads `many`.
    """
    few, many = artifact.ks[1], artifact.ks[-1]
    if required:
        binary = thresholds.tau0 == thresholds.tau1
        thresholds = Thresholds(UNREACHABLE, UNREACHABLE if binary else thresholds.tau1)
    constant = thresholds.constant
    if constant is None:
        return Graded(thresholds, few, many)
    return Fixed((0, few, many)[constant], Reason.RETRIEVAL_REQUIRED if required else _REASONS[constant])


def _tau(artifact: Artifact, *, allow_uncertified: bool) -> float | None:
    abstention = artifact.abstention
    return abstention.tau if abstention.certificate is not None or allow_uncertified else None


def _certifiable(options: AskOptions, artifact: Artifact | None, fit: PolicyFit | None, tau: float | None) -> bool:
    """Exactly the certified policy: its thresholds, the whole collection, and no abstention beyond a certified one."""
    if artifact is None or fit is None:
        return False
    # Abstention is certified for the answers of the graded policy; another policy gives other answers.
    covered = artifact.abstention.certificate is not None and options.policy is Policy.GRADED
    return fit.certificate is not None and not options.filtered and (not options.abstain or tau is None or covered)


def after_failure(policy: EffectivePolicy, available: Available, error: UpstreamError | NoPassages) -> EffectivePolicy:
    """Continue with what is available: k is at most that of the largest answer. Raises if no answer may be given.

    This handles only the first failure of a question; a second one is raised.
    """
    if policy.failure is not None:
        raise error
    left = {*available.answers}
    if _in_search(error) and 0 in policy.heads:
        # The probe is still possible, and its confidence can be computed.
        left.add(0)
    maximum = max(left & {*policy.permitted}, default=None)
    # Passages are required and the search found none: that is a reason to abstain.
    nothing_to_read = policy.required and policy.abstain and isinstance(error, NoPassages)
    if maximum is None and not nothing_to_read:
        raise error
    return replace(policy, failure=Failure(error, maximum))
