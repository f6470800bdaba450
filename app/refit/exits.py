"""P(right) by the first tokens of a probe, a calibrator for each length; for answers that go on after them."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.decision.calibrator import Calibrator
from app.decision.signals import NAMES, PREFIXES, prefixed
from app.errors import DataError
from app.refit.choose import choose_calibrator
from app.refit.fit import Floats, Method, predict_many
from app.refit.pregate import gain_on_base_rate
from app.refit.split import Units, units
from app.refit.table import Outcomes


def fit_exits(
    train: Outcomes, names: Sequence[str], methods: Sequence[Method], say: Callable[[str], None]
) -> tuple[dict[int, Calibrator], dict[int, Floats]]:
    """A calibrator for each length at which the tokens so far tell anything, and its out-of-fold probabilities."""
    calibrators: dict[int, Calibrator] = {}
    foretold: dict[int, Floats] = {}
    silent = []
    for length in PREFIXES:
        seen = [name for name in names if name in {prefixed(each, length) for each in NAMES}]
        rows = np.flatnonzero(goes_on(train.signals[0], length))
        if not seen or not len(rows):
            continue
        longer = train.take(rows)
        grouping = units(longer, salt="order")
        # In hashed order of groups, as for the question alone: see `app.refit.pregate`.
        order = np.argsort(grouping.codes, kind="stable")
        signals = {name: longer.signals[0][name][order] for name in seen}
        ordered = Units(grouping.codes[order], grouping.sizes)
        try:
            chosen = choose_calibrator(signals, longer.correct[0][order], ordered, seen, methods)
        except DataError as error:
            say(f"exit at {length}: left out, {error}")
            continue
        p = np.empty(len(rows))
        p[order] = chosen.out_of_fold
        _, gain = gain_on_base_rate(np.where(np.isfinite(p), p, p[np.isfinite(p)].mean()), longer.correct[0], grouping)
        if gain < 1.0:
            silent.append(str(length))
            continue
        calibrators[length] = chosen.calibrator
        foretold[length] = np.full(len(train), np.nan)
        foretold[length][rows] = p
    if silent:
        say(f"exits at {', '.join(silent)} tokens: left out, on train they tell no more than the base rate")
    return calibrators, foretold


def foretell_exits(exits: Mapping[int, Calibrator], outcomes: Outcomes) -> dict[int, Floats]:
    """P(right) by the first n tokens; NaN where the answer has no more than these."""
    signals = outcomes.signals[0]
    return {
        length: np.where(goes_on(signals, length), predict_many(calibrator, signals, len(outcomes)), np.nan)
        for length, calibrator in exits.items()
    }


def goes_on(signals: Mapping[str, Floats], length: int) -> NDArray[np.bool_]:
    """Which answers have more than so many tokens: where they have not, the prefix is the whole answer."""
    differs = [
        np.isfinite(signals[prefixed(name, length)]) & (signals[prefixed(name, length)] != signals[name])
        for name in NAMES
        if name in signals and prefixed(name, length) in signals
    ]
    rows = len(next(iter(signals.values()), np.empty(0)))
    return np.any(differs, axis=0) if differs else np.zeros(rows, dtype=np.bool_)
