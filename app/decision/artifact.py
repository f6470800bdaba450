"""The calibrator artifact: everything learned offline that the gateway needs, and what it was learned on.

Immutable JSON with a checksum over its canonical bytes. A calibrator tells the truth only about what it was
fitted on, so the artifact carries an identity, and one that does not match what runs decides nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from app.decision.calibrator import Calibrator
from app.decision.foresight import Foresight
from app.decision.signals import PREFIXES

SCHEMA = 1
# A threshold that no probability reaches: isotonic curves do reach 1.
UNREACHABLE = 2.0
# What a policy may decide by.
MEANS = ("whole probes", "early exit", "pre-gate", "pre-gate + early exit")


@dataclass(frozen=True, slots=True)
class Early:
    """Thresholds that spare a probe, or the rest of one.

    By the question alone, a p0 below `unasked` means no probe; then a p1 of at least `compact` reads one passage, else
    five are read. By a probe's first n tokens, once the answer is known to go on, a p0 below the tau of n in `exits`
    cuts the probe short and reads `exit_k` passages.
    """

    unasked: float = 0.0
    compact: float = 0.0
    exits: tuple[tuple[int, float], ...] = ()
    exit_k: int = 5

    def __post_init__(self) -> None:
        taus = (self.unasked, self.compact, *(tau for _, tau in self.exits))
        if not all(0.0 <= tau <= UNREACHABLE for tau in taus):
            raise ValueError(f"early thresholds must lie in [0, 2], got {taus}")
        lengths = [length for length, _ in self.exits]
        if lengths != sorted(set(lengths)) or not set(lengths) <= set(PREFIXES) or self.exit_k not in (1, 5):
            raise ValueError(f"exits need ascending lengths among {PREFIXES} and read 1 or 5, got {self}")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """p >= tau0 answers closed-book, tau1 <= p < tau0 reads one passage, p < tau1 reads five.

    Equal thresholds are the binary policy. Every fixed action is a pair of thresholds too (`ALWAYS_K`). `early`: what
    is decided before a probe is whole, if anything is.
    """

    tau0: float
    tau1: float
    early: Early | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau1 <= self.tau0 <= UNREACHABLE:
            raise ValueError(f"thresholds must satisfy 0 <= tau1 <= tau0 <= 2, got tau1={self.tau1}, tau0={self.tau0}")

    @property
    def constant(self) -> int | None:
        """1 where every probability leads to few passages, 2 where to many; None where a probe decides.

        More confidence never reads more, so both ends tell.
        """
        least, most = self._action(1.0), self._action(0.0)
        return most if least == most > 0 else None

    def _action(self, p: float) -> int:
        return 0 if p >= self.tau0 else 1 if p >= self.tau1 else 2

    @property
    def means(self) -> str:
        """What these decide by, in words."""
        early = self.early
        return MEANS[0] if early is None else MEANS[2 * (early.unasked > 0.0) + bool(early.exits)]


# The fixed actions as thresholds: always none, always few, always many passages.
FIXED = (Thresholds(0.0, 0.0), Thresholds(UNREACHABLE, 0.0), Thresholds(UNREACHABLE, UNREACHABLE))
ALWAYS_K = dict(zip((0, 1, 5), FIXED, strict=True))


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
    objective: str
    certificate: Certificate | None = None
    why_not: str | None = None
    labels_needed: int | None = None
    # Read five passages where one was not convincing, before abstaining; part of what is certified.
    escalate: bool = False


@dataclass(frozen=True, slots=True)
class Abstention:
    """The confidence below which an answer is withheld, with its own certificate or why there is none."""

    tau: float
    risk_target: float
    certificate: Certificate | None = None
    why_not: str | None = None
    labels_needed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau <= UNREACHABLE:
            raise ValueError(f"tau_abstain must lie in [0, 2], got {self.tau}")


@dataclass(frozen=True, slots=True)
class Flow:
    """Which way questions go under a policy: shares of all of them, on the split that certified it."""

    # Not probed, by the passages that they read.
    unasked1: float
    unasked5: float
    # Probed, by what they read in the end; `cut` of them read it after no more than `spent` of the probe's time.
    k0: float
    k1: float
    k5: float
    cut: float = 0.0
    spent: float = 1.0

    def __post_init__(self) -> None:
        ways = (self.unasked1, self.unasked5, self.k0, self.k1, self.k5)
        if min(ways) < 0.0 or abs(sum(ways) - 1.0) > 1e-6:
            raise ValueError(f"the ways that questions go must be shares that add up to one, got {self}")
        if not 0.0 <= self.cut <= self.k1 + self.k5 + 1e-6 or not 0.0 <= self.spent <= 1.0:
            raise ValueError(f"probes that are cut short are those of questions that read, got {self}")


@dataclass(frozen=True, slots=True)
class Variant:
    """The graded policy by other means, each certified by itself.

    Their deltas add up to the one that the operator chose: whichever is in force, that is how likely it falls short.
    """

    fit: PolicyFit
    abstention: Abstention
    flow: Flow


@dataclass(frozen=True, slots=True)
class Calibrators:
    """The probability that an answer is right, by its number of passages; only p0 must be there.

    p_k judges the answer with k passages from the closed-book signals, conf_k from the signals of that answer itself.
    """

    p0: Calibrator
    p1: Calibrator | None = None
    p5: Calibrator | None = None
    conf1: Calibrator | None = None
    conf5: Calibrator | None = None


@dataclass(frozen=True, slots=True)
class Window:
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
    calibrators: Calibrators
    policies: Mapping[str, PolicyFit]
    abstention: Abstention
    # The best fixed number of passages above zero on train: what serves where the policy may not.
    fallback_action: int
    window: Window
    # Mean milliseconds of retrieving and reading k passages on train, for the utility policy.
    cost_ms: Mapping[int, float] = field(default_factory=dict)
    # Deciles of each signal on train, against which drift is measured; of whole probes where the graded policy has some
    # cut short or spared.
    quantiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    # What early thresholds compare: P(right) by the question alone, and by the first tokens of its probe.
    foresight: Foresight | None = None
    exits: Mapping[int, Calibrator] = field(default_factory=dict)
    # The graded policy by each of the means that it was certified with (`Thresholds.means`), its own among them.
    variants: Mapping[str, Variant] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.fallback_action not in (1, 5):
            raise ValueError(f"fallback_action must be 1 or 5, got {self.fallback_action}")
        if self.foresight and self.identity and self.foresight.embedder != self.identity.embedder:
            raise ValueError(f"foresight reads {self.foresight.embedder}, the artifact is for {self.identity.embedder}")
        for fit in (*self.policies.values(), *(variant.fit for variant in self.variants.values())):
            early = fit.thresholds.early
            if early is not None and early.unasked > 0.0 and self.foresight is None:
                raise ValueError("thresholds on the question alone need the artifact's foresight")
            if early is not None and not {length for length, _ in early.exits} <= self.exits.keys():
                raise ValueError("every exit needs a calibrator of its length")
        misnamed = [name for name, variant in self.variants.items() if variant.fit.thresholds.means != name]
        if misnamed:
            raise ValueError(f"variants must be named by their means, which these are not: {', '.join(misnamed)}")


def as_json(artifact: Artifact) -> dict[str, Any]:
    """The artifact as JSON holds it. What it does without is left out, so that older ones keep their bytes."""
    body = asdict(artifact)
    for part in ("foresight", "exits", "variants"):
        if not body[part]:
            del body[part]
    for fit in (*body["policies"].values(), *(variant["fit"] for variant in body.get("variants", {}).values())):
        if fit["thresholds"]["early"] is None:
            del fit["thresholds"]["early"]
    return body


def canonical_bytes(artifact: Artifact) -> bytes:
    """One byte string per artifact: sorted keys, no white space, no NaN; what the checksum is taken over."""
    # There and back, so that what JSON spells otherwise is the same before and after: keys become text, 1 is 1.0.
    body = json.loads(json.dumps(as_json(artifact), allow_nan=False), parse_float=_number)
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
