"""What to do with a probability: how many passages to read, and whether to give the answer at all.

A question passes three pure functions. `needs_probe` says whether a closed-book probe can change anything,
`decide` turns the probe's signals into a number of passages, and `settle` withholds an answer whose own
confidence is too low. `without_passages` is what happens when evidence was wanted and could not be had.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from app.decision.artifact import Abstention, Artifact, Early, PolicyFit, Thresholds, Variant
from app.errors import ContradictoryRequest

FULL = 5
COMPACT = 1


class Policy(StrEnum):
    """How the number of passages is chosen."""

    GRADED = "graded"
    BINARY = "binary"
    UTILITY = "utility"
    ALWAYS = "always"
    NEVER = "never"


class Retrieval(StrEnum):
    """What the caller allows: the policy's choice, evidence at any price, or none."""

    AUTO = "auto"
    REQUIRED = "required"
    FORBIDDEN = "forbidden"


class Action(StrEnum):
    """What was done in the end."""

    K0 = "k0"
    K1 = "k1"
    K5 = "k5"
    ABSTAIN = "abstain"


ANSWERED = {0: Action.K0, COMPACT: Action.K1, FULL: Action.K5}


class Reason(StrEnum):
    """Why; a closed set, so that it can label a metric."""

    CONFIDENT = "confident"
    BORDERLINE = "borderline"
    UNCERTAIN = "uncertain"
    FORESEEN = "foreseen"
    HOPELESS = "hopeless"
    RETRIEVAL_REQUIRED = "retrieval_required"
    RETRIEVAL_FORBIDDEN = "retrieval_forbidden"
    NO_SIGNAL = "no_signal"
    NOT_CALIBRATED = "not_calibrated"
    NOT_CERTIFIED = "not_certified"
    RETRIEVAL_FAILED = "retrieval_failed"
    NO_PASSAGES = "no_passages"
    BYPASSED = "bypassed"
    LOW_CONFIDENCE = "low_confidence"
    EXPLORED = "explored"


@dataclass(frozen=True, slots=True)
class Prices:
    """What an operator says things are worth, for the utility policy; inputs, never fitted."""

    right: float = 1.0
    wrong: float = 1.0
    call: float = 0.0
    passage: float = 0.0
    ms: float = 0.0
    abstain: float = 0.0


_CONTRADICTIONS = frozenset({(Policy.ALWAYS, Retrieval.FORBIDDEN), (Policy.NEVER, Retrieval.REQUIRED)})


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks of the policy. `filtered`: a payload filter narrows what can be found."""

    policy: Policy = Policy.GRADED
    retrieval: Retrieval = Retrieval.AUTO
    abstain: bool = True
    filtered: bool = False

    def __post_init__(self) -> None:
        if (self.policy, self.retrieval) in _CONTRADICTIONS:
            raise ContradictoryRequest(
                f"policy {self.policy.value!r} contradicts retrieval {self.retrieval.value!r}: drop one of them"
            )


@dataclass(frozen=True, slots=True)
class Gate:
    """What may decide: the artifact that matches what runs, or None, and what the operator allows of it.

    `variant`: by which of its variants the graded policy decides; None: as the artifact has it.
    """

    artifact: Artifact | None = None
    allow_uncertified: bool = False
    revoked: bool = False
    bypassed: bool = False
    prices: Prices = Prices()
    variant: Variant | None = None

    def by(self, means: str | None) -> "Gate":
        """The same for the graded policy by these means, where the artifact has such a variant."""
        variant = self.artifact.variants.get(means) if self.artifact is not None and means is not None else None
        return self if variant is None else replace(self, variant=variant)

    @property
    def abstention(self) -> Abstention | None:
        """When answers are withheld; None without an artifact."""
        if self.variant is not None:
            return self.variant.abstention
        return self.artifact.abstention if self.artifact is not None else None

    def fit_in_force(self, policy: Policy) -> PolicyFit | None:
        """The fitted thresholds that may serve this policy, if any."""
        if self.artifact is None or self.revoked or self.bypassed:
            return None
        fit = self.artifact.policies.get(policy.value)
        if self.variant is not None and policy is Policy.GRADED:
            fit = self.variant.fit
        if fit is None or (fit.certificate is None and not self.allow_uncertified):
            return None
        return fit

    def tau_abstain(self) -> float | None:
        """The confidence below which an answer is withheld; None where nothing may withhold."""
        abstention = self.abstention
        if abstention is None or self.revoked:
            return None
        return abstention.tau if abstention.certificate is not None or self.allow_uncertified else None


@dataclass(frozen=True, slots=True)
class Decision:
    """How many passages to read, why, and the numbers behind it. `withhold`: abstain without reading."""

    k: int
    reason: Reason
    p0: float | None = None
    thresholds: Thresholds | None = None
    certified: bool = False
    escalate: bool = False
    withhold: bool = False
    # Whether a random action stands in for the decided one, and the chance that each had; None: no chance at work.
    explored: bool = False
    propensities: Mapping[str, float] | None = None


def needs_probe(ask: Ask, gate: Gate) -> bool:
    """Tell whether a closed-book probe can change the outcome; where it cannot, nobody should pay for it."""
    if ask.retrieval is Retrieval.FORBIDDEN or ask.policy is Policy.NEVER:
        return True  # the probe is the answer
    if ask.policy is Policy.ALWAYS or gate.artifact is None:
        return False
    if ask.policy is Policy.UTILITY:
        return not (gate.revoked or gate.bypassed)
    fit = gate.fit_in_force(ask.policy)
    return fit is not None and foregone(fit.thresholds, required=ask.retrieval is Retrieval.REQUIRED) is None


def decide(  # noqa: PLR0911 - a table, read downwards
    ask: Ask, gate: Gate, signals: Mapping[str, float], *, watched: bool = False
) -> Decision:
    """Choose the number of passages. Total: every request gets a decision, and doubt reads more, not less.

    `watched`: the early thresholds, where the policy has any, were applied on the way here and let the probe be.
    """
    artifact = gate.artifact
    p0 = confidence_of(artifact, 0, signals)
    if ask.retrieval is Retrieval.FORBIDDEN or ask.policy is Policy.NEVER:
        return Decision(0, Reason.RETRIEVAL_FORBIDDEN, p0)
    if ask.policy is Policy.ALWAYS:
        return Decision(FULL, Reason.RETRIEVAL_REQUIRED)
    if artifact is None:
        return Decision(FULL, Reason.NOT_CALIBRATED)
    if gate.bypassed:
        return Decision(artifact.fallback_action, Reason.BYPASSED, p0)
    if ask.policy is Policy.UTILITY:
        if gate.revoked:
            return Decision(artifact.fallback_action, Reason.NOT_CERTIFIED, p0)
        return _by_utility(ask, gate, artifact, signals)
    fit = gate.fit_in_force(ask.policy)
    if fit is None:
        return Decision(artifact.fallback_action, Reason.NOT_CERTIFIED, p0)
    required = ask.retrieval is Retrieval.REQUIRED
    if p0 is None and foregone(fit.thresholds, required=required) is None:
        return Decision(FULL, Reason.NO_SIGNAL, thresholds=fit.thresholds)
    k, reason = route(p0 or 0.0, fit.thresholds, required=required)
    return Decision(k, reason, p0, fit.thresholds, certified(ask, gate, fit, watched=watched), fit.escalate)


def route(p0: float, thresholds: Thresholds, *, required: bool = False) -> tuple[int, Reason]:
    """Compare one probability with two thresholds; a probability equal to a threshold has reached it.

    With `required` k=0 is taken away, and tau1 chooses between one passage and five. Where the two thresholds
    are equal there is no k=1 region, and k=5 is all that is left.
    """
    if required:
        compact = thresholds.tau1 <= p0 and thresholds.tau1 < thresholds.tau0
        return (COMPACT if compact else FULL), Reason.RETRIEVAL_REQUIRED
    if p0 >= thresholds.tau0:
        return 0, Reason.CONFIDENT
    if p0 >= thresholds.tau1:
        return COMPACT, Reason.BORDERLINE
    return FULL, Reason.UNCERTAIN


def foregone(thresholds: Thresholds, *, required: bool = False) -> int | None:
    """The number of passages above zero that every probability leads to, if there is one.

    K never grows with p, so both ends tell. The refit job scores its tables by this too.
    """
    most, _ = route(0.0, thresholds, required=required)
    least, _ = route(1.0, thresholds, required=required)
    return most if least == most > 0 else None


def most_passages(ask: Ask, gate: Gate) -> int:
    """The most passages that a question can lead to, as far as that is known before it is probed."""
    if ask.retrieval is Retrieval.FORBIDDEN or ask.policy is Policy.NEVER:
        return 0
    fit = gate.fit_in_force(ask.policy)
    if fit is None:
        return FULL
    most, _ = route(0.0, fit.thresholds, required=ask.retrieval is Retrieval.REQUIRED)
    early = early_in_force(ask, gate)
    return max(most, early.exit_k) if early is not None and early.exits else most


def settle(ask: Ask, gate: Gate, confidence: float | None) -> bool:
    """Tell whether to withhold the answer. A missing confidence never withholds: it was not measured, not low."""
    tau = gate.tau_abstain()
    return ask.abstain and tau is not None and confidence is not None and confidence < tau


def may_withhold(ask: Ask, gate: Gate, k: int) -> bool:
    """Tell whether an answer read from k passages could still be withheld once its confidence is known.

    Where it could, not a word of it may be shown before.
    """
    if not ask.abstain or gate.artifact is None or gate.tau_abstain() is None:
        return False
    fitted = gate.artifact.calibrators
    return (fitted.conf1 if k == COMPACT else fitted.conf5) is not None


class Fallback(StrEnum):
    """What is left to do where passages were wanted and none could be had."""

    ANSWER = "answer"
    ABSTAIN = "abstain"
    REFUSE = "refuse"


def without_passages(ask: Ask, gate: Gate, p0: float | None, *, found_nothing: bool) -> Fallback:
    """Choose what to do without the evidence that was wanted: never a made-up confidence.

    A search that worked and found nothing is knowledge, so under `required` it abstains; one that failed refuses.
    Otherwise the closed-book answer stands if its calibrated probability would have let it pass.
    """
    if ask.retrieval is Retrieval.REQUIRED:
        return Fallback.ABSTAIN if found_nothing and ask.abstain else Fallback.REFUSE
    tau = gate.tau_abstain()
    if p0 is not None and tau is not None and p0 >= tau:
        return Fallback.ANSWER
    return Fallback.ABSTAIN if ask.abstain and p0 is not None else Fallback.REFUSE


def probabilities(artifact: Artifact, signals: Mapping[str, float]) -> tuple[float | None, float | None, float | None]:
    """P(right) of the answer with no, one and five passages, each judged from the closed-book signals."""
    fitted = artifact.calibrators
    return (
        fitted.p0.predict(signals),
        fitted.p1.predict(signals) if fitted.p1 else None,
        fitted.p5.predict(signals) if fitted.p5 else None,
    )


def confidence_of(artifact: Artifact | None, k: int, signals: Mapping[str, float]) -> float | None:
    """P(right) of the answer really given: by its own signals, under the calibrator fitted for that k."""
    if artifact is None:
        return None
    fitted = artifact.calibrators
    calibrator = fitted.p0 if k == 0 else fitted.conf1 if k == COMPACT else fitted.conf5
    return calibrator.predict(signals) if calibrator else None


def utilities(
    p: Mapping[int, float], prices: Prices, cost_ms: Mapping[int, float], *, required: bool, may_abstain: bool
) -> dict[Action, float]:
    """Expected utility of each open action, fewest passages first: a tie reads less, and abstains only last.

    The probe is spent by the time this is asked, so it is in none of them.
    """
    values = {
        ANSWERED[k]: prices.right * p[k]
        - prices.wrong * (1.0 - p[k])
        - prices.call * (k > 0)
        - prices.passage * k
        - prices.ms * cost_ms.get(k, 0.0)
        for k in sorted(p)
        if k > 0 or not required
    }
    if may_abstain:
        values[Action.ABSTAIN] = -prices.abstain
    return values


def _by_utility(ask: Ask, gate: Gate, artifact: Artifact, signals: Mapping[str, float]) -> Decision:
    p0, p1, p5 = probabilities(artifact, signals)
    if p0 is None or p1 is None or p5 is None:
        return Decision(FULL, Reason.NO_SIGNAL, p0)
    values = utilities(
        {0: p0, COMPACT: p1, FULL: p5},
        gate.prices,
        artifact.cost_ms,
        required=ask.retrieval is Retrieval.REQUIRED,
        may_abstain=ask.abstain,
    )
    best = max(values, key=lambda action: values[action])
    if best is Action.ABSTAIN:
        return Decision(0, Reason.LOW_CONFIDENCE, p0, withhold=True)
    k = next(k for k, action in ANSWERED.items() if action is best)
    if ask.retrieval is Retrieval.REQUIRED:
        return Decision(k, Reason.RETRIEVAL_REQUIRED, p0)
    reason = {0: Reason.CONFIDENT, COMPACT: Reason.BORDERLINE, FULL: Reason.UNCERTAIN}[k]
    return Decision(k, reason, p0)


def early_in_force(ask: Ask, gate: Gate) -> Early | None:
    """The thresholds that act before a probe is whole, where the policy's own choice is asked for and has any."""
    if ask.retrieval is not Retrieval.AUTO or ask.policy not in (Policy.GRADED, Policy.BINARY):
        return None
    fit = gate.fit_in_force(ask.policy)
    return fit.thresholds.early if fit is not None else None


def certified(ask: Ask, gate: Gate, fit: PolicyFit, *, watched: bool) -> bool:
    """Exactly the certified policy: its thresholds, its corpus, and no abstention beyond a certified one."""
    assert gate.abstention is not None
    if fit.thresholds.early is not None and not watched:
        return False
    # Abstention is certified for the answers of the graded policy; under another it would withhold other ones.
    certified_abstention = gate.abstention.certificate is not None and ask.policy is Policy.GRADED
    abstention_covered = not ask.abstain or gate.tau_abstain() is None or certified_abstention
    return fit.certificate is not None and ask.retrieval is Retrieval.AUTO and not ask.filtered and abstention_covered
