"""Artifacts for tests: fully certified by default, with numbers that are exact binary fractions.

Every calibrator uses `seq_logprob` from -1 to 0 and returns 1 + seq_logprob: `closed_book(0.75)` gives signals for
which each of them returns exactly 0.75.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.core.artifact import (
    Abstention,
    Artifact,
    Certificate,
    ChatFit,
    ConfidenceMap,
    DataWindow,
    Identity,
    LabelsNeeded,
    LadderFit,
    PolicyFit,
    Thresholds,
)
from app.core.available import state_of
from app.core.calibrator import Calibrator, Curved, Fused, Isotonic
from app.core.cost import Objective
from app.core.heads import Blend, Trees

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
        writing="0011223344556677",
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
    certificate = Certificate(
        epsilon=0.02,
        delta=0.05,
        reference="best_fixed",
        n=800,
        bound=-0.0125,
        spent=0.025,
        labels=800,
        population="world",
    )
    return replace(certificate, **changes)


def a_fit(tau0: float = TAU0, tau1: float = TAU1, **changes: Any) -> PolicyFit:
    """A certified pair of thresholds."""
    fit = PolicyFit(Thresholds(tau0, tau1), objective=Objective.CALLS, certificate=a_certificate())
    return replace(fit, **changes)


def an_uncertified_fit(tau0: float = TAU0, tau1: float = TAU1, **changes: Any) -> PolicyFit:
    """The same thresholds, with too few labels for a certificate."""
    return a_fit(
        tau0,
        tau1,
        certificate=None,
        uncertified_reason="too few labels",
        labels_needed=LabelsNeeded(1700, 900, None),
        **changes,
    )


def an_abstention(tau: float = TAU_ABSTAIN, **changes: Any) -> Abstention:
    """A certified confidence below which answers are withheld."""
    certificate = a_certificate(epsilon=0.2, reference="answered", bound=0.1875)
    return replace(Abstention(tau, risk_target=0.2, certificate=certificate), **changes)


def heads_by_k(calibrators: Mapping[int, Calibrator]) -> dict[str, dict[int, Calibrator]]:
    """Heads for every state of the graded and the fixed policies, by the signals of each answer alone."""
    heads = {k: _of_answer(k, calibrator) for k, calibrator in calibrators.items()}
    states = [(False, (0,)), (True, ()), *((True, ks) for k in heads for ks in {(k,), tuple(sorted({0, k}))})]
    return {state_of(ks, searched=searched): {k: heads[k] for k in ks if k in heads} for searched, ks in states}


def _of_answer(k: int, calibrator: Calibrator) -> Calibrator:
    """The same calibrator, on the evidence of the answer at k."""
    if isinstance(calibrator, Fused | Curved):
        return replace(calibrator, signals=tuple(f"k{k}.{name}" for name in calibrator.signals))
    return replace(calibrator, signal=f"k{k}.{calibrator.signal}")


def an_artifact(**changes: Any) -> Artifact:
    """An artifact with every head and certificate, but without a ladder; keyword arguments replace fields.

    `calibrators` are the heads of the answers at each k, by that answer's own signals.
    """
    calibrators = changes.pop("calibrators", None) or {k: a_line() for k in changes.get("ks", (0, 1, 5))}
    artifact = Artifact(
        name="demo",
        version="2026-01-31-0a1b2c3d",
        created="2026-01-31T12:00:00Z",
        identity=an_identity(),
        ks=(0, 1, 5),
        heads=heads_by_k(calibrators),
        policies={"graded": a_fit(), "binary": a_fit(TAU_BINARY, TAU_BINARY)},
        abstention=an_abstention(),
        fallback_k=1,
        data_window=DataWindow(rows=2000, groups=1000, source="outcomes.jsonl", first="2026-01-01", last="2026-01-30"),
        quantiles={"k0.seq_logprob": (-1.0, -0.5, 0.0)},
        report={"test": {"accuracy": 0.75}},
    )
    return replace(artifact, **changes)


def a_constant(p: float) -> Blend:
    """A head that predicts the same for every question."""
    return Blend((), (), (), (), (), (), 0.0, Trees(), math.log(p / (1.0 - p)), 0.0, 0.0)


# What each purchase of `a_ladder` is worth, by state. It searches and probes first, keeps the probe above 0.72, and the
# answer from one passage above 0.6.
VALUES = {
    "": {"search": 0.9, "k0": 0.3},
    "k0": {"search": 0.7},
    "search": {"k0": 0.8, "k1": 0.7, "k5": 0.6},
    "search+k0": {"k1": 0.75},
    "search+k0+k1": {"k5": 0.7},
    "search+k1": {"k5": 0.7},
}


def a_ladder(**changes: Any) -> LadderFit:
    """A certified ladder with constant values of buying."""
    fit = LadderFit(
        t=0.1,
        costs={"search": 0.0, "k0": 0.1, "k1": 0.3, "k5": 1.0},
        values={state: {name: a_constant(p) for name, p in each.items()} for state, each in VALUES.items()},
        confidence=ConfidenceMap(),
        objective=Objective.TOKENS,
        certificate=a_certificate(epsilon=0.0, bound=0.03125),
    )
    return replace(fit, **changes)


def a_ladder_artifact(**changes: Any) -> Artifact:
    """An artifact with a ladder, whose probabilities are those of each answer's own signals."""
    lines = {k: _of_answer(k, a_line()) for k in (0, 1, 5)}
    subsets = [(0,), (1,), (5,), (0, 1), (0, 5), (1, 5), (0, 1, 5)]
    heads = {state_of(ks, searched=True): {k: lines[k] for k in ks} for ks in subsets}
    return an_artifact(**({"heads": {"k0": {0: lines[0]}, **heads}, "ladder": a_ladder()} | changes))


def a_chat(**changes: Any) -> ChatFit:
    """A certified one-shot rule with exact costs."""
    costs = {"k0": 0.0, "k1": 0.25, "k5": 1.0}
    fit = ChatFit(t=0.125, costs=costs, objective=Objective.TOKENS, certificate=a_certificate(epsilon=0.0, bound=0.02))
    return replace(fit, **changes)


def a_chat_artifact(**changes: Any) -> Artifact:
    """A ladder artifact with a rule for chat: a probe with probability p predicts k=1 right with .375 + p / 2.

    At its price it adds no passage from about .69 on, five below about .56, and else one.
    """
    artifact = a_ladder_artifact()
    ahead = {0: _of_answer(0, a_line()), 1: _of_answer(0, a_line(0.375, 0.875)), 5: a_constant(0.75)}
    own: dict[str, Any] = {"heads": {**artifact.heads, "search+k0": ahead}, "chat": a_chat()}
    return replace(artifact, **(own | changes))
