"""What validation certifies of the ladder: a gain by one bound, a saving by walking the path."""

from dataclasses import replace

import numpy as np
import pytest

from app.certify import bets
from app.core.artifact import LadderFit
from app.offline.refit.choose import Guarantee
from app.offline.refit.follow import Fitted, Given
from app.offline.refit.gain import Compared, certify_gain, certify_ladder, certify_save
from tests.fakes.artifacts import a_ladder
from tests.offline.world import World

N = 600
EVERY = Guarantee((0, 1, 5), 0.05, 0.1)


def a_fit(t: float = 0.1, goal: str = "save") -> LadderFit:
    return a_ladder(t=t, goal=goal, certificate=None)


def compared(gains: dict[int, float], t: float = 0.1, *, n: int = N) -> Compared:
    """A policy that wins and loses against each reference in a tenth of the groups, and wins a share more."""
    order = np.random.default_rng(0).permutation(n)
    tenth = n // 10

    def differences(gain: float) -> np.ndarray:
        values = np.zeros(n)
        values[:tenth], values[tenth : 2 * tenth] = 1.0, -1.0
        more = round(abs(gain) * n)
        values[2 * tenth : 2 * tenth + more] = np.sign(gain)
        return values[order]

    return Compared(a_fit(t), {k: differences(gain) for k, gain in gains.items()})


def test_a_gain_must_show_against_every_reference() -> None:
    """The bound is the smallest over the references, by the same test as everywhere."""
    one = compared({0: 0.3, 1: 0.1, 5: 0.2})
    certificate = certify_gain(one, EVERY, N).certificate
    assert certificate is not None
    expected = bets.lower_bound(one.differences[1].tolist(), low=-1.0, high=1.0, delta=0.1)
    assert certificate.bound == pytest.approx(expected)
    assert 0.0 < certificate.bound < 0.1
    assert (certificate.epsilon, certificate.delta, certificate.n) == (0.0, 0.1, N)


@pytest.mark.parametrize("gain", [-0.1, 0.0, 0.01])
def test_without_a_certain_gain_the_reason_says_what_was_shown(gain: float) -> None:
    """The reference that was not beaten, the difference, its bound, and the next step."""
    fit = certify_gain(compared({0: 0.3, 1: gain, 5: 0.2}), EVERY, N)
    assert fit.certificate is None
    why = fit.uncertified_reason or ""
    assert "always-k1" in why
    assert f"{gain:+.3f}" in why
    assert "--goal save" in why


def test_a_saving_walks_to_the_last_step_that_holds() -> None:
    """The first step that fails ends the walk, though a later one would hold."""
    path = [compared({5: gain}, t) for t, gain in ((0.0, 0.05), (0.1, 0.02), (0.2, -0.2), (0.3, 0.05))]
    fit = certify_save(path, Guarantee((5,), 0.05, 0.1), N)
    assert fit.t == 0.1
    assert fit.certificate is not None
    assert (fit.certificate.epsilon, fit.certificate.reference) == (0.05, "always-k5")
    assert -0.05 <= fit.certificate.bound < 0.02


def test_a_saving_whose_first_step_fails_names_the_next_step() -> None:
    """Nothing is certified then; the fit is that of the first step."""
    path = [compared({1: 0.0, 5: -0.02}, t, n=100) for t in (0.0, 0.1)]
    fit = certify_save(path, Guarantee((1, 5), 0.02, 0.1), 100)
    assert fit.certificate is None
    assert fit.t == 0.0
    assert "always-k5" in (fit.uncertified_reason or "")
    assert "Collect more labels, or allow a larger epsilon" in (fit.uncertified_reason or "")


def test_a_larger_epsilon_never_certifies_less() -> None:
    """Steps that hold for an epsilon hold for every larger one."""
    path = [compared({5: gain}, t) for t, gain in ((0.0, 0.05), (0.1, 0.0), (0.2, -0.03), (0.3, -0.1))]
    reached = []
    for epsilon in (0.01, 0.03, 0.06, 0.1, 0.3):
        fit = certify_save(path, Guarantee((5,), epsilon, 0.1), N)
        reached.append(-1.0 if fit.certificate is None else fit.t)
    assert reached == sorted(reached)
    assert reached[0] < reached[-1] == 0.3


def test_accuracy_counts_questions_in_scope_that_the_corpus_can_answer() -> None:
    """Wrong answers outside change nothing, and their groups are not among the n of the certificate."""
    table = World().draw(N, seed=0)[0]
    outside, far = np.arange(N) % 6 == 0, np.arange(N) % 6 == 1
    right = np.where(outside | far, 0.0, 1.0)
    wrong = {k: np.zeros(N, bool) for k in table.ks}
    table = replace(table, correct={k: labels | outside | far for k, labels in wrong.items()}, out_of_corpus=outside)
    fitted = Fitted(table, {}, {}, far)
    given = Given(np.zeros(N, np.intp), right, right)
    for goal in ("gain", "save"):
        fit = certify_ladder(fitted, [(a_fit(goal=goal), given)], EVERY)
        assert fit.certificate is not None
        assert fit.certificate.n == N - N // 3
        assert fit.certificate.bound > 0.9
