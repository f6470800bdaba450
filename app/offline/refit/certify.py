"""What validation is used for, once: walking the paths that train laid, and certifying how far they hold.

Fixed-sequence testing (Learn then Test): the steps of a path are tested in order at the full level delta, and the
walk ends at the first that is not rejected. A false step is certified only if the first false one on the path is,
so the chance of that is at most delta whatever the length of the path. What is guaranteed of the selected step is
therefore -epsilon, simultaneously over the path; the `bound` beside it is the pointwise 1 - delta lower bound at that
step, and is no guarantee of its own. With several references the p-value of a step is the greatest over them
(intersection-union), which needs no correction either.

Each test bets on the paired difference of a group (`app.certify.bets`). The bets grow as the observed variance
shrinks: this is what turns pairing, by which most differences are zero, into power. Hoeffding's and Bentkus's
inequalities know only the range and throw that away; empirical Bernstein pays for estimating the variance; an exact
test of the discordant pairs is as sharp where many pairs differ, weaker where few do, and knows no groups.
`bench/refit/bounds.py` has the figures.

MAPIE's risk control offers the same two ideas, and we do not use it: its losses lie in [0, 1] and belong to single
samples, so it can neither pair a policy with its reference, where nearly all the power is, nor take a group of
phrasings as one unit, and its p-values (Hoeffding-Bentkus, CLT) are blind to the variance or valid only in the limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.certify import bets as betting
from app.core.artifact import FIXED, Certificate, PolicyFit, Thresholds
from app.core.cost import Objective
from app.offline.refit.abstention import MOST_LABELS
from app.offline.refit.ledger import Ledger, fixed_k
from app.offline.refit.paths import PathStep
from app.offline.refit.split import VALIDATION_SHARE, Validation
from app.offline.table import Floats


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a path was walked: the last certified step, and the last that was right on average."""

    certified: int | None
    empirical: int
    # The pointwise 1 - delta lower bound at the certified step; what the walk guarantees is -epsilon.
    bound: float | None
    # Of the first step that failed, against the reference that it failed.
    failed_at: int | None = None
    failed_against: int | None = None
    failed_mean: float = 0.0
    failed_deviation: float = 0.0


def walk(
    ledger: Ledger[Validation], path: Sequence[PathStep], *, references: Sequence[int], epsilon: float, delta: float
) -> Walk:
    """Test the steps in order, each against every reference, until one fails."""
    certified = failed_at = failed_against = None
    failed_mean = failed_deviation = 0.0
    empirical = 0
    for number, step in enumerate(path):
        right = ledger.right(ledger.route(step.thresholds))
        holds = True
        for k in references:
            if ledger.is_reference(step.thresholds, k):
                continue
            d = ledger.units.means(right - ledger.fixed(k))
            holds = holds and float(d.mean()) >= -epsilon
            if failed_at is None and _p_value(d, -epsilon, delta) > delta:
                failed_at, failed_against = number, k
                failed_mean, failed_deviation = float(d.mean()), float(d.std())
        if failed_at is None:
            certified = number
        if not holds:
            break
        empirical = number
    bound = None
    if certified is not None:
        bound = lower_bound(ledger, path[certified].thresholds, references=references, delta=delta)
        empirical = max(empirical, certified)
    return Walk(certified, empirical, bound, failed_at, failed_against, failed_mean, failed_deviation)


def lower_bound(
    ledger: Ledger[Validation], thresholds: Thresholds, *, references: Sequence[int], delta: float
) -> float:
    """The lower bound on the paired difference with the hardest reference, from the test inverted.

    Pointwise: it covers the truth with probability 1 - delta for thresholds named beforehand. At the step that a walk
    selected it only describes; what holds simultaneously, whichever step is selected, is -epsilon.
    """
    right = ledger.right(ledger.route(thresholds))
    return min(
        0.0 if ledger.is_reference(thresholds, k) else _lower_bound(ledger.units.means(right - ledger.fixed(k)), delta)
        for k in references
    )


def _p_value(differences: Floats, mean: float, delta: float) -> float:
    return betting.p_value(differences.tolist(), mean, low=-1.0, high=1.0, delta=delta)


def _lower_bound(differences: Floats, delta: float) -> float:
    return betting.lower_bound(differences.tolist(), low=-1.0, high=1.0, delta=delta)


def certify_policy(
    ledger: Ledger[Validation],
    path: Sequence[PathStep],
    *,
    references: Sequence[int],
    epsilon: float,
    delta: float,
    objective: Objective,
) -> PolicyFit:
    """Walk, and put the cheapest certified thresholds into a fit, or the empirical ones and why there is no more."""
    walked = walk(ledger, path, references=references, epsilon=epsilon, delta=delta)
    if walked.certified is not None:
        assert walked.bound is not None
        certificate = Certificate(epsilon, delta, reference_name(references), ledger.units.count, walked.bound)
        thresholds = path[walked.certified].thresholds
        # A certified fixed action saves nothing: then, too, say how many labels might change that.
        more = None
        if thresholds in FIXED and walked.failed_at is not None:
            more = labels_needed(walked.failed_mean, walked.failed_deviation, epsilon, delta)
        return PolicyFit(thresholds, objective, certificate, labels_needed=more)
    needed = labels_needed(walked.failed_mean, walked.failed_deviation, epsilon, delta)
    against = f"always-k{walked.failed_against}"
    if needed is None:
        why = (
            f"even the safest policy is {-walked.failed_mean:.3f} less accurate than {against} on validation, "
            f"more than epsilon = {epsilon:g} allows: no number of labels mends that"
            if walked.failed_mean <= -epsilon
            else f"the difference from {against} is too near to -{epsilon:g} for any practical number of labels"
        )
    else:
        why = (
            f"{ledger.units.count} validation groups are too few: the safest policy's accuracy minus that of {against} "
            f"is {walked.failed_mean:+.3f} with a standard deviation of {walked.failed_deviation:.3f}, and showing "
            f"that it is above -{epsilon:g} takes about {needed} labelled groups in all; or allow a larger epsilon"
        )
    return PolicyFit(path[walked.empirical].thresholds, objective, None, why, needed)


def labels_needed(mean: float, deviation: float, epsilon: float, delta: float) -> int | None:
    """How many groups the whole table would need for the first step to certify, if what was observed is the truth.

    The gambler's log-capital grows by bet gap - bet^2 deviation^2 / 2 a group. She needs log(1 / delta) of it, and
    twice that to be likely to get it where luck has a part.
    """
    gap = mean + epsilon
    if gap <= 0.0:
        return None
    # A loss of one costs her the bet and a little more, and she may stake three quarters of what she has.
    bet = min(0.75, gap / max(deviation**2, 1e-12))
    growth = bet * gap - 0.5 * bet**2 * deviation**2
    groups = (2.0 if deviation > 0.0 else 1.0) * np.log(1.0 / delta) / growth / VALIDATION_SHARE
    return int(np.ceil(groups)) if groups <= MOST_LABELS else None


def reference_name(references: Sequence[int]) -> str:
    """How reports and certificates call a set of references."""
    return f"always-k{references[0]}" if len(references) == 1 else "every fixed action"


def policy_notes(fits: Mapping[str, PolicyFit], ks: tuple[int, int, int]) -> list[str]:
    """What each policy drops, or could not certify."""
    notes = []
    _, few, many = ks
    graded = fits["graded"].thresholds
    # A fixed action drops the others for want of a certificate, not of worth: that is said below.
    if graded not in FIXED:
        if graded.tau0 == graded.tau1:
            notes.append(f"graded: k={few} is not worth choosing at these thresholds, so the policy drops it")
        if graded.tau1 == 0.0:
            notes.append(
                f"graded: k={many} is not worth choosing at these thresholds, so only a missing signal reads {many}"
            )
        if graded.tau0 > 1.0:
            notes.append("graded: k=0 is not worth choosing at these thresholds, so the policy drops it")
    for policy, fit in fits.items():
        fixed = fixed_k(fit.thresholds, ks)
        if fit.certificate is not None and fixed is not None:
            more = f"; about {fit.labels_needed} labelled groups might do more" if fit.labels_needed else ""
            notes.append(f"{policy}: nothing cheaper than always-k{fixed} could be certified{more}")
    return notes + [f"{policy}: not certified, {fit.why_not}" for policy, fit in fits.items() if not fit.certificate]
