"""Break-even from rows: the paper's two readers, coverage of the intervals, and samples that are too small."""

import math

import numpy as np
import pytest

from app.certify.intervals import Interval
from app.core.cost import Tariff
from app.economics.breakeven import BreakEven, CostView, Verdict
from app.economics.estimate import estimate
from app.economics.window import ROW, Rows, Traffic

# Milliseconds of the paper's two readers (cb, ret, ob1, ob5), and the share that each skips.
SMALL, SMALL_SKIP = {"cb": 64.6, "ret": 27.5, "ob1": 61.4, "ob5": 80.0}, 0.335
LARGE, LARGE_SKIP = {"cb": 161.1, "ret": 27.5, "ob1": 257.0, "ob5": 319.0}, 0.542
KS = (0, 1, 5)
TARIFF = Tariff(prompt_token=1.0, completion_token=4.0, call=100.0, passage=10.0)


class KnownGate:
    """A gate with known mean costs and shares; latencies are log-normal, so skewed to the right."""

    def __init__(self, means: dict[str, float], *, k0: float, k1: float = 0.0, skew: float = 0.4) -> None:
        self.means, self.k0, self.k1, self.skew = means, k0, k1, skew

    def rows(self, n: int, rng: np.random.Generator, *, exact: bool = False) -> Rows:
        """N gated questions; `exact` gives each share its exact count."""
        rows = np.zeros(n, ROW)
        k5 = 1.0 - self.k0 - self.k1
        shares = (self.k0, self.k1, k5)
        k = (
            np.repeat((0, 1, 5), np.round(np.multiply(shares, n)).astype(int))
            if exact
            else rng.choice((0, 1, 5), n, p=shares)
        )
        rows["k"] = k
        rows["gated"], rows["passages"] = True, k
        rows["searches"] = rows["reads"] = k > 0
        rows["probe_ms"] = self._skewed("cb", n, rng)
        rows["embed_ms"] = np.where(k > 0, 7.5, np.nan)
        rows["search_ms"] = np.where(k > 0, self._skewed("ret", n, rng) - 7.5, np.nan)
        rows["read_ms"] = np.where(
            k == 1, self._skewed("ob1", n, rng), np.where(k == 5, self._skewed("ob5", n, rng), np.nan)
        )
        rows["probe_prompt"], rows["probe_completion"] = 40, 8
        rows["read_prompt"] = np.choose(np.searchsorted((0, 1, 5), k), (0, 120, 500))
        rows["read_completion"] = np.where(k > 0, 9, 0)
        return rows

    def _skewed(self, part: str, n: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self.means[part] * np.exp(rng.normal(-(self.skew**2) / 2, self.skew, n))

    def always(self, k: int) -> float:
        return self.means["ret"] + self.means[f"ob{k}"]

    @property
    def retrieving(self) -> float:
        k5 = 1.0 - self.k0 - self.k1
        return (self.k1 * self.always(1) + k5 * self.always(5)) / (self.k1 + k5)

    @property
    def gate(self) -> float:
        return self.means["cb"] + (1.0 - self.k0) * self.retrieving

    def even(self, k: int) -> float:
        return max(0.0, 1.0 - (self.always(k) - self.means["cb"]) / self.retrieving)


def judged(rows: Rows, *, reference: int = 5, tariff: Tariff | None = None) -> BreakEven:
    return estimate(Traffic(rows, 60.0, 1), seconds=900, reference=reference, tariff=tariff or Tariff(), ks=KS)


def view(found: BreakEven, cost: str = "latency") -> CostView:
    seen = found.costs[cost]
    assert seen is not None
    return seen


def holds(found: Interval, truth: float) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


@pytest.mark.parametrize(
    ("means", "skip", "even", "change", "expected"),
    [
        pytest.param(SMALL, SMALL_SKIP, 0.601, 26.6, Verdict.COSTS, id="8B"),
        pytest.param(LARGE, LARGE_SKIP, 0.465, -7.7, Verdict.SAVES, id="32B"),
    ],
)
def test_published_readers(means: dict[str, float], skip: float, even: float, change: float, expected: Verdict) -> None:
    """With the paper's constant costs, break-even, ratio and sign are those of the paper."""
    rows = KnownGate(means, k0=skip, skew=0.0).rows(10_000, np.random.default_rng(0), exact=True)
    found = view(judged(rows)).against["k5"]
    assert found.break_even_skip.value == pytest.approx(even, abs=0.0005)
    assert found.gate_cost_ratio.value is not None
    assert 100 * (found.gate_cost_ratio.value - 1) == pytest.approx(change, abs=0.1)
    assert found.verdict is expected


@pytest.mark.slow
def test_intervals_cover_the_truth_about_95_times_in_100() -> None:
    """With skewed costs, over 300 windows, every figure behind a verdict or a gauge has its nominal coverage."""
    gate = KnownGate(SMALL, k0=0.3, k1=0.4)
    rng = np.random.default_rng(7)
    truths = {f"ratio{k}": gate.gate / gate.always(k) for k in (1, 5)} | {f"even{k}": gate.even(k) for k in (1, 5)}
    truths |= {"skip": gate.k0, "gate": gate.gate}
    covered = dict.fromkeys(truths, 0)
    windows = 300
    for _ in range(windows):
        found = judged(gate.rows(300, rng))
        against = view(found).against
        figures = {f"ratio{k}": against[f"k{k}"].gate_cost_ratio for k in (1, 5)}
        figures |= {f"even{k}": against[f"k{k}"].break_even_skip for k in (1, 5)}
        figures |= {"skip": found.skip_rate, "gate": view(found).gate}
        for name, truth in truths.items():
            covered[name] += holds(figures[name], truth)
    # Three standard errors of a coverage from 300 windows are .038; winsorising makes the gate's mean a little low.
    assert all(0.90 <= count / windows <= 0.99 for count in covered.values()), covered


@pytest.mark.slow
def test_wrong_verdict_is_rare_at_break_even() -> None:
    """At the exact break-even, the verdict is `saves` or `costs` about one time in twenty."""
    means = {"cb": 50.0, "ret": 20.0, "ob1": 60.0, "ob5": 80.0}
    gate = KnownGate(means, k0=0.5)
    assert gate.gate == pytest.approx(gate.always(5))
    rng = np.random.default_rng(3)
    said = [view(judged(gate.rows(200, rng))).against["k5"].verdict for _ in range(300)]
    assert sum(verdict is not Verdict.UNCLEAR for verdict in said) / 300 <= 0.09


def test_one_timeout_does_not_dominate_the_mean() -> None:
    """A single question that hung for 30 s moves the mean no more than a slow one."""
    rows = KnownGate(SMALL, k0=0.335).rows(400, np.random.default_rng(1))
    before = view(judged(rows)).stages["read_k5"].value
    read = np.flatnonzero(rows["k"] == 5)[0]
    rows["read_ms"][read] = 30_000.0
    after = view(judged(rows)).stages["read_k5"].value
    assert before is not None
    assert after == pytest.approx(before, rel=0.02)


def test_small_sample_says_what_is_missing() -> None:
    """With 29 gated questions nothing is known; the sentence says what is missing, without a figure."""
    found = judged(KnownGate(SMALL, k0=0.3).rows(29, np.random.default_rng(1)))
    assert found.skip_rate == Interval(None, None, None, 29, "30 questions that the gate decided, 29 so far")
    assert view(found).gate.value is None
    for comparison in view(found).against.values():
        assert comparison.verdict is Verdict.UNKNOWN
        assert comparison.gate_cost_ratio.value is comparison.break_even_skip.value is None
    assert "29 so far" in found.sentence


def test_no_traffic_is_not_an_error() -> None:
    """An empty window has every key and no figure, and the sentence says so."""
    found = judged(np.empty(0, ROW), tariff=TARIFF)
    assert found.sentence.startswith("The gate decided no question in the last 900 s")
    assert found.caveats == ()
    for cost in ("latency", "tokens", "money"):
        assert all(part.value is None and part.n == 0 and part.needs for part in view(found, cost).stages.values())


def test_reference_that_was_never_read_is_unknown() -> None:
    """A gate between none and one passage can be compared with one passage, not with five."""
    found = view(judged(KnownGate(SMALL, k0=0.3, k1=0.7).rows(500, np.random.default_rng(1)), reference=1))
    assert found.against["k1"].verdict is Verdict.COSTS
    assert found.against["k5"].verdict is Verdict.UNKNOWN
    assert found.against["k5"].gate_cost_ratio.needs == "30 questions that read five passages, 0 so far"
    assert found.gate.value is not None


def test_ladder_is_judged_by_what_it_really_spent() -> None:
    """It searches first, probes, reads one passage and then five: all of it counts; no skip rate is compared."""
    rng = np.random.default_rng(1)
    ladder = KnownGate(SMALL, k0=0.5, skew=0.0).rows(200, rng, exact=True)
    ladder["ladder"], ladder["searches"] = True, 1
    ladder["embed_ms"], ladder["search_ms"] = 7.5, 20.0
    twice = ladder["k"] == 5
    ladder["reads"][twice], ladder["passages"][twice] = 2, 6
    ladder["read_ms"][twice] += 61.4
    ladder["read_prompt"][twice] += 120
    other = KnownGate(SMALL, k0=0.0, skew=0.0).rows(50, rng)
    other["gated"] = False
    found = judged(np.concatenate([ladder, other]), tariff=TARIFF)
    latency, money = view(found), view(found, "money")
    assert found.skip_rate.value == 0.5
    assert latency.gate.value == pytest.approx(64.6 + 27.5 + 0.5 * (61.4 + 80.0))
    assert latency.against["k5"].always.value == pytest.approx(107.5)
    assert latency.against["k5"].verdict is Verdict.COSTS
    assert latency.against["k5"].break_even_skip.needs == "a window in which only `graded` or `binary` decided"
    assert latency.against["k5"].sentence == "Gating costs 51 % more time than always reading five passages."
    assert money.gate.value == pytest.approx(72 + 100 + 0.5 * (60 + 620 + 36))


def test_gate_that_skips_all_costs_a_probe() -> None:
    """Nothing is read, so there is no break-even; the ratio to a reference that other questions read is known."""
    rng = np.random.default_rng(1)
    ungated = KnownGate(SMALL, k0=0.0).rows(100, rng)
    ungated["gated"] = False
    rows = np.concatenate([KnownGate(SMALL, k0=1.0).rows(200, rng), ungated])
    found = view(judged(rows)).against["k5"]
    assert found.gate_cost_ratio.value == pytest.approx(64.6 / 107.5, rel=0.05)
    assert found.break_even_skip.needs == "30 gated questions that read passages, 0 so far"
    assert found.sentence.endswith("of always reading five passages.")


def test_tokens_and_money_by_hand() -> None:
    """Retrieval costs no tokens; money prices tokens, calls and passages; without prices there is no money."""
    rows = KnownGate(SMALL, k0=0.5, k1=0.25).rows(400, np.random.default_rng(1), exact=True)
    found = judged(rows, tariff=TARIFF)
    tokens, money = view(found, "tokens"), view(found, "money")
    assert {name: part.value for name, part in tokens.stages.items()} == pytest.approx(
        {"probe": 48.0, "retrieve_k1": 0.0, "read_k1": 129.0, "retrieve_k5": 0.0, "read_k5": 509.0}
    )
    assert tokens.gate.value == pytest.approx(48 + 0.25 * 129 + 0.25 * 509)
    assert {name: part.value for name, part in money.stages.items()} == pytest.approx(
        {"probe": 72.0, "retrieve_k1": 110.0, "read_k1": 156.0, "retrieve_k5": 150.0, "read_k5": 536.0}
    )
    assert money.gate.value == pytest.approx(72 + 0.25 * 266 + 0.25 * 686)
    assert judged(rows).costs["money"] is None


def test_reference_without_cost_is_unknown() -> None:
    """If only passages cost money and their price is zero, there is no ratio."""
    rows = KnownGate(SMALL, k0=0.5).rows(400, np.random.default_rng(1))
    rows["read_prompt"] = 0
    found = view(judged(rows, tariff=Tariff(prompt_token=1.0)), "money")
    assert found.against["k5"].gate_cost_ratio.needs == "a reading that costs more than 0"
    assert found.against["k5"].break_even_skip.needs == "a reading that costs more than 0"


def test_same_rows_give_the_same_figures() -> None:
    """The estimate is deterministic: two workers with the same rows report the same."""
    rows = KnownGate(SMALL, k0=0.3, k1=0.3).rows(500, np.random.default_rng(1))
    assert judged(rows, tariff=TARIFF) == judged(rows, tariff=TARIFF)


def test_caveats_name_the_limits_of_the_figures() -> None:
    """A reference measured only on hard questions, and more traffic than the rings hold."""
    rows = KnownGate(SMALL, k0=0.3).rows(500, np.random.default_rng(1))
    assert any("100 % of the questions behind the cost of k5" in said for said in judged(rows).caveats)
    rows["gated"] = False
    assert judged(rows).caveats == ()
    found = estimate(Traffic(rows, 25.0, 1, overrun=True), seconds=900, reference=5, tariff=Tariff(), ks=KS)
    assert "the last 25 of 900 s" in found.caveats[0]
    assert found.window.covered_seconds == 25.0


def test_shares_by_action_add_up() -> None:
    """Shares are by final action; abstentions count separately."""
    rows = KnownGate(SMALL, k0=0.5, k1=0.25).rows(400, np.random.default_rng(1), exact=True)
    rows["withheld"][:40] = True
    found = judged(rows)
    values = {name: part.value for name, part in found.shares.items()}
    assert values == pytest.approx({"k0": 0.4, "k1": 0.25, "k5": 0.25, "abstain": 0.1})
    assert found.skip_rate.value == 0.5
    assert math.isclose(sum(value or 0.0 for value in values.values()), 1.0)
