"""The options of a request, and the reasons for a number of passages: closed sets."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from app.errors import ContradictoryRequest

# The numbers of passages that a question may read, where the settings name no others.
DEFAULT_KS = (0, 1, 5)
ABSTAIN = "abstain"


def action_of(k: int) -> str:
    """The name of reading k passages, in receipts, metrics and the log."""
    return f"k{k}"


def actions_of(ks: Iterable[int]) -> tuple[str, ...]:
    """All actions with these numbers of passages; a closed set, so that it can label a metric."""
    return (*(action_of(k) for k in ks), ABSTAIN)


class Policy(StrEnum):
    """How the number of passages is chosen."""

    LADDER = "ladder"
    GRADED = "graded"
    BINARY = "binary"
    ALWAYS = "always"
    NEVER = "never"


class Retrieval(StrEnum):
    """What the caller allows: the policy's choice, only answers from passages, or no passages."""

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
    OUT_OF_SCOPE = "out_of_scope"
    DEGRADED = "degraded"


_CONTRADICTIONS = frozenset({(Policy.ALWAYS, Retrieval.FORBIDDEN), (Policy.NEVER, Retrieval.REQUIRED)})


@dataclass(frozen=True, slots=True)
class AskOptions:
    """The options of one request. `filtered`: a payload filter restricts the search."""

    policy: Policy = Policy.LADDER
    retrieval: Retrieval = Retrieval.AUTO
    abstain: bool = True
    filtered: bool = False

    def __post_init__(self) -> None:
        if (self.policy, self.retrieval) in _CONTRADICTIONS:
            raise ContradictoryRequest(
                f"policy {self.policy.value!r} contradicts retrieval {self.retrieval.value!r}: drop one of them"
            )
