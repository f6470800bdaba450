"""Everything that decides about one question, resolved once, before any upstream call. The core reads nothing else.

Every special case is a bound on the same choice. A caller's option, an operator's rule, exploration and a failed
upstream call set a minimum k or a maximum k.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.core.artifact import UNREACHABLE, Artifact, ChatFit, LadderFit, PolicyFit, Thresholds
from app.core.available import Available
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.heads import Heads
from app.core.policy import AskOptions, Policy, Reason, Retrieval
from app.core.scope import Scope
from app.errors import NoPassages, UpstreamError

# The reasons for no, few and many passages.
REASONS = (Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN)
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
        return (0, self.few, self.many)[region], REASONS[region]


@dataclass(frozen=True, slots=True)
class Ladder:
    """Buys evidence step by step, while it is worth its price t; the artifact's `LadderFit` has the values."""

    t: float


@dataclass(frozen=True, slots=True)
class OneShot:
    """Chat: one search, one probe, then one choice among answers that are not bought; `costs` by name: `k1`."""

    t: float
    costs: Mapping[str, float]


Kind = Fixed | Graded | Ladder | OneShot
# What train fitted and validation tested, by the kind of policy that it serves.
Fit = PolicyFit | LadderFit | ChatFit


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
    kind: Kind
    # Bounds on k, for the answer that is given. A failure lowers them further.
    minimum: int
    maximum: int
    # Whether that answer must come from passages.
    required: bool = False
    # Whether only k is chosen, and the answer is then written to the caller's own request.
    chat: bool = False
    # P(right) of each available answer, by state and k; empty if nothing is calibrated.
    heads: Heads = field(default_factory=dict)
    # The values of purchases and the confidence of what is given, where `kind` is `Ladder`.
    ladder: LadderFit | None = None
    # Whether a question is like those collected; None: not tested.
    scope: Scope | None = None
    stats: CorpusStats = NO_STATS
    # Answers with a lower confidence are withheld; None: no answer is.
    tau: float | None = None
    abstain: bool = True
    # Whether this is exactly the policy that was certified.
    certifiable: bool = False
    # What the certificate of the policy rests on, for the receipt; None if it has none.
    rests_on: str | None = None
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

    def probability(self, available: Available, k: int) -> float | None:
        """P(the available answer at k is right); None if the state is not calibrated, or evidence is missing."""
        head = self.heads.get(available.state, {}).get(k)
        return None if head is None else head.predict(available.evidence)

    def p0(self, available: Available) -> float | None:
        """P(the closed-book answer is right) by its own signals, as `graded` and `binary` use it."""
        head = self.heads.get("k0", {}).get(0)
        return None if head is None else head.predict(available.evidence)

    @property
    def may_search(self) -> bool:
        """Whether the question may be answered from passages."""
        return self.maximum > 0

    def alarm(self, available: Available) -> str | None:
        """What puts the question out of scope; None if nothing does so far."""
        if self.scope is None:
            return None
        return self.scope.alarm(available.evidence, may_search=self.may_search)

    def complete(self, available: Available) -> bool:
        """Whether the evidence that the scope test needs is there."""
        return self.scope is None or self.scope.complete(available.evidence)

    def may_withhold(self, k: int) -> bool:
        """Whether an answer at k can still be withheld once its confidence is known."""
        return self.abstain and self.tau is not None and any(k in heads for heads in self.heads.values())


def resolve(
    options: AskOptions,
    artifact: Artifact | None,
    *,
    ks: tuple[int, ...],
    stats: CorpusStats = NO_STATS,
    allow_uncertified: bool = False,
    revoked: bool = False,
    bypassed: bool = False,
    mandatory: bool = False,
    chat: bool = False,
    sampled: Sampled = NOT_SAMPLED,
) -> EffectivePolicy:
    """Resolve what decides about a question. `artifact` matches the running system; None: nothing is calibrated.

    `stats` are the corpus statistics that the artifact names. `mandatory`: a rule of the operator requires passages, as
    the caller's `required` does. `chat`: only k is chosen; to abstain is then to withhold where evidence is missing.
    """
    forbidden = options.retrieval is Retrieval.FORBIDDEN or options.policy is Policy.NEVER
    required = not forbidden and (mandatory or options.retrieval is Retrieval.REQUIRED)
    off = forbidden or revoked or bypassed
    fit = None if off else _fit(options, artifact, allow_uncertified=allow_uncertified, chat=chat)
    if forbidden:
        kind: Kind = Fixed(0, Reason.RETRIEVAL_FORBIDDEN)
    elif options.policy is Policy.ALWAYS:
        kind = Fixed(ks[-1], Reason.RETRIEVAL_REQUIRED)
    elif artifact is None:
        kind = Fixed(ks[-1], Reason.NOT_CALIBRATED)
    elif fit is None:
        kind = Fixed(artifact.fallback_k, Reason.BYPASSED if bypassed else Reason.NOT_CERTIFIED)
    elif isinstance(fit, LadderFit):
        kind = Ladder(fit.t)
    elif isinstance(fit, ChatFit):
        kind = OneShot(fit.t, fit.costs)
    else:
        kind = _graded(fit.thresholds, artifact, required=required)
    # What chat writes has no confidence.
    tau = None if artifact is None or revoked or chat else _tau(artifact, allow_uncertified=allow_uncertified)
    # Explore only questions that a probability decides. Where an operator's rule decides, k=0 could not be drawn, and a
    # refit could not recognise these questions in the log.
    explores = not isinstance(kind, Fixed) and not mandatory
    policy = EffectivePolicy(
        ks=ks,
        kind=kind,
        minimum=ks[1] if required else 0,
        maximum=0 if forbidden else ks[-1],
        required=required,
        chat=chat,
        heads=artifact.heads if artifact is not None else {},
        ladder=fit if isinstance(fit, LadderFit) else None,
        scope=artifact.scope if artifact is not None else None,
        stats=stats,
        tau=tau,
        abstain=options.abstain,
        certifiable=not required and chat == isinstance(fit, ChatFit) and _certifiable(options, artifact, fit, tau),
        rests_on=fit.certificate.rests_on if fit is not None and fit.certificate is not None else None,
        version=artifact.version if artifact is not None else None,
        thresholds=fit.thresholds if isinstance(fit, PolicyFit) else None,
        sampled=sampled if explores else replace(sampled, share=0.0, explore=None),
    )
    if policy.sampled.explore is None:
        return policy
    permitted = policy.permitted
    target = permitted[int(policy.sampled.explore * len(permitted))]
    return replace(policy, minimum=target, maximum=target, certifiable=False)


def _fit(options: AskOptions, artifact: Artifact | None, *, allow_uncertified: bool, chat: bool) -> Fit | None:
    """The fitted policy that may decide, if any; an artifact without a ladder serves `graded` in its place."""
    if artifact is None:
        return None
    fit: Fit | None = artifact.policies.get(options.policy.value)
    if options.policy is Policy.LADDER:
        fit = artifact.chat if chat else artifact.ladder or artifact.policies.get(Policy.GRADED.value)
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
    return Fixed((0, few, many)[constant], Reason.RETRIEVAL_REQUIRED if required else REASONS[constant])


def _tau(artifact: Artifact, *, allow_uncertified: bool) -> float | None:
    abstention = artifact.abstention
    return abstention.tau if abstention.certificate is not None or allow_uncertified else None


def _certifiable(options: AskOptions, artifact: Artifact | None, fit: Fit | None, tau: float | None) -> bool:
    """Exactly the certified policy: its numbers, the whole collection, and no abstention beyond a certified one."""
    if artifact is None or fit is None:
        return False
    # Abstention is certified for the answers of the policy that serves by default; another gives other answers.
    covered = artifact.abstention.certificate is not None and fit is (
        artifact.ladder or artifact.policies.get("graded")
    )
    return fit.certificate is not None and not options.filtered and (not options.abstain or tau is None or covered)


def after_failure(policy: EffectivePolicy, available: Available, error: UpstreamError | NoPassages) -> EffectivePolicy:
    """Continue with what is available: k is at most that of the largest answer. Raises if no answer may be given.

    Chat can still be written: from the passages that were found, or without any, also where they are required.
    This handles only the first failure of a question; a second one is raised.
    """
    if policy.failure is not None:
        raise error
    if policy.chat:
        return replace(policy, failure=Failure(error, 0 if available.passages is None else policy.ks[-1]))
    left = {*available.answers}
    if _in_search(error) and policy.heads:
        # The probe is still possible, and its confidence can be computed.
        left.add(0)
    maximum = max(left & {*policy.permitted}, default=None)
    # Passages are required and the search found none: that is a reason to abstain.
    nothing_to_read = policy.required and policy.abstain and isinstance(error, NoPassages)
    if maximum is None and not nothing_to_read:
        raise error
    return replace(policy, failure=Failure(error, maximum))
