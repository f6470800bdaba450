"""What validation certifies, once: how far along the paths from train the guarantees hold.

Fixed-sequence testing (Learn then Test): the steps of a path are tested in order, each at the full level delta, until
the first that is not rejected. A false step is certified only if the first false step of the path is, so the
probability of that is at most delta, whatever the length of the path. So -epsilon is guaranteed for the selected step,
simultaneously over the path. The `bound` beside it is the pointwise 1 - delta lower bound at that step, which is not a
guarantee. With several references the p-value of a step is the largest over them (intersection-union test), which needs
no correction either.

Each test bets on the paired difference of a group (`app.certify.bets`). Bets grow as the observed variance shrinks, and
most paired differences are zero: that is where the power comes from. Hoeffding's and Bentkus's inequalities use only
the range, empirical Bernstein pays for estimating the variance, and MAPIE's risk control can neither pair a policy with
its reference nor treat a group as one unit. `bench/refit/bounds.py` has the figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.certify import bets as betting
from app.core.artifact import FIXED, Certificate, PolicyFit, Thresholds
from app.core.cost import Objective
from app.offline.refit.choose import Guarantee, PathStep
from app.offline.refit.splits import VALIDATION_SHARE, Ledger, Validation, fixed_k
from app.offline.table import Floats

# Estimates of labels needed above this are not reported.
MAX_LABELS = 10_000_000


@dataclass(frozen=True, slots=True)
class Failure:
    """The first step that failed, the reference it failed against, and the paired difference between groups."""

    step: int
    against: int
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a path holds: the last certified step, the last that held on average, and the first that failed."""

    certified: int | None
    empirical: int
    failure: Failure | None


def walk(ledger: Ledger[Validation], path: Sequence[PathStep], guarantee: Guarantee) -> Walk:
    """Test the steps in order, each against every reference, until one fails."""
    certified, failure, empirical = None, None, 0
    for number, step in enumerate(path):
        right = ledger.right(ledger.route(step.thresholds))
        holds = True
        for k in guarantee.references:
            if ledger.is_reference(step.thresholds, k):
                continue
            d = ledger.units.means(right - ledger.fixed(k))
            mean = float(d.mean())
            holds = holds and mean >= -guarantee.epsilon
            if failure is None and _p_value(d, guarantee) > guarantee.delta:
                failure = Failure(number, k, mean, float(d.std()))
        if failure is None:
            certified = number
        if not holds:
            break
        empirical = number
    return Walk(certified, max(empirical, certified or 0), failure)


def _p_value(differences: Floats, guarantee: Guarantee) -> float:
    return betting.p_value(differences.tolist(), -guarantee.epsilon, low=-1.0, high=1.0, delta=guarantee.delta)


def lower_bound(ledger: Ledger[Validation], thresholds: Thresholds, guarantee: Guarantee) -> float:
    """The lower bound on the paired difference from the hardest reference: the same test, inverted.

    It is pointwise: it holds with probability 1 - delta for thresholds that were fixed in advance. For the step that a
    walk selected it only describes; -epsilon is what holds whichever step is selected.
    """
    right = ledger.right(ledger.route(thresholds))

    def bound(k: int) -> float:
        if ledger.is_reference(thresholds, k):
            return 0.0
        differences = ledger.units.means(right - ledger.fixed(k)).tolist()
        return betting.lower_bound(differences, low=-1.0, high=1.0, delta=guarantee.delta)

    return min(bound(k) for k in guarantee.references)


def certify_policy(
    ledger: Ledger[Validation], path: Sequence[PathStep], guarantee: Guarantee, objective: Objective
) -> PolicyFit:
    """The cheapest certified thresholds, or the empirical ones with the reason why none are certified."""
    walked = walk(ledger, path, guarantee)
    failure, epsilon = walked.failure, guarantee.epsilon
    needed = labels_needed(failure, guarantee) if failure else None
    if walked.certified is not None:
        thresholds = path[walked.certified].thresholds
        bound = lower_bound(ledger, thresholds, guarantee)
        certificate = Certificate(epsilon, guarantee.delta, guarantee.reference, ledger.units.count, bound)
        # A certified fixed k saves nothing, so the estimate of labels belongs to it, too.
        return PolicyFit(thresholds, objective, certificate, labels_needed=needed if thresholds in FIXED else None)
    assert failure is not None
    against = f"always-k{failure.against}"
    if needed is not None:
        why = (
            f"{ledger.units.count} validation groups are too few: the safest policy's accuracy minus that of {against} "
            f"is {failure.mean:+.3f} with a standard deviation of {failure.deviation:.3f}, and showing that it is "
            f"above -{epsilon:g} takes about {needed} labelled groups in all; or allow a larger epsilon"
        )
    elif failure.mean <= -epsilon:
        why = (
            f"even the safest policy is {-failure.mean:.3f} less accurate than {against} on validation, more than "
            f"epsilon = {epsilon:g} allows: no number of labels fixes that"
        )
    else:
        why = f"the difference from {against} is too close to -{epsilon:g} for any practical number of labels"
    return PolicyFit(path[walked.empirical].thresholds, objective, None, why, needed)


def labels_needed(failure: Failure, guarantee: Guarantee) -> int | None:
    """How many groups the whole table needs for the failed step to be certified, if what was observed is the truth.

    The log-capital of the bets grows by bet gap - bet^2 deviation^2 / 2 per group. It must reach log(1 / delta), and
    twice that to be likely to get there where differences vary.
    """
    gap, deviation = failure.mean + guarantee.epsilon, failure.deviation
    if gap <= 0.0:
        return None
    # A difference of -1 loses a little more than the bet, and a bet is at most three quarters of the capital.
    bet = min(0.75, gap / max(deviation**2, 1e-12))
    growth = bet * gap - 0.5 * bet**2 * deviation**2
    groups = (2.0 if deviation > 0.0 else 1.0) * np.log(1.0 / guarantee.delta) / growth / VALIDATION_SHARE
    return int(np.ceil(groups)) if groups <= MAX_LABELS else None


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
            more = f"; about {fit.labels_needed} labelled groups may be enough" if fit.labels_needed else ""
            notes.append(f"{policy}: nothing cheaper than always-k{fixed} could be certified{more}")
    return notes + [
        f"{policy}: not certified, {fit.uncertified_reason}" for policy, fit in fits.items() if not fit.certificate
    ]
