"""Worlds whose truth is known, on the level of outcomes: what is certified there, and whether that is false.

Nearly all of them are at the boundary: the policy loses exactly what the certificate allows, so that every certificate
of it counts as broken. A world is `covered` if the promise is about it. In the others an assumption fails, and the
figure says how often that breaks the promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from app.certify.drift import DriftTest
from app.certify.paired import Differences, walk
from app.certify.plan import spent
from app.core.feedback import Asked
from app.offline.refit.abstain import GivenAnswers
from app.offline.refit.splits import Units

Floats = NDArray[np.float64]
Rng = np.random.Generator

EPSILON = 0.02
DELTA = 0.1
# Of the drift test.
TOLERANCE = REVOKED = 0.05
# Validation groups, where nothing else is said.
GROUPS = 400
# Refits of one table, and how many groups each has.
LOOKS = 6
NIGHTS = tuple(range(300, 1300, 100))
LARGEST_GROUP = 50


@dataclass(frozen=True)
class World:
    """One draw gives whether the promise is broken; at most delta of them may be where the promise covers it."""

    broken: Callable[[Rng], bool]
    covered: bool = True
    delta: float = DELTA


@dataclass(frozen=True)
class Found:
    """How often the promise was broken in a world."""

    runs: int
    broken: int
    delta: float
    covered: bool

    @property
    def share(self) -> float:
        """The share of runs in which it was broken."""
        return self.broken / self.runs

    @property
    def p(self) -> float:
        """The probability of as many broken promises, if each had probability delta."""
        return float(binom.sf(self.broken - 1, self.runs, self.delta))


def simulate(name: str, runs: int, seed: int = 0) -> Found:
    """Draw a world again and again, from other random numbers than any other world."""
    world = WORLDS[name]
    rng = np.random.default_rng([seed, *name.encode()])
    return Found(runs, sum(world.broken(rng) for _ in range(runs)), world.delta, world.covered)


def pairs(rng: Rng, n: int, *, mean: float, differing: float) -> Floats:
    """Differences of -1, 0 and 1 with this mean, of which this share is not 0."""
    chances = ((differing - mean) / 2.0, 1.0 - differing, (differing + mean) / 2.0)
    return rng.choice([-1.0, 0.0, 1.0], n, p=chances)


def certifies(values: Floats, *, delta: float = DELTA) -> bool:
    """Whether validation shows that the policy loses at most epsilon, of groups with one row each."""
    return Differences(values, single=True).above(-EPSILON, delta)


def at_the_boundary(rng: Rng, differing: float) -> bool:
    """The policy loses exactly epsilon, and answers differ in this share of the questions."""
    return certifies(pairs(rng, GROUPS, mean=-EPSILON, differing=differing))


def levels(rng: Rng, gains: Sequence[float], *, by_train: bool) -> bool:
    """A signal has few values, and accepting each has its own gain; a path accepts one more value at each step.

    By train, the path is ordered by what 150 groups show; otherwise by the signal, whatever that is worth.
    """

    def draw(n: int) -> tuple[NDArray[np.intp], Floats]:
        level = rng.integers(0, len(gains), n)
        by_level = np.array([pairs(rng, n, mean=gain, differing=0.3) for gain in gains])
        return level, by_level[level, np.arange(n)]

    order = list(range(len(gains)))
    if by_train:
        level, seen = draw(150)
        order.sort(key=lambda i: -float(seen[level == i].mean()))
    level, values = draw(GROUPS)
    accepted = [order[:number] for number in range(1, len(gains) + 1)]
    path = [{5: Differences(values * np.isin(level, some), single=True)} for some in accepted]
    passed, _ = walk(path, -EPSILON, DELTA)
    return passed > 0 and sum(gains[i] for i in accepted[passed - 1]) / len(gains) <= -EPSILON + 1e-12


def equal_references(rng: Rng) -> bool:
    """Two fixed k's are equally good, and the policy loses exactly epsilon against each."""
    right = {k: rng.random(GROUPS) < 0.7 for k in (1, 5)}
    given = np.where(rng.random(GROUPS) < 0.8, right[5], rng.random(GROUPS) < 0.7) & (
        rng.random(GROUPS) > EPSILON / 0.7
    )
    step = {k: Differences(given.astype(float) - one, single=True) for k, one in right.items()}
    return walk([step], -EPSILON, DELTA)[0] == 1


def sizes(rng: Rng, n: int) -> NDArray[np.intp]:
    """Groups of questions, most of them small, by Zipf's law."""
    every = np.arange(1, LARGEST_GROUP + 1)
    return rng.choice(every, n, p=every**-1.8 / (every**-1.8).sum())


def zipf_groups(rng: Rng, *, per_request: bool) -> bool:
    """The rows of a group mostly agree. Per request, the policy is better for small groups and worse for large ones."""
    size = sizes(rng, GROUPS)
    every = np.arange(1, LARGEST_GROUP + 1)
    mean_size = float((every**-0.8).sum() / (every**-1.8).sum())
    mean = -EPSILON + 0.2 * (1.0 / size - 1.0 / mean_size) if per_request else np.full(GROUPS, -EPSILON)
    values = np.empty(GROUPS)
    for group in range(GROUPS):
        rows = pairs(rng, int(size[group]), mean=float(mean[group]), differing=0.3)
        shared = rng.random(len(rows)) < 0.7
        values[group] = np.where(shared, rows[0], rows).mean()
    requests = size.astype(float) if per_request else None
    return Differences(values, single=False, requests=requests).above(-EPSILON, DELTA)


def noisy_labels(rng: Rng) -> bool:
    """One label in ten is wrong, in either direction: differences look smaller than they are."""
    n = 1300
    read = rng.random(n) < 0.7
    given = np.where(rng.random(n) < 0.9, read, rng.random(n) < 0.7) & (rng.random(n) > 0.022 / 0.7)
    wrong = rng.random((2, n)) < 0.1
    return certifies((given ^ wrong[0]).astype(float) - (read ^ wrong[1]))


def lenient_judge(rng: Rng) -> bool:
    """The policy gives three of ten answers closed-book, and the judge accepts every fifth wrong one of these."""
    n = 1300
    skipped = rng.random(n) < 0.3
    read, known = rng.random(n) < 0.62, rng.random(n) < 0.55
    judged = known | (rng.random(n) < 0.2)
    return certifies(np.where(skipped, judged.astype(float) - read, 0.0))


def undeclared_paraphrases(rng: Rng) -> bool:
    """Every fact is asked three times, and each question is declared a group of its own."""
    return certifies(np.repeat(pairs(rng, GROUPS // 3, mean=-EPSILON, differing=0.1), 3))


def rare_acceptance(rng: Rng) -> bool:
    """Only one question in 25 is answered, and exactly as many of these are wrong as may be."""
    n, target = 1000, 0.2
    confidence = np.where(rng.random(n) < 0.04, 0.9, 0.1)
    right = (rng.random(n) < 1.0 - target).astype(float)
    units = Units(np.arange(n), np.ones(n))
    return GivenAnswers(right, confidence).below(0.5, units, target, DELTA)


def shopping(rng: Rng, *, shared: bool) -> bool:
    """The same labels test one policy after another, all of them at the boundary, until one is certified."""
    common = pairs(rng, GROUPS, mean=-EPSILON, differing=0.1)
    for look in range(1, LOOKS + 1):
        own = pairs(rng, GROUPS, mean=-EPSILON, differing=0.1)
        values = np.where(rng.random(GROUPS) < 0.5, common, own)
        if certifies(values, delta=spent(DELTA, look) if shared else DELTA):
            return True
    return False


def growing_table(rng: Rng, *, shared: bool) -> bool:
    """A refit each night, on the labels of all nights so far."""
    values = pairs(rng, NIGHTS[-1], mean=-EPSILON, differing=0.1)
    looks = ((values[:n], spent(DELTA, night) if shared else DELTA) for night, n in enumerate(NIGHTS, 1))
    return any(certifies(seen, delta=delta) for seen, delta in looks)


def late_confirmations(rng: Rng, *, by_asking: bool) -> bool:
    """Complaints come at once, confirmations late; confidences are too high by all that is tolerated."""
    n = 600
    known = np.sqrt(rng.random(n))
    correct = rng.random(n) < (1.0 - TOLERANCE) * known
    arrival = np.arange(n) + np.where(correct, rng.uniform(200.0, 600.0, n), 1.0)
    test = DriftTest((0,), tolerance=TOLERANCE, delta=REVOKED)
    for i in range(n) if by_asking else np.argsort(arrival).tolist():
        test.update(Asked(i, 0, TOLERANCE + (1.0 - TOLERANCE) * float(known[i]), bool(correct[i])))
    return test.alarm


WORLDS = {
    "30 % of the answers differ": World(partial(at_the_boundary, differing=0.3)),
    "10 % of the answers differ": World(partial(at_the_boundary, differing=0.1)),
    "2.1 % of the answers differ": World(partial(at_the_boundary, differing=0.021)),
    "a signal with three values": World(partial(levels, gains=(0.0, -0.06, -0.24), by_train=True)),
    "a signal that is not monotone": World(partial(levels, gains=(0.0, -0.06, 0.03), by_train=False)),
    "equal references": World(equal_references),
    "groups by Zipf's law, per group": World(partial(zipf_groups, per_request=False)),
    "groups by Zipf's law, per request": World(partial(zipf_groups, per_request=True)),
    "few questions are answered": World(rare_acceptance),
    "six refits of one table": World(partial(shopping, shared=True)),
    "ten refits of a growing table": World(partial(growing_table, shared=True)),
    "late confirmations": World(partial(late_confirmations, by_asking=True), delta=REVOKED),
    "10 % of the labels are wrong": World(noisy_labels, covered=False),
    "a judge lenient to closed-book answers": World(lenient_judge, covered=False),
    "paraphrases not declared as one group": World(undeclared_paraphrases, covered=False),
    "six refits of one table, each with all of delta": World(partial(shopping, shared=False), covered=False),
    "ten refits of a growing table, each with all of delta": World(partial(growing_table, shared=False), covered=False),
    "late confirmations, in the order of verdicts": World(
        partial(late_confirmations, by_asking=False), covered=False, delta=REVOKED
    ),
}
