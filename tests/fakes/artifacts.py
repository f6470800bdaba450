"""Artifacts for tests: fully certified by default, with numbers that are exact binary fractions.

Every calibrator uses `seq_logprob` from -1 to 0 and returns 1 + seq_logprob: `closed_book(0.75)` gives signals for
which each of them returns exactly 0.75.
"""

from dataclasses import replace
from typing import Any

from app.core.artifact import (
    Abstention,
    Artifact,
    Certificate,
    DataWindow,
    Identity,
    PolicyFit,
    Thresholds,
)
from app.core.calibrator import Isotonic
from app.core.cost import Objective

TAU0, TAU1, TAU_BINARY, TAU_ABSTAIN = 0.75, 0.5, 0.625, 0.25


def a_line(low: float = 0.0, high: float = 1.0) -> Isotonic:
    """A linear calibrator from `low` at seq_logprob = -1 to `high` at 0."""
    return Isotonic("seq_logprob", x=(-1.0, 0.0), y=(low, high))


def closed_book(p: float) -> dict[str, float]:
    """The signals for which every default calibrator returns p."""
    return {"seq_logprob": p - 1.0}


def an_identity(**changes: Any) -> Identity:
    """The identity that the default artifact was fitted on."""
    identity = Identity(
        reader="fake-reader",
        quantisation="none",
        chat_template="0123456789abcdef",
        prompts="fedcba9876543210",
        max_tokens=24,
        stop=("\n",),
        logprobs="top20",
        embedder="fake-256",
        collection="demo",
        ks=(0, 1, 5),
    )
    return replace(identity, **changes)


def a_certificate(**changes: Any) -> Certificate:
    """A certificate against every fixed action."""
    certificate = Certificate(epsilon=0.02, delta=0.05, reference="best_fixed", n=800, bound=-0.0125)
    return replace(certificate, **changes)


def a_fit(tau0: float = TAU0, tau1: float = TAU1, **changes: Any) -> PolicyFit:
    """A certified pair of thresholds."""
    fit = PolicyFit(Thresholds(tau0, tau1), objective=Objective.CALLS, certificate=a_certificate())
    return replace(fit, **changes)


def an_uncertified_fit(tau0: float = TAU0, tau1: float = TAU1, **changes: Any) -> PolicyFit:
    """The same thresholds, with too few labels for a certificate."""
    return a_fit(tau0, tau1, certificate=None, uncertified_reason="too few labels", labels_needed=1700, **changes)


def an_abstention(tau: float = TAU_ABSTAIN, **changes: Any) -> Abstention:
    """A certified confidence below which answers are withheld."""
    certificate = a_certificate(epsilon=0.2, reference="answered", bound=0.1875)
    return replace(Abstention(tau, risk_target=0.2, certificate=certificate), **changes)


def an_artifact(**changes: Any) -> Artifact:
    """An artifact with every calibrator and certificate; keyword arguments replace fields."""
    artifact = Artifact(
        name="demo",
        version="2026-01-31-0a1b2c3d",
        created="2026-01-31T12:00:00Z",
        identity=an_identity(),
        ks=(0, 1, 5),
        calibrators={k: a_line() for k in (0, 1, 5)},
        policies={"graded": a_fit(), "binary": a_fit(TAU_BINARY, TAU_BINARY)},
        abstention=an_abstention(),
        fallback_k=1,
        data_window=DataWindow(rows=2000, groups=1000, source="outcomes.jsonl", first="2026-01-01", last="2026-01-30"),
        quantiles={"seq_logprob": (-1.0, -0.5, 0.0)},
        report={"test": {"accuracy": 0.75}},
    )
    return replace(artifact, **changes)
