"""What to do with a probability: how many passages to read, and whether to give the answer at all.

A question passes three pure functions. `needs_probe` says whether a closed-book probe can change anything,
`decide` turns the probe's signals into a number of passages, and `settle` withholds an answer whose own
confidence is too low. `without_passages` is what happens when evidence was wanted and could not be had.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.decision.artifact import Artifact, PolicyFit, Thresholds
from app.errors import ContradictoryRequest

# The numbers of passages that a question may read, where the settings name no others.
DEFAULT_KS = (0, 1, 5)
ABSTAIN = "abstain"


def action_of(k: int) -> str:
    """What was done where an answer was given: the name in receipts, metrics and the log."""
    return f"k{k}"


def actions_of(ks: Iterable[int]) -> tuple[str, ...]:
    """Everything that can be done with these numbers of passages; a closed set, so that it can label a metric."""
    return (*(action_of(k) for k in ks), ABSTAIN)


class Policy(StrEnum):
    """How the number of passages is chosen."""

    GRADED = "graded"
    BINARY = "binary"
    ALWAYS = "always"
    NEVER = "never"


class Retrieval(StrEnum):
    """What the caller allows: the policy's choice, evidence at any price, or none."""

    AUTO = "auto"
    REQUIRED = "required"
    FORBIDDEN = "forbidden"


class Reason(StrEnum):
    """Why; a closed set, so that it can label a metric."""

    CONFIDENT = "confident"
    BORDERLINE = "borderline"
    UNCERTAIN = "uncertain"
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

    `ks`: the numbers of passages that may be read, ascending from 0.
    """

    artifact: Artifact | None = None
    allow_uncertified: bool = False
    revoked: bool = False
    bypassed: bool = False
    ks: tuple[int, ...] = DEFAULT_KS

    @property
    def many(self) -> int:
        """The largest number of passages: what is read in doubt."""
        return self.ks[-1]

    def fit_in_force(self, policy: Policy) -> PolicyFit | None:
        """The fitted thresholds that may serve this policy, if any."""
        if self.artifact is None or self.revoked or self.bypassed:
            return None
        fit = self.artifact.policies.get(policy.value)
        if fit is None or (fit.certificate is None and not self.allow_uncertified):
            return None
        return fit

    def tau_abstain(self) -> float | None:
        """The confidence below which an answer is withheld; None where nothing may withhold."""
        if self.artifact is None or self.revoked:
            return None
        abstention = self.artifact.abstention
        return abstention.tau if abstention.certificate is not None or self.allow_uncertified else None


@dataclass(frozen=True, slots=True)
class Decision:
    """How many passages to read, why, and the numbers behind it."""

    k: int
    reason: Reason
    p0: float | None = None
    thresholds: Thresholds | None = None
    certified: bool = False
    # Whether a random action stands in for the decided one, and the chance that each had; None: no chance at work.
    explored: bool = False
    propensities: Mapping[str, float] | None = None


def needs_probe(ask: Ask, gate: Gate) -> bool:
    """Tell whether a closed-book probe can change the outcome; where it cannot, nobody should pay for it."""
    if ask.retrieval is Retrieval.FORBIDDEN or ask.policy is Policy.NEVER:
        return True  # the probe is the answer
    if ask.policy is Policy.ALWAYS or gate.artifact is None:
        return False
    fit, required = gate.fit_in_force(ask.policy), ask.retrieval is Retrieval.REQUIRED
    return fit is not None and constant_k(fit.thresholds, gate.artifact.ks, required=required) is None


def decide(ask: Ask, gate: Gate, signals: Mapping[str, float]) -> Decision:
    """Choose the number of passages. Total: every request gets a decision, and doubt reads more, not less."""
    artifact = gate.artifact
    p0 = confidence_of(artifact, 0, signals)
    if ask.retrieval is Retrieval.FORBIDDEN or ask.policy is Policy.NEVER:
        return Decision(0, Reason.RETRIEVAL_FORBIDDEN, p0)
    if ask.policy is Policy.ALWAYS:
        return Decision(gate.many, Reason.RETRIEVAL_REQUIRED)
    if artifact is None:
        return Decision(gate.many, Reason.NOT_CALIBRATED)
    fit = gate.fit_in_force(ask.policy)
    if fit is None:
        reason = Reason.BYPASSED if gate.bypassed else Reason.NOT_CERTIFIED
        return Decision(artifact.fallback_action, reason, p0)
    required = ask.retrieval is Retrieval.REQUIRED
    if p0 is None and constant_k(fit.thresholds, artifact.ks, required=required) is None:
        return Decision(gate.many, Reason.NO_SIGNAL, thresholds=fit.thresholds)
    k, reason = route(p0 or 0.0, fit.thresholds, artifact.ks, required=required)
    return Decision(k, reason, p0, fit.thresholds, _certified(ask, gate, fit))


def mandatory_applies(ask: Ask) -> bool:
    """Whether a mandatory rule has a say: not where the caller forbids passages or already asks for all of them."""
    return ask.retrieval is not Retrieval.FORBIDDEN and ask.policy not in (Policy.ALWAYS, Policy.NEVER)


def decide_mandatory(gate: Gate) -> Decision:
    """Decide for a question that a mandatory rule sends to the passages: no probe, the artifact's fallback.

    The largest number of passages where nothing is calibrated. Never certified: the rule is no part of what was.
    """
    return Decision(gate.artifact.fallback_action if gate.artifact else gate.many, Reason.RETRIEVAL_REQUIRED)


def route(p0: float, thresholds: Thresholds, ks: Sequence[int], *, required: bool = False) -> tuple[int, Reason]:
    """Compare one probability with two thresholds; a probability equal to a threshold has reached it.

    With `required` k=0 is taken away, and tau1 chooses between few passages and many. Where the two thresholds are
    equal there is no region for few, and many is all that is left.
    """
    few, many = ks[1], ks[-1]
    if required:
        enough = thresholds.tau1 <= p0 and thresholds.tau1 < thresholds.tau0
        return (few if enough else many), Reason.RETRIEVAL_REQUIRED
    if p0 >= thresholds.tau0:
        return 0, Reason.CONFIDENT
    if p0 >= thresholds.tau1:
        return few, Reason.BORDERLINE
    return many, Reason.UNCERTAIN


def constant_k(thresholds: Thresholds, ks: Sequence[int], *, required: bool = False) -> int | None:
    """The number of passages above zero that every probability leads to, if there is one.

    K never grows with p, so both ends tell.
    """
    most, _ = route(0.0, thresholds, ks, required=required)
    least, _ = route(1.0, thresholds, ks, required=required)
    return most if least == most > 0 else None


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
    return k in gate.artifact.calibrators


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


def confidence_of(artifact: Artifact | None, k: int, signals: Mapping[str, float]) -> float | None:
    """P(right) of the answer really given: by its own signals, under the calibrator fitted for that k."""
    calibrator = artifact.calibrators.get(k) if artifact is not None else None
    return calibrator.predict(signals) if calibrator is not None else None


def _certified(ask: Ask, gate: Gate, fit: PolicyFit) -> bool:
    """Exactly the certified policy: its thresholds, its corpus, and no abstention beyond a certified one."""
    assert gate.artifact is not None
    if fit.certificate is None:
        return False
    # Abstention is certified for the answers of the graded policy; under another it would withhold other ones.
    certified_abstention = gate.artifact.abstention.certificate is not None and ask.policy is Policy.GRADED
    abstention_covered = not ask.abstain or gate.tau_abstain() is None or certified_abstention
    return ask.retrieval is Retrieval.AUTO and not ask.filtered and abstention_covered
