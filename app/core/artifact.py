"""The calibrator artifact: everything learned offline that the gateway needs, and what it was learned on.

Immutable JSON with a checksum over its canonical bytes. Its probabilities hold only for the
system it was fitted on, so the artifact carries an identity. One that does not match the running system is not used.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import log
from typing import Any, Literal

from app.core.calibrator import sigmoid
from app.core.cost import Objective
from app.core.heads import Head, Heads
from app.core.scope import Scope

SCHEMA = 6
# A threshold above every probability: isotonic curves reach 1.
UNREACHABLE = 2.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """p >= tau0 answers closed-book, tau1 <= p < tau0 reads few passages, p < tau1 reads many.

    Equal thresholds are the binary policy. Every fixed action is also a pair of thresholds (`FIXED`).
    """

    tau0: float
    tau1: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau1 <= self.tau0 <= UNREACHABLE:
            raise ValueError(f"thresholds must satisfy 0 <= tau1 <= tau0 <= 2, got tau1={self.tau1}, tau0={self.tau0}")

    @property
    def constant(self) -> int | None:
        """1 if every probability leads to few passages, 2 if to many; None if a probe decides.

        A larger p never reads more, so the regions of p = 0 and p = 1 are enough to know.
        """
        least, most = self.region(1.0), self.region(0.0)
        return most if least == most > 0 else None

    def region(self, p: float) -> int:
        """0, 1 or 2: none, few or many passages. A threshold belongs to the region above it."""
        return 0 if p >= self.tau0 else 1 if p >= self.tau1 else 2


# The fixed actions as thresholds: always none, always few, always many passages.
FIXED = (Thresholds(0.0, 0.0), Thresholds(UNREACHABLE, 0.0), Thresholds(UNREACHABLE, UNREACHABLE))


@dataclass(frozen=True, slots=True)
class Identity:
    """The system that a calibrator was fitted on; every field must equal the running system's.

    A reader fills in its own fields and leaves the rest empty.
    """

    reader: str
    quantisation: str
    chat_template: str
    prompts: str
    # The digest of `prompts.WRITING`.
    writing: str
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    logprobs: str = ""
    embedder: str = ""
    collection: str = ""
    ks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CalibratorStatus:
    """Whether a calibrator decides for the default collection; `problem` says why it does not."""

    version: str | None
    certified: bool
    # Whether it was fitted on the running system; otherwise it is not used.
    matches: bool
    problem: str
    # The fixed k that is read where the policy is not used.
    fallback_k: int
    # Feedback showed that its confidences are too high: `fallback_k` is read instead.
    revoked: bool = False


def mismatches(fitted: Identity, running: Identity) -> list[str]:
    """Every field in which two identities differ, with both values; empty if they match."""
    return [
        f"{part.name}: fitted on {getattr(fitted, part.name)!r}, running {getattr(running, part.name)!r}"
        for part in fields(Identity)
        if getattr(fitted, part.name) != getattr(running, part.name)
    ]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A finite-sample guarantee: with probability at least 1 - delta, epsilon holds against `reference`.

    For a policy: accuracy is at least the reference's minus epsilon. That -epsilon is the simultaneous guarantee,
    whichever step of the path was selected; `bound` is the pointwise lower bound on the paired difference at the
    selected step. For abstention: the error among answered is at most epsilon, which is the guarantee, and `bound` is
    the pointwise upper bound on it at the selected threshold.
    """

    epsilon: float
    # Of all refits of the calibrator together; this one was tested at the level `spent`.
    delta: float
    reference: str
    # What it rests on: the groups that were tested, how many rows of them have labels, and of which questions they are.
    n: int
    bound: float
    spent: float = 0.0
    labels: int = 0
    population: str = ""
    # The number of the refit that made it, among those that share delta.
    refit: int = 1

    @property
    def rests_on(self) -> str:
        """What it rests on, in a few words, for receipts."""
        shown = f"at most {self.epsilon:g} below" if self.epsilon > 0.0 else "above"
        return (
            f"accuracy {shown} {self.reference}: {self.n:,} groups with {self.labels:,} labels; {self.population}; "
            f"refit {self.refit}"
        )


@dataclass(frozen=True, slots=True)
class LabelsNeeded:
    """How many labelled groups a table needs in all, with an interval of 80 %; None: more than any practical number."""

    value: int | None
    low: int
    high: int | None

    @property
    def text(self) -> str:
        """For a sentence: how many, and between which numbers."""
        if self.value is None:
            return f"at least {self.low:,} labelled groups in all"
        upper = "no practical number" if self.high is None else f"{self.high:,}"
        return f"about {self.value:,} labelled groups in all (80 % interval: {self.low:,} to {upper})"


@dataclass(frozen=True, slots=True)
class PolicyFit:
    """Thresholds chosen for one policy, what they minimise, and its certificate, or the reason why it has none."""

    thresholds: Thresholds
    objective: Objective
    certificate: Certificate | None = None
    uncertified_reason: str | None = None
    labels_needed: LabelsNeeded | None = None


@dataclass(frozen=True, slots=True)
class ConfidenceMap:
    """The confidence of an answer that the ladder gives: one more logistic step on its probability."""

    slope: float = 1.0
    intercept: float = 0.0

    def apply(self, p: float) -> float:
        """The confidence shown for an answer with this probability."""
        p = min(1.0 - 1e-9, max(1e-9, p))
        return sigmoid(self.intercept + self.slope * log(p / (1.0 - p)))


@dataclass(frozen=True, slots=True)
class LadderFit:
    """The ladder: buy while the value of buying minus its price is above the best probability at hand."""

    # The price of accuracy: what one always-largest read may cost in probability.
    t: float
    # Mean cost of each purchase over that of always reading the most, by name: `search`, `k0`, `k1`.
    costs: Mapping[str, float]
    # The value of each purchase, by state and name.
    values: Mapping[str, Mapping[str, Head]]
    confidence: ConfidenceMap
    objective: Objective
    # `gain`: more accurate than the references. `save`: cheaper, and at most epsilon less accurate.
    goal: Literal["gain", "save"] = "gain"
    certificate: Certificate | None = None
    uncertified_reason: str | None = None
    labels_needed: LabelsNeeded | None = None


@dataclass(frozen=True, slots=True)
class ChatFit:
    """The one-shot rule of chat: after a search and a probe, the k with the largest P - t c, of answers not yet bought.

    P are the heads of the state `search+k0`. What was tested is the short answer at the chosen k.
    """

    t: float
    # Mean cost of adding k passages to a prompt over that of always reading the most, by name: `k0`, `k1`.
    costs: Mapping[str, float]
    objective: Objective
    goal: Literal["gain", "save"] = "gain"
    certificate: Certificate | None = None
    uncertified_reason: str | None = None
    labels_needed: LabelsNeeded | None = None


@dataclass(frozen=True, slots=True)
class Abstention:
    """The confidence below which an answer is withheld, with its certificate, or the reason why it has none."""

    tau: float
    risk_target: float
    certificate: Certificate | None = None
    uncertified_reason: str | None = None
    labels_needed: LabelsNeeded | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau <= UNREACHABLE:
            raise ValueError(f"tau_abstain must lie in [0, 2], got {self.tau}")


@dataclass(frozen=True, slots=True)
class DataWindow:
    """The data behind an artifact."""

    rows: int
    groups: int
    source: str
    first: str | None = None
    last: str | None = None
    # The number of this refit among those of its folder, by which it divides delta, and a digest of its labels and
    # options: the same once more is no further look at the data.
    refit: int = 1
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One published calibrator."""

    name: str
    version: str
    created: str
    # None: the table had no identity. It can be evaluated, but matches no running system.
    identity: Identity | None
    # The numbers of passages that may be read, ascending from 0; the graded policy chooses 0, the next, or the last.
    ks: tuple[int, ...]
    # P(right) of each available answer, by state and k; in `search+k0` also of answers not yet bought. `k0` uses the
    # signals of the closed-book answer alone.
    heads: Heads
    policies: Mapping[str, PolicyFit]
    abstention: Abstention
    # The one reference above 0, or else the best fixed k above 0 on train: read where the policy may not be used.
    fallback_k: int
    data_window: DataWindow
    ladder: LadderFit | None = None
    chat: ChatFit | None = None
    scope: Scope | None = None
    # Digest of the corpus statistics that evidence is computed with; None: every word is equally rare.
    stats: str | None = None
    # Deciles of each closed-book signal on train: the reference for drift.
    quantiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.ks[:1] != (0,) or len(self.ks) < 2 or list(self.ks) != sorted(set(self.ks)):
            raise ValueError(f"ks must rise from 0 to at least one number of passages, got {self.ks}")
        if self.fallback_k not in self.ks[1:]:
            raise ValueError(f"fallback_k must be one of {self.ks[1:]}, got {self.fallback_k}")
        if 0 not in self.heads.get("k0", {}):
            raise ValueError("heads must have a probability of the closed-book answer in the state k0")
        if self.chat is not None and not {*self.ks} <= {*self.heads.get("search+k0", {})}:
            raise ValueError("chat needs a probability of the answer at every k in the state search+k0")

    @property
    def p0(self) -> Head:
        """The probability of closed-book answers by their own signals, by which `graded` and `binary` choose."""
        return self.heads["k0"][0]

    @property
    def certified(self) -> bool:
        """Whether the policy that serves by default has a certificate: the ladder, or `graded` where there is none."""
        served = self.ladder or self.policies.get("graded")
        return served is not None and served.certificate is not None


def canonical_bytes(artifact: Artifact) -> bytes:
    """The bytes that the checksum covers: sorted keys, no white space, no NaN."""
    # A round trip through JSON first: keys become text, and 1.0 becomes 1, as they are in the file.
    body = json.loads(json.dumps(asdict(artifact), allow_nan=False), parse_float=_number)
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def checksum(artifact: Artifact) -> str:
    """SHA-256 of the canonical bytes, in hex."""
    return hashlib.sha256(canonical_bytes(artifact)).hexdigest()


def content_version(artifact: Artifact) -> str:
    """A version that names the content: the day, and a digest of everything but the version itself."""
    return f"{artifact.created[:10]}-{checksum(replace(artifact, version=''))[:8]}"


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number
