"""The traffic view: figures on rows with known values, computed once a second."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from app.certify.intervals import MIN_SAMPLE
from app.core.cost import Tariff
from app.economics.view import (
    BUCKETS,
    P_BINS,
    STAGES,
    Done,
    TrafficView,
    latency,
    p_histogram,
    saved,
    summary,
    timeline,
)
from app.economics.window import ROW, Rows, TrafficWindow, actions
from tests.fakes.records import a_record, a_skip

NOW = 1_000_000.0
KS = (0, 1, 5)
ACTIONS = ("k0", "k1", "k5", "abstain")
STEP = 900 / BUCKETS


def rows(*given: dict[str, Any]) -> Rows:
    """Rows with these fields, and no other stage."""
    made = np.zeros(len(given), ROW)
    for name in ("p", *(f"{stage}_ms" for stage in STAGES)):
        made[name] = math.nan
    for place, fields in enumerate(given):
        for name, value in fields.items():
            if name != "action":
                made[place][name] = value
            elif value == "abstain":
                made[place]["withheld"] = True
            else:
                made[place]["k"] = int(value[1:])
    return made


def done(given: Rows) -> Done:
    """The final action of each row."""
    return Done(actions(given, KS), ACTIONS)


def test_empty_window_has_every_field() -> None:
    """Without rows the view has every field, no division by zero, and no NaN, which JSON cannot carry."""
    found = summary(rows(), now=NOW, seconds=900, reference=1, ks=KS)
    assert found["answers"] == 0
    assert found["actions"] == dict.fromkeys(ACTIONS, 0)
    assert found["latency"]["all"]["total"] == {"n": 0, "p50": None, "p95": None}
    assert found["p"] == {"n": 0} | dict.fromkeys(ACTIONS, [0] * P_BINS)
    assert found["saved"] == {"gated": 0, "passages": 0, "passages_always": 0, "tokens": 0, "tokens_always": None}
    assert b"NaN" not in orjson.dumps(found)


def test_moment_stays_in_its_bucket() -> None:
    """Edges lie at multiples of the width, so a slightly later view moves nothing between columns."""
    given = rows({"at": NOW - 20.0, "action": "k1"}, {"at": NOW - 400.0, "action": "abstain"})
    first = timeline(given, done(given), now=NOW, seconds=900)
    later = timeline(given, done(given), now=NOW + STEP, seconds=900)
    assert first["bucket_seconds"] == STEP
    assert sum(first["k1"]) == sum(first["abstain"]) == 1
    assert later["k1"].index(1) == first["k1"].index(1) - 1
    assert later["start"] == first["start"] + STEP
    place = first["k1"].index(1)
    assert first["start"] + place * STEP <= NOW - 20.0 < first["start"] + (place + 1) * STEP


def test_last_bucket_holds_now_and_old_rows_are_dropped() -> None:
    """The current bucket counts; a row before the first edge is in no bucket."""
    given = rows({"at": NOW, "action": "k0"}, {"at": NOW - 900.1, "action": "k0"})
    found = timeline(given, done(given), now=NOW, seconds=900)
    assert found["k0"][-1] == 1
    assert sum(found["k0"]) == 1


def test_percentiles_cover_only_stages_that_ran() -> None:
    """A stage that did not run does not count as zero milliseconds."""
    given = rows(
        *({"action": "k0", "probe_ms": ms, "total_ms": ms} for ms in (1.0, 2.0, 3.0)),
        {"action": "k5", "embed_ms": 4.0, "search_ms": 5.0, "read_ms": 100.0, "total_ms": 110.0},
    )
    found = latency(given, done(given))
    assert found["k0"]["probe"] == {"n": 3, "p50": 2.0, "p95": pytest.approx(2.9)}
    assert found["k0"]["read"]["n"] == found["k5"]["probe"]["n"] == found["k1"]["total"]["n"] == 0
    assert found["all"]["probe"]["n"] == 3
    assert found["all"]["total"]["n"] == 4
    assert found["k5"]["read"]["p50"] == 100.0


@pytest.mark.parametrize(("p", "place"), [(0.0, 0), (0.049, 0), (0.051, 1), (0.5, P_BINS // 2), (1.0, P_BINS - 1)])
def test_each_probability_has_one_bin(p: float, place: int) -> None:
    """Bins include their lower edge and exclude the upper one; the last bin includes 1."""
    given = rows({"p": p, "action": "k1"}, {"action": "k5"})
    found = p_histogram(given, done(given))
    assert found["n"] == 1
    assert found["k1"].index(1) == place
    assert sum(found["k5"]) == 0


def test_savings_compare_gated_questions_with_measured_readings() -> None:
    """Passages are counted; the tokens of always reading are the mean reading times the gated questions."""
    skipped = {"action": "k0", "gated": True, "probe_prompt": 40, "probe_completion": 10}
    read = {"action": "k1", "k": 1, "gated": True, "passages": 1, "reads": 1, "read_prompt": 90, "read_completion": 10}
    asked_for = {**read, "gated": False, "read_prompt": 290}
    half = MIN_SAMPLE // 2
    found = saved(rows(*[skipped] * 10, *[read] * half, *[asked_for] * half), reference=1)
    gated = 10 + half
    assert found["gated"] == gated
    assert (found["passages"], found["passages_always"]) == (half, gated)
    assert found["tokens"] == 10 * 50 + half * 100
    assert found["tokens_always"] == 200.0 * gated


def test_few_readings_give_no_token_savings() -> None:
    """An answer that found nothing to read does not count as a reading."""
    read = {"action": "k5", "k": 5, "gated": True, "passages": 5, "reads": 1, "read_prompt": 400}
    empty = {**read, "passages": 0, "reads": 0}
    assert saved(rows(*[read] * (MIN_SAMPLE - 1), empty), reference=5)["tokens_always"] is None
    assert saved(rows(*[read] * MIN_SAMPLE, empty), reference=5)["tokens_always"] is not None


class Watched:
    """A window in a folder, a clock that the test sets, and a view of the window."""

    def __init__(self, folder: Path) -> None:
        self.now = NOW
        self.window = TrafficWindow(folder, clock=lambda: self.now)
        self.view = TrafficView(
            self.window, seconds=900, reference=lambda: 1, tariff=Tariff(), ks=KS, clock=lambda: self.now
        )


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A view without traffic."""
    watched = Watched(tmp_path)
    yield watched
    watched.window.close()


def test_view_is_cached_for_a_second(watched: Watched) -> None:
    """Nothing is recomputed before a second has passed, even if the clock was set back."""
    first = watched.view.cached_report()
    watched.window.observe(a_record())
    watched.now += 0.9
    assert watched.view.cached_report() is first
    watched.now += 0.1
    second = watched.view.cached_report()
    assert second.figures["answers"] == second.break_even.window.answers == 1
    watched.now -= 0.5
    assert watched.view.cached_report() is not second


def test_cache_of_windows_is_bounded(watched: Watched) -> None:
    """A caller that requests ever more windows does not fill the memory; the least recently used one is dropped."""
    first, kept = watched.view.cached_report(1), watched.view.cached_report(2)
    for seconds in range(3, 18):
        watched.view.cached_report(seconds)
    assert watched.view.cached_report(2) is kept
    assert watched.view.cached_report(1) is not first


def test_view_has_one_window_and_one_reference(watched: Watched) -> None:
    """The report on gating and the charts use the same window; the default window is that of the gauges."""
    watched.window.observe(a_record())
    watched.window.observe(a_skip())
    found = watched.view.report(300)
    assert (found.now, found.break_even.window.seconds, found.figures["timeline"]["bucket_seconds"]) == (NOW, 300, 5)
    assert found.break_even.reference == "k1"
    assert (found.figures["saved"]["passages"], found.figures["saved"]["passages_always"]) == (1, 2)
    assert watched.view.report().break_even.window.seconds == 900
