"""What validation certifies, once: how far along the paths from train the guarantees hold, or that there is a gain.

*save*: the steps of a path are tested in order until one fails, and the last that passed is served (`app.certify`).
With one reference the path starts there: always reading k passages loses nothing against itself. So if the first step
fails, the reference serves, and nothing is lost but the saving.

*gain*: train chose one policy. Validation gives one lower bound on its accuracy minus that of each reference; it is
certified if the smallest is above zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.certify.paired import Differences, Failure, walk
from app.certify.plan import labels_needed
from app.core.artifact import FIXED, Certificate, ChatFit, LabelsNeeded, LadderFit, PolicyFit, Thresholds
from app.core.cost import Objective
from app.offline.refit.abstain import GivenAnswers
from app.offline.refit.choose import Guarantee, PathStep
from app.offline.refit.follow import Fitted, Given
from app.offline.refit.splits import Ledger, Units, Validation, fixed_k, one_row_each, units
from app.offline.table import Floats, Outcomes

# With at most this many rows per group, one of them by a hash and the exact test beat bets on the means of groups.
_FEW_ROWS = 1.5

F = TypeVar("F", LadderFit, ChatFit)


@dataclass(frozen=True, eq=False, slots=True)
class Population:
    """The questions that a certificate is about, as rows of validation."""

    name: str
    outcomes: Outcomes
    units: Units
    # The row that stands for its group; None where the means of groups are tested.
    drawn: NDArray[np.intp] | None

    @classmethod
    def of(cls, outcomes: Outcomes, name: str) -> "Population":
        """The rows in a hashed order of their groups; whether one row stands for a group depends on their number."""
        grouping = units(outcomes, salt="order")
        most = 1.0 if outcomes.per_request else _FEW_ROWS
        few = len(outcomes) <= most * grouping.count
        name += ", each request once" if outcomes.per_request else ", each group once"
        return cls(name, outcomes, grouping, one_row_each(outcomes, grouping) if few else None)

    def differences(self, right: Floats, k: int) -> Differences:
        """The accuracy of the answers given minus that of always reading k."""
        rows = right - self.outcomes.correct[k]
        if self.drawn is not None:
            return Differences(rows[self.drawn], single=True)
        requests = self.units.sizes if self.units.per_request else None
        return Differences(self.units.means(rows), single=False, requests=requests)

    def answers(self, right: Floats, confidence: Floats) -> tuple[GivenAnswers, Units]:
        """Answers with their confidences, one row per group where one stands for it."""
        if self.drawn is None:
            return GivenAnswers(right, confidence), self.units
        every = np.arange(self.units.count)
        return GivenAnswers(right[self.drawn], confidence[self.drawn]), Units(every, np.ones(len(every)))

    def certificate(self, guarantee: Guarantee, epsilon: float, bound: float) -> Certificate:
        """A guarantee about these questions."""
        return guarantee.certificate(
            epsilon, bound, n=self.units.count, labels=self.outcomes.labels, population=self.name
        )


def certify_policy(
    ledger: Ledger[Validation], path: Sequence[PathStep], guarantee: Guarantee, objective: Objective
) -> PolicyFit:
    """The cheapest certified thresholds, or the empirical ones with the reason why none are certified."""
    tested = Population.of(ledger.split.outcomes, "questions that the corpus can answer")
    steps = (_against(ledger, tested, step.thresholds, guarantee) for step in path)
    passed, failure = walk(steps, -guarantee.epsilon, guarantee.level)
    needed = _needed(failure.differences, -guarantee.epsilon, guarantee) if failure else None
    if passed:
        thresholds = path[passed - 1].thresholds
        differences = _against(ledger, tested, thresholds, guarantee).values()
        bound = min((one.lower_bound(guarantee.level) for one in differences), default=0.0)
        # A certified fixed k saves nothing, so the estimate of labels belongs to it, too.
        return PolicyFit(
            thresholds,
            objective,
            tested.certificate(guarantee, guarantee.epsilon, bound),
            labels_needed=needed if thresholds in FIXED else None,
        )
    assert failure is not None
    thresholds = path[holding(ledger, path, guarantee)].thresholds
    return PolicyFit(thresholds, objective, None, _not_shown(failure, guarantee, needed), needed)


def holding(ledger: Ledger[Validation], path: Sequence[PathStep], guarantee: Guarantee) -> int:
    """The last step up to which every step is within epsilon of the references on average: what looks good enough."""
    for number, step in enumerate(path):
        right = ledger.right(ledger.route(step.thresholds))
        if any(ledger.mean(right - ledger.fixed(k)) < -guarantee.epsilon for k in guarantee.references):
            return max(0, number - 1)
    return len(path) - 1


def _against(
    ledger: Ledger[Validation], tested: Population, thresholds: Thresholds, guarantee: Guarantee
) -> dict[int, Differences]:
    """The differences from every reference but the policy itself."""
    right = ledger.right(ledger.route(thresholds))
    others = (k for k in guarantee.references if not ledger.is_reference(thresholds, k))
    return {k: tested.differences(right, k) for k in others}


def certify_ladder(fitted: Fitted, path: Sequence[tuple[F, Given]], guarantee: Guarantee) -> F:
    """Test the path on questions in scope; accuracy leaves out those that the corpus cannot answer."""
    rows = np.flatnonzero(~fitted.outcomes.out_of_corpus & ~fitted.out_of_scope)
    judged = "by the short answer at the k chosen: " if isinstance(path[0][0], ChatFit) else ""
    tested = Population.of(fitted.outcomes.take(rows), f"{judged}questions in scope that the corpus can answer")

    def steps() -> Iterator[dict[int, Differences]]:
        return ({k: tested.differences(given.right[rows], k) for k in guarantee.references} for _, given in path)

    if path[0][0].goal == "gain":
        return certify_gain(path[0][0], next(steps()), guarantee, tested)
    passed, failure = walk(steps(), -guarantee.epsilon, guarantee.level)
    if passed:
        differences = list(steps())[passed - 1]
        bound = min(one.lower_bound(guarantee.level) for one in differences.values())
        return replace(path[passed - 1][0], certificate=tested.certificate(guarantee, guarantee.epsilon, bound))
    assert failure is not None
    needed = _needed(failure.differences, -guarantee.epsilon, guarantee)
    why = _not_shown(failure, guarantee, needed)
    return replace(path[0][0], uncertified_reason=why, labels_needed=needed)


def certify_gain(fit: F, against: Mapping[int, Differences], guarantee: Guarantee, tested: Population) -> F:
    """One policy, one bound; without a gain the reason says what was shown instead."""
    bounds = {k: one.lower_bound(guarantee.level) for k, one in against.items()}
    worst = min(bounds, key=lambda k: bounds[k])
    if bounds[worst] > 0.0:
        return replace(fit, certificate=tested.certificate(guarantee, 0.0, bounds[worst]))
    one = against[worst]
    needed = _needed(one, 0.0, guarantee)
    then = f"collect {needed.text}" if needed else "refit with --goal save; more labels will hardly show a gain"
    why = (
        f"on {one.n} validation groups its accuracy minus that of always-k{worst} is {one.mean:+.3f}, and at least "
        f"{bounds[worst]:+.3f} with probability {1.0 - guarantee.level:g}: no certain gain. Next: {then}"
    )
    return replace(fit, uncertified_reason=why, labels_needed=needed)


def _needed(one: Differences, mean: float, guarantee: Guarantee) -> LabelsNeeded | None:
    return labels_needed(
        gap=one.mean - mean, deviation=one.deviation, n=one.n, delta=guarantee.level, single=one.single
    )


def _not_shown(failure: Failure, guarantee: Guarantee, needed: LabelsNeeded | None) -> str:
    """Why the first step was not certified, and the next step for the person who runs the refit."""
    one = failure.differences
    then = f"collect {needed.text}" if needed else "allow a larger --epsilon; more labels will hardly help"
    return (
        f"{one.n} validation groups do not show that it is at most {guarantee.epsilon:g} less accurate than "
        f"always-k{failure.against}: the difference is {one.mean:+.3f} with a standard deviation of "
        f"{one.deviation:.3f}. Next: {then}"
    )


def policy_notes(fits: Mapping[str, PolicyFit], ks: tuple[int, int, int]) -> list[str]:
    """Which k each policy never reads, and which policies are not certified."""
    notes = []
    _, few, many = ks
    graded = fits["graded"].thresholds
    # A fixed k is a matter of certificates, and has its note below.
    if graded not in FIXED:
        if graded.tau0 == graded.tau1:
            notes.append(f"graded: never reads k={few}, which does not pay at these thresholds")
        if graded.tau1 == 0.0:
            notes.append(f"graded: reads k={many} only without a signal; it does not pay at these thresholds")
        if graded.tau0 > 1.0:
            notes.append("graded: never answers with k=0, which does not pay at these thresholds")
    for policy, fit in fits.items():
        fixed = fixed_k(fit.thresholds, ks)
        if fit.certificate is not None and fixed is not None:
            more = f". Next: collect {fit.labels_needed.text}" if fit.labels_needed else ""
            notes.append(f"{policy}: always-k{fixed} serves, nothing cheaper could be certified{more}")
    return notes + [
        f"{policy}: not certified, {fit.uncertified_reason}" for policy, fit in fits.items() if not fit.certificate
    ]
