"""What validation certifies: thresholds and prices by walking a path, a gain by one bound."""

from dataclasses import replace

import numpy as np
import pytest

from app.certify.plan import spent
from app.core.artifact import FIXED, LadderFit, Thresholds
from app.core.cost import Objective
from app.offline.refit.certify import Population, certify_ladder, certify_policy, holding
from app.offline.refit.choose import Guarantee, PathStep
from app.offline.refit.follow import Fitted, Given
from app.offline.refit.splits import Ledger, Validation, passage_costs, units
from tests.fakes.artifacts import a_chat, a_ladder
from tests.offline.world import World

N = 1000
CALLS = Objective.CALLS
# Of a thousand questions those with p >= 0.5 are right closed-book, and all are right with five passages.
P = np.arange(N) / N
EVERY = Guarantee((0, 1, 5), 0.02, 0.1)
FIVE = Guarantee((5,), 0.02, 0.1)
ALL, NONE = np.ones(N, dtype=bool), np.zeros(N, dtype=bool)


def ledger(k0: np.ndarray, k1: np.ndarray, k5: np.ndarray) -> Ledger[Validation]:
    table = replace(World().draw(N, seed=0)[0], correct={0: k0, 1: k1, 5: k5})
    return Ledger(Validation(table), P, units(table, salt="order"), passage_costs(table))


def steps(*taus: float) -> list[PathStep]:
    return [PathStep(Thresholds(tau, tau), 0.0, 0.0) for tau in taus]


def test_the_walk_ends_before_the_first_step_that_loses() -> None:
    """Skipping known answers loses nothing; skipping a tenth of unknown ones does, and no later step is tested."""
    book, path = ledger(P >= 0.5, NONE, ALL), steps(2.0, 0.9, 0.5, 0.4, 0.5)
    fit = certify_policy(book, path, EVERY, CALLS)
    assert fit.thresholds == Thresholds(0.5, 0.5)
    assert fit.certificate is not None
    assert -0.02 <= fit.certificate.bound <= 0.0
    assert (fit.certificate.delta, fit.certificate.spent) == (0.1, spent(0.1, 1))
    assert (fit.certificate.n, fit.certificate.labels) == (N, N)
    assert "corpus can answer" in fit.certificate.population
    assert holding(book, path, EVERY) == 2


def test_a_later_refit_needs_more() -> None:
    """The same labels that certify at the first refit do not at the hundredth, which may spend almost nothing."""
    book = ledger(np.arange(N) % 20 > 0, NONE, (np.arange(N) + 1) % 20 > 0)
    path = [PathStep(FIXED[2], 0.0, 1.0), PathStep(FIXED[0], 0.0, 0.0)]
    assert certify_policy(book, path, replace(FIVE, epsilon=0.03), CALLS).thresholds == FIXED[0]
    fit = certify_policy(book, path, replace(FIVE, epsilon=0.03, refit=100), CALLS)
    assert fit.thresholds == FIXED[2]
    assert fit.labels_needed is not None
    assert fit.labels_needed.low > N


def test_every_reference_must_be_met() -> None:
    """A policy that matches always-k5 is refused where always-k1 is far better, and certified without it."""
    book = ledger(NONE, ALL, P >= 0.5)
    fit = certify_policy(book, steps(2.0), EVERY, CALLS)
    assert fit.certificate is None
    assert "always-k1" in (fit.uncertified_reason or "")
    assert "more labels will hardly help" in (fit.uncertified_reason or "")
    assert fit.labels_needed is None
    fit = certify_policy(book, steps(2.0), FIVE, CALLS)
    assert fit.certificate is not None
    assert fit.certificate.bound == 0.0
    assert fit.certificate.reference == "always-k5"


def test_what_cannot_be_shown_says_how_many_labels_it_takes() -> None:
    """A difference of about zero that varies much: an estimate with its interval, also in the reason."""
    book = ledger(np.arange(N) % 2 == 0, NONE, np.arange(N) % 4 < 2)
    fit = certify_policy(book, steps(0.0), FIVE, CALLS)
    assert fit.thresholds == FIXED[0]
    assert fit.certificate is None
    assert fit.labels_needed is not None
    assert f"Next: collect {fit.labels_needed.text}" in (fit.uncertified_reason or "")


def test_what_looks_good_enough_ends_at_the_first_step_that_does_not() -> None:
    """By the means alone, without any test."""
    book = ledger(P >= 0.5, NONE, ALL)
    assert holding(book, steps(2.0, 0.5, 0.49), EVERY) == 2
    assert holding(book, steps(0.0, 2.0), EVERY) == 0


def test_references_have_names() -> None:
    """One reference is named by its action, several are every fixed action."""
    assert FIVE.reference == "always-k5"
    assert EVERY.reference == "every fixed action"


# The ladder: policies whose answers differ from those of the references by a known share.
def table_of(accuracies: dict[int, float], *, n: int) -> Fitted:
    """Answers at each k are right in the first so many groups of a fixed order."""
    table = World().draw(n, seed=0)[0]
    place = np.random.default_rng(0).permutation(n) / n
    right = {k: place < accuracies.get(k, 0.0) for k in table.ks}
    return Fitted(replace(table, correct=right), {}, {}, np.zeros(n, bool))


def a_step(t: float, accuracy: float, *, n: int, goal: str = "save", seed: int = 0) -> tuple[LadderFit, Given]:
    """A policy of this accuracy; a tenth of what it gives differs from the references at random."""
    place = np.random.default_rng(0).permutation(n) / n
    right = (place < accuracy).astype(float)
    rng = np.random.default_rng(seed)
    wrong, lucky = (rng.choice(np.flatnonzero(right == one), n // 20, replace=False) for one in (1.0, 0.0))
    right[wrong], right[lucky] = 0.0, 1.0
    return a_ladder(t=t, goal=goal, certificate=None), Given(np.zeros(n, np.intp), right, right)


def test_a_gain_must_show_against_every_reference() -> None:
    """The bound is that against the best reference, by the same test as everywhere."""
    fitted = table_of({0: 0.3, 1: 0.6, 5: 0.5}, n=600)
    step = a_step(0.1, 0.7, n=600, goal="gain")
    fit = certify_ladder(fitted, [step], EVERY)
    assert fit.certificate is not None
    tested = Population.of(fitted.outcomes, "")
    expected = tested.differences(step[1].right, 1).lower_bound(spent(0.1, 1))
    assert fit.certificate.bound == pytest.approx(expected)
    assert 0.0 < fit.certificate.bound < 0.1
    assert (fit.certificate.epsilon, fit.certificate.delta, fit.certificate.n) == (0.0, 0.1, 600)


def test_chat_is_certified_by_the_short_answer_at_its_k() -> None:
    """By the same test as the ladder; its certificate says what was judged."""
    fitted = table_of({0: 0.3, 1: 0.6, 5: 0.5}, n=600)
    given = a_step(0.1, 0.7, n=600)[1]
    fit = certify_ladder(fitted, [(a_chat(certificate=None), given)], EVERY)
    ladder = certify_ladder(fitted, [a_step(0.1, 0.7, n=600, goal="gain")], EVERY)
    assert fit.certificate is not None
    assert ladder.certificate is not None
    assert fit.certificate.bound == ladder.certificate.bound
    assert "by the short answer at the k chosen" in fit.certificate.population
    assert "short answer" not in ladder.certificate.population


@pytest.mark.parametrize(("accuracy", "then"), [(0.61, "labelled groups in all"), (0.5, "--goal save")])
def test_without_a_certain_gain_the_reason_says_what_was_shown(accuracy: float, then: str) -> None:
    """The reference that was not beaten, the difference, its bound, and the next step."""
    fitted = table_of({0: 0.3, 1: 0.6, 5: 0.5}, n=600)
    fit = certify_ladder(fitted, [a_step(0.1, accuracy, n=600, goal="gain")], EVERY)
    assert fit.certificate is None
    why = fit.uncertified_reason or ""
    assert "always-k1" in why
    assert f"{accuracy - 0.6:+.3f}" in why
    assert then in why
    assert (fit.labels_needed is None) == (accuracy == 0.5)


def test_a_saving_walks_to_the_last_step_that_holds() -> None:
    """The first step that fails ends the walk, though a later one would hold."""
    fitted = table_of({5: 0.6}, n=600)
    path = [a_step(t, accuracy, n=600) for t, accuracy in ((0.0, 0.65), (0.1, 0.6), (0.2, 0.4), (0.3, 0.65))]
    fit = certify_ladder(fitted, path, replace(FIVE, epsilon=0.05))
    assert fit.t == 0.1
    assert fit.certificate is not None
    assert (fit.certificate.epsilon, fit.certificate.reference) == (0.05, "always-k5")
    assert -0.05 <= fit.certificate.bound < 0.02
    assert "in scope" in fit.certificate.population


def test_a_saving_whose_first_step_fails_says_how_many_labels_it_takes() -> None:
    """Nothing is certified then; the fit is that of the first step."""
    fitted = table_of({1: 0.5, 5: 0.6}, n=100)
    fit = certify_ladder(fitted, [a_step(t, 0.6, n=100) for t in (0.0, 0.1)], Guarantee((1, 5), 0.02, 0.1))
    assert fit.certificate is None
    assert fit.t == 0.0
    assert fit.labels_needed is not None
    assert fit.labels_needed.value is not None
    assert fit.labels_needed.value > 1000
    assert "always-k5" in (fit.uncertified_reason or "")
    assert fit.labels_needed.text in (fit.uncertified_reason or "")


def test_a_larger_epsilon_never_certifies_less() -> None:
    """Steps that hold for an epsilon hold for every larger one."""
    fitted = table_of({5: 0.6}, n=600)
    path = [a_step(t, accuracy, n=600) for t, accuracy in ((0.0, 0.65), (0.1, 0.6), (0.2, 0.57), (0.3, 0.5))]
    reached = []
    for epsilon in (0.01, 0.03, 0.06, 0.1, 0.3):
        fit = certify_ladder(fitted, path, replace(FIVE, epsilon=epsilon))
        reached.append(-1.0 if fit.certificate is None else fit.t)
    assert reached == sorted(reached)
    assert reached[0] < reached[-1] == 0.3


def test_accuracy_counts_questions_in_scope_that_the_corpus_can_answer() -> None:
    """Wrong answers outside change nothing, and their groups are not among the n of the certificate."""
    n = 600
    outside, far = np.arange(n) % 6 == 0, np.arange(n) % 6 == 1
    right = np.where(outside | far, 0.0, 1.0)
    table = World().draw(n, seed=0)[0]
    table = replace(table, correct=dict.fromkeys(table.ks, outside | far), out_of_corpus=outside)
    fitted, given = Fitted(table, {}, {}, far), Given(np.zeros(n, np.intp), right, right)
    for goal in ("gain", "save"):
        fit = certify_ladder(fitted, [(a_ladder(goal=goal, certificate=None), given)], EVERY)
        assert fit.certificate is not None
        assert fit.certificate.n == n - n // 3
        assert fit.certificate.bound > 0.9


def test_one_row_stands_for_a_group_where_most_have_one() -> None:
    """Drawn by a hash of its id, whatever the order of rows; where groups are larger, their means are tested."""
    table = World(phrasings=1).draw(60, seed=0)[0]
    table = replace(table, groups=[f"g{min(row, 49)}" for row in range(60)])
    right = np.arange(60) / 59.0
    tested = Population.of(table, "")
    values = tested.differences(right, 0).values
    assert len(values) == tested.units.count == 50
    assert set(values) <= set((right - table.correct[0]).tolist())
    back = Population.of(table.take(np.arange(60)[::-1]), "")
    assert back.differences(right[::-1], 0).values.tolist() == values.tolist()
    large = Population.of(World(phrasings=3).draw(50, seed=0)[0], "")
    assert large.drawn is None
    assert not large.differences(np.ones(150), 0).single


def test_requests_are_named_and_weigh_groups() -> None:
    """A certificate per request says so, and means of groups are weighed by their rows."""
    table = replace(World(phrasings=1).draw(60, seed=0)[0], per_request=True)
    table = replace(table, groups=[f"g{min(row, 49)}" for row in range(60)])
    tested = Population.of(table, "questions")
    assert tested.name == "questions, each request once"
    found = tested.differences(np.ones(60), 0)
    assert not found.single
    assert found.mean == pytest.approx(1.0 - table.correct[0].mean())
    assert Population.of(replace(table, per_request=False), "questions").name == "questions, each group once"
