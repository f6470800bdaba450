"""The calibrator artifact: everything learned offline that the gateway needs, and what it was learned on.

Immutable JSON with a checksum over its canonical bytes. A calibrator tells the truth only about what it was
fitted on, so the artifact carries an identity, and one that does not match what runs decides nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from app.core.calibrator import Calibrator
from app.core.cost import Objective

SCHEMA = 3
# A threshold that no probability reaches: isotonic curves do reach 1.
UNREACHABLE = 2.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """p >= tau0 answers closed-book, tau1 <= p < tau0 reads few passages, p < tau1 reads many.

    Equal thresholds are the binary policy. Every fixed action is a pair of thresholds too (`FIXED`).
    """

    tau0: float
    tau1: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau1 <= self.tau0 <= UNREACHABLE:
            raise ValueError(f"thresholds must satisfy 0 <= tau1 <= tau0 <= 2, got tau1={self.tau1}, tau0={self.tau0}")

    @property
    def constant(self) -> int | None:
        """1 where every probability leads to few passages, 2 where to many; None where a probe decides.

        More confidence never reads more, so both ends tell.
        """
        least, most = self.region(1.0), self.region(0.0)
        return most if least == most > 0 else None

    def region(self, p: float) -> int:
        """0, 1 or 2: none, few or many passages. A probability equal to a threshold has reached it."""
        return 0 if p >= self.tau0 else 1 if p >= self.tau1 else 2


# The fixed actions as thresholds: always none, always few, always many passages.
FIXED = (Thresholds(0.0, 0.0), Thresholds(UNREACHABLE, 0.0), Thresholds(UNREACHABLE, UNREACHABLE))


@dataclass(frozen=True, slots=True)
class Identity:
    """What a calibrator was fitted on; all of it must equal what runs.

    A reader fills in what it knows of itself and leaves the rest empty.
    """

    reader: str
    quantisation: str
    chat_template: str
    prompts: str
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    logprobs: str = ""
    embedder: str = ""
    collection: str = ""
    ks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CalibratorStatus:
    """Whether a calibrator decides about questions to the default collection; `problem` says why it does not."""

    version: str | None
    certified: bool
    # Whether it was fitted on what runs: else it decides nothing.
    matches: bool
    problem: str
    # Passages read where no gate decides.
    fallback_k: int
    # Found wrong while it served: its fallback action serves instead.
    revoked: bool = False


def mismatches(fitted: Identity, running: Identity) -> list[str]:
    """Name every part in which two identities differ, with both values; empty where they match."""
    return [
        f"{part.name}: fitted on {getattr(fitted, part.name)!r}, running {getattr(running, part.name)!r}"
        for part in fields(Identity)
        if getattr(fitted, part.name) != getattr(running, part.name)
    ]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A finite-sample guarantee: with probability at least 1 - delta, epsilon holds against `reference`.

    For a policy: accuracy is at least the reference's minus epsilon. That -epsilon is the simultaneous guarantee,
    whichever step of the path was selected; `bound` is the pointwise 1 - delta lower bound on the paired difference
    at the selected step. For abstention: the error among answered is at most epsilon, which is the guarantee, and
    `bound` is the pointwise upper bound on it at the selected threshold.
    """

    epsilon: float
    delta: float
    reference: str
    n: int
    bound: float


@dataclass(frozen=True, slots=True)
class PolicyFit:
    """Thresholds chosen for one policy, what they minimise, and the certificate or why there is none."""

    thresholds: Thresholds
    objective: Objective
    certificate: Certificate | None = None
    uncertified_reason: str | None = None
    labels_needed: int | None = None


@dataclass(frozen=True, slots=True)
class Abstention:
    """The confidence below which an answer is withheld, with its own certificate or why there is none."""

    tau: float
    risk_target: float
    certificate: Certificate | None = None
    uncertified_reason: str | None = None
    labels_needed: int | None = None

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


@dataclass(frozen=True, slots=True)
class Artifact:
    """One published calibrator."""

    name: str
    version: str
    created: str
    # None: fitted on a table without an identity, so it can be evaluated but never matches what runs.
    identity: Identity | None
    # The numbers of passages that may be read, from 0 up; the graded policy chooses none, the fewest or the most.
    ks: tuple[int, ...]
    # P(right) of an answer that read k passages, by its own signals; only the closed-book one must be there.
    calibrators: Mapping[int, Calibrator]
    policies: Mapping[str, PolicyFit]
    abstention: Abstention
    # The best fixed number of passages above zero on train: what serves where the policy may not.
    fallback_k: int
    data_window: DataWindow
    # Deciles of each closed-book signal on train, against which drift is measured.
    quantiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.ks[:1] != (0,) or len(self.ks) < 2 or list(self.ks) != sorted(set(self.ks)):
            raise ValueError(f"ks must rise from 0 to at least one number of passages, got {self.ks}")
        if self.fallback_k not in self.ks[1:]:
            raise ValueError(f"fallback_k must be one of {self.ks[1:]}, got {self.fallback_k}")
        if 0 not in self.calibrators or not self.calibrators.keys() <= set(self.ks):
            raise ValueError(f"calibrators are for k=0 and others of {self.ks}, got {sorted(self.calibrators)}")

    @property
    def p0(self) -> Calibrator:
        """The calibrator of closed-book answers, by which policies choose."""
        return self.calibrators[0]

    @property
    def certified(self) -> bool:
        """Whether the graded policy, which serves by default, has a certificate."""
        graded = self.policies.get("graded")
        return graded is not None and graded.certificate is not None


def canonical_bytes(artifact: Artifact) -> bytes:
    """One byte string per artifact: sorted keys, no white space, no NaN; what the checksum is taken over."""
    # There and back, so that what JSON spells otherwise is the same before and after: keys become text, 1 is 1.0.
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
