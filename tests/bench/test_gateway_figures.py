"""From samples to the output of `make bench-gateway`."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.gateway.figures import (
    Figures,
    Round,
    attack_bars,
    bars,
    bars_json,
    bars_table,
    figures,
    growth,
    overload_bars,
    percentile,
    recovered_after,
    table,
)
from bench.gateway.plot import draw_overload, draw_results


def a_cell(*rates: float, alone_ms: float = 1.0) -> Figures:
    """A system on a path whose rounds had these rates."""
    return figures([Round(rate, [0.01, 0.02], [alone_ms / 1000.0], errors=0, cpu_ms=0.5) for rate in rates])


@pytest.mark.parametrize(("share", "value"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.07, 7.0), (0.001, 1.0)])
def test_percentiles_are_measured_values(share: float, value: float) -> None:
    """The smallest value that the share does not exceed, in any order."""
    assert percentile([float(n) for n in range(100, 0, -1)], share) == value


def test_percentile_of_nothing_is_not_zero() -> None:
    """Without values there is no percentile."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_figures_of_a_cell() -> None:
    """The rate of the median round with its range; latencies over all rounds; the sum of the errors."""
    cell = figures(
        [
            Round(100.0, [0.010, 0.020], [0.001], errors=1, cpu_ms=2.0),
            Round(300.0, [0.030, 0.040], [0.003], errors=2, cpu_ms=1.0),
            Round(200.0, [0.050], [0.002], errors=0, cpu_ms=3.0),
        ]
    )
    assert (cell["rps"], cell["rps_min"], cell["rps_max"]) == (200.0, 100.0, 300.0)
    assert (cell["p50_ms"], cell["p99_ms"], cell["p50_ms_alone"]) == (30.0, 50.0, 2.0)
    assert (cell["errors"], cell["cpu_ms"], cell["requests"]) == (3, 2.0, 8)


def test_cell_without_replies() -> None:
    """It has no latency, rather than one of zero, and can still be written and shown."""
    cell = figures([Round(0.0, [], [], errors=5, cpu_ms=0.0)])
    assert cell["p50_ms"] is None
    assert "| fetchwise | k0 | 0 |" in table({"fetchwise": {"k0": cell}})
    assert json.loads(json.dumps(cell)) == cell


def test_limits_compare_figures_of_one_run() -> None:
    """Ratios of medians, with those of each round; a missing figure neither passes nor fails."""
    results = {
        "fetchwise": {"k0": a_cell(1800.0, 2200.0, 2000.0, alone_ms=1.5), "k5": a_cell(300.0, 300.0, 300.0)},
        "aiohttp": {"k0": a_cell(2000.0, 2000.0, 2000.0), "k5": a_cell(600.0, 600.0, 500.0)},
    }
    k0, k5, litellm, added, chat, over = bars(results, direct_p50_ms=0.1)
    assert (k0.measured, k0.met, k0.low, k0.high) == (1.0, True, 0.9, 1.1)
    assert (k5.measured, k5.met) == (0.5, False)
    assert (litellm.measured, litellm.met) == (None, None)
    assert (added.measured, added.met) == (1.4, True)
    assert (chat.measured, over.measured) == (None, None)
    results["fetchwise"]["chat"] = a_cell(350.0, 350.0, 350.0, alone_ms=5.5)
    results["aiohttp"]["chat"] = a_cell(500.0, 500.0, 500.0, alone_ms=2.0)
    chat, over = bars(results, direct_p50_ms=0.1)[4:]
    assert (chat.measured, chat.met) == (0.7, True)
    assert (over.measured, over.met) == (3.5, False)
    shown = bars_table([k0, k5, litellm, added])
    assert "| >= 0.9 | 1.00 | 0.90-1.10 | yes |" in shown
    assert "| >= 15 | not measured |  |  |" in shown
    assert [bar["met"] for bar in bars_json([k0, k5, litellm, added], 0.1)["bars"]] == [True, False, None, True]


def test_recovery_is_the_first_window_at_the_rate() -> None:
    """Ten per second from the second second on: half a second of that is enough."""
    at = [0.3, 0.5, *(1.0 + n / 10.0 for n in range(30))]
    assert recovered_after(at, rate=10.0, window=0.5) == 1.4
    assert recovered_after(at[:4], rate=10.0, window=0.5) is None


def test_growth_ignores_the_beginning() -> None:
    """Buffers fill in the first sixth."""
    assert growth([50.0, 50.0, *[100.0] * 10]) == 1.0
    assert growth([100.0] * 10 + [150.0] * 2) == 1.5
    assert growth([100.0]) == 1.0


def an_overload(**changes: object) -> dict[str, object]:
    """The result of a good run."""
    seconds = [{"served": 95, "shed": 900, "failed": 0, "rss_mb": 120.0}] * 12
    return {
        "peak_rps": 100.0,
        "offered_rps": 1000.0,
        "served_rps": 95.0,
        "shed_p50_ms": 2.0,
        "errors": 0,
        "recovered_after_s": 0.5,
        "by_second": seconds,
    } | changes


@pytest.mark.parametrize(
    "bad",
    [
        {"served_rps": 89.0},
        {"shed_p50_ms": 50.0},
        {"errors": 1},
        {"recovered_after_s": None},
        {"by_second": [{"rss_mb": 100.0 + 2.0 * second} for second in range(12)]},
    ],
)
def test_each_limit_of_an_overload_can_fail(bad: dict[str, object]) -> None:
    """A good run meets all limits; one bad figure fails one."""
    assert all(bar.met for bar in overload_bars(an_overload()))
    assert [bar.met for bar in overload_bars(an_overload(**bad))].count(False) == 1


def an_attack(**changes: object) -> dict[str, Any]:
    """The result of a good run."""
    quiet = {"sent": 100, "served": 100, "p99_ms": 60.0, "rss_mb": 150.0}
    return {"quiet": quiet, "attacked": {"sent": 200, "served": 200, "p99_ms": 100.0, "rss_mb": 200.0} | changes}


@pytest.mark.parametrize("bad", [{"served": 199}, {"p99_ms": 181.0}, {"p99_ms": None}, {"rss_mb": 251.0}])
def test_each_limit_of_an_attack_can_fail(bad: dict[str, object]) -> None:
    """A good run meets all limits; one bad figure fails one."""
    assert all(bar.met for bar in attack_bars(an_attack()))
    assert [bar.met for bar in attack_bars(an_attack(**bad))].count(False) == 1


def test_plots_are_written(tmp_path: Path) -> None:
    """Even if a system has only one path."""
    results = {"fetchwise": {"k0": a_cell(1.0, 2.0), "k5": a_cell(1.0)}, "litellm": {"k0": a_cell(0.1)}}
    draw_results(results, tmp_path / "gateway.png")
    draw_overload(an_overload(), tmp_path / "overload.png")
    for name in ("gateway.png", "overload.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_cpu_compared_with_another_checkout() -> None:
    """The median of the rounds' ratios, for every path of the other checkout; no limit if it was not run."""
    rounds = [[Round(100.0, [0.01], [0.001], errors=0, cpu_ms=cpu) for cpu in each] for each in ((1, 2, 4), (1, 1, 5))]
    ours, theirs = map(figures, rounds)
    bar = bars({"fetchwise": {"k0": ours}, "before": {"k0": theirs}}, 1.0)[-1]
    assert (bar.what, bar.measured, bar.low, bar.high) == ("k0, CPU per reply over that of `before`", 1.0, 0.8, 2.0)
    assert bar.met
    assert not any("before" in bar.what for bar in bars({"fetchwise": {"k0": ours}}, 1.0))
