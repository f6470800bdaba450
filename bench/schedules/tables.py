"""Outcome tables as workloads: gates and exits chosen on train and validation, replayed on the test split alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.decision.artifact import Thresholds
from app.decision.calibrator import Calibrator
from app.decision.cost import Costs, Exit, Tariff
from app.decision.signals import NAMES, PREFIXES, prefixed
from app.refit.fit import fit, predict_many
from app.refit.frontier import match
from app.refit.ledger import Ledger, gate_costs, is_fixed
from app.refit.options import Options
from app.refit.refit import refit
from app.refit.split import Train, split, units
from app.refit.table import Outcomes, load
from bench.schedules.readers import PROMPTS, Reader, lengths, step_model
from bench.schedules.workload import Workload

# Of the validation questions that a whole probe would answer, the share that exits may cut at each length.
_LOST_A_LENGTH = 0.01
# After so many tokens, by this calibrator, a probe less likely to be right than this is cut.
_Exit = tuple[int, Calibrator, float]
_CREATED = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Replay:
    """A table's test split as questions, and what is known of its gate without looking at them."""

    name: str
    thresholds: Thresholds
    certified: bool
    k: list[int]
    exit_at: list[int | None]
    exit_k: list[int]
    right: dict[int, list[bool]]
    outcomes: Outcomes
    # What exits caught on validation, for which they were chosen, and on test; None: the table has no prefixes.
    expected: Exit | None
    found: Exit | None
    fallback: int


def replay(name: str, path: Path) -> Replay:
    """Fit a gate on the table; where none is certified, the published matching rule on validation sets a binary one."""
    outcomes = load(path)
    artifact, _ = refit(outcomes, Options(name, _CREATED))
    fitted = artifact.policies["graded"]
    train, validation, test = split(outcomes)
    p0, tuned, held = artifact.calibrators.p0, validation.outcomes, test.outcomes
    p = predict_many(p0, tuned.signals[0], len(tuned))
    tuning = Ledger(Train(tuned), p, units(tuned), gate_costs(tuned, "passage", Tariff()))
    # Without what it may decide before a probe is whole: exits are a schedule's to use or not.
    thresholds, certified = replace(fitted.thresholds, early=None), fitted.certificate is not None
    if not certified or is_fixed(thresholds) is not None:
        thresholds, certified = match(tuning, graded=False, floor=tuning.mean(tuning.fixed(5))), False
    tuned_route = tuning.route(thresholds)
    route = Ledger(test, predict_many(p0, held.signals[0], len(held)), units(held), {}).route(thresholds)
    exits = _exits(train.outcomes, tuned, tuned_route)
    cut = _cut(exits, held)
    return Replay(
        name=name,
        thresholds=thresholds,
        certified=certified,
        k=route.tolist(),
        exit_at=[at or None for at in cut.tolist()],
        # What a probability of nearly zero leads to.
        exit_k=[5 if thresholds.tau1 > 0.0 else 1] * len(held),
        right={k: held.correct[k].tolist() for k in (0, 1, 5)},
        outcomes=held,
        expected=_figures(_cut(exits, tuned), tuned_route, tuned) if exits else None,
        found=_figures(cut, route, held) if exits else None,
        fallback=artifact.fallback_action,
    )


def _exits(train: Outcomes, validation: Outcomes, route: NDArray[np.int8]) -> list[_Exit]:
    """At each length a calibrator of its signals, fitted on train, and the probability below which a probe is cut.

    The probability is the largest that cuts no more than a hundredth of the validation questions that would have been
    answered by their probe.
    """
    found: list[_Exit] = []
    for length in PREFIXES:
        names = tuple(prefixed(name, length) for name in NAMES)
        if not all(name in train.signals[0] for name in names):
            continue
        calibrator = fit("fused", names, train.signals[0], train.correct[0])
        p = predict_many(calibrator, validation.signals[0], len(validation))
        kept = np.sort(p[route == 0])
        if kept.size:
            found.append((length, calibrator, float(kept[int(_LOST_A_LENGTH * kept.size)])))
    return found


def _cut(exits: Sequence[_Exit], outcomes: Outcomes) -> NDArray[np.intp]:
    """After how many tokens each probe is cut; 0: never. One that has ended by then is not cut."""
    at = np.zeros(len(outcomes), dtype=np.intp)
    for length, calibrator, least in exits:
        p = predict_many(calibrator, outcomes.signals[0], len(outcomes))
        at[(at == 0) & (p < least) & (outcomes.completion_tokens[0] > length)] = length
    return at


def _figures(at: NDArray[np.intp], route: NDArray[np.int8], outcomes: Outcomes) -> Exit:
    cut, retrieves = at > 0, route > 0
    spent = at[cut] / outcomes.completion_tokens[0][cut]
    return Exit(
        caught=float(cut[retrieves].mean()),
        spent=float(spent.mean()) if cut.any() else 1.0,
        lost=float(cut[~retrieves].mean()) if (~retrieves).any() else 0.0,
    )


def reader_of(name: str, outcomes: Outcomes, retrieval_ms: float) -> Reader:
    """A table's own reader: a step model by least squares on what each of its generations took.

    The table's milliseconds hold retrieval, which is taken off first; what a batch costs is assumed, as ever.
    """
    rows = [
        (
            outcomes.prompt_tokens[k],
            np.maximum(1.0, outcomes.completion_tokens[k]),
            outcomes.ms[k] - retrieval_ms * (k > 0),
        )
        for k in (0, 1, 5)
    ]
    prompts, answers, took = (np.concatenate(column) for column in zip(*rows, strict=True))
    (per_prompt_token, step), *_ = np.linalg.lstsq(np.column_stack([prompts, answers]), took, rcond=None)
    costs = {k: float(np.mean(ms)) for k, (_, _, ms) in zip((0, 1, 5), rows, strict=True)}
    return Reader(
        name,
        Costs(costs[0], retrieval_ms, costs[1], retrieval_ms, costs[5]),
        skip=0.0,
        steps=step_model(float(step), float(per_prompt_token), budget=512, max_answers=4, memory=4 * 2048),
        tokens={k: float(np.mean(tokens)) for k, (_, tokens, _) in zip((0, 1, 5), rows, strict=True)},
    )


def as_workload(
    found: Replay, reader: Reader, questions: int, rng: np.random.Generator, *, own_tokens: bool
) -> Workload:
    """The test rows over and over, each time in another order; with the table's tokens, or with the reader's."""
    rows = len(found.k)
    order = np.concatenate([rng.permutation(rows) for _ in range(-(-questions // rows))]).tolist()
    n = len(order)
    if own_tokens:
        prompts = {k: found.outcomes.prompt_tokens[k].astype(int).tolist() for k in (0, 1, 5)}
        tokens = {k: np.maximum(1, found.outcomes.completion_tokens[k]).astype(int).tolist() for k in (0, 1, 5)}
        prompts, tokens = ({k: [v[i] for i in order] for k, v in each.items()} for each in (prompts, tokens))
    else:
        prompts = {k: [length] * n for k, length in PROMPTS.items()}
        tokens = {k: lengths(mean, n) for k, mean in reader.tokens.items()}
    return Workload(
        k=[found.k[i] for i in order],
        prompts=prompts,
        tokens=tokens,
        retrieval_ms={1: reader.costs.ret1, 5: reader.costs.ret5},
        exit_at=[found.exit_at[i] for i in order],
        exit_k=[found.exit_k[i] for i in order],
        sent=[0] * n,
        right={k: [right[i] for i in order] for k, right in found.right.items()},
    )
