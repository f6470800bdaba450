"""The verdict on a soak: it passes with noise and spikes, and fails if something grows."""

import math
import random
from dataclasses import replace

import pytest

from bench.soak.verdict import Finding, judge
from bench.soak.watching import MB, Sample, quantile

REST = Sample(at=30.0, requests=1200, rss=180 * MB, fds=20, threads=11, in_flight=0, lags={})
FINE = {"asks": {"as expected": 100, "refused: 503": 3}, "leaves": {"as expected": 7}}


def samples(seconds: int, *, leak: float = 0.0, rate: float = 40.0) -> list[Sample]:
    """Samples from the first idle period on; each request leaks this many bytes, with noise and a few spikes."""
    rng = random.Random(5)
    run = []
    for second in range(seconds):
        requests = int(rate * second)
        noise = rng.gauss(0.0, 2 * MB) + (60 * MB if second % 50 == 7 else 0)
        run.append(replace(REST, at=30.0 + second, requests=requests, rss=int(180 * MB + leak * requests + noise)))
    return run


def failed(findings: list[Finding]) -> set[str]:
    return {one.name for one in findings if not one.held}


def test_run_without_leaks_passes() -> None:
    """Noise and spikes are not a leak, and refusals while an upstream fails are not a fault."""
    assert failed(judge(samples(90), FINE, rests=(REST, REST), log="all is well")) == set()
    assert failed(judge(samples(1200), FINE, rests=(REST, REST), log="all is well")) == set()


@pytest.mark.parametrize(("seconds", "leak"), [(90, 20_000.0), (1200, 2000.0)])
def test_memory_leak_per_request_is_found(seconds: int, leak: float) -> None:
    """A short run finds a large leak, a longer one a small leak."""
    assert failed(judge(samples(seconds, leak=leak), FINE, rests=(REST, REST), log="")) == {"memory"}


@pytest.mark.parametrize(
    ("grown", "name"),
    [
        ({"fds": 60}, "file descriptors at rest"),
        ({"threads": 40}, "threads at rest"),
        ({"in_flight": 1.0}, "in flight at rest"),
        ({"in_flight": math.nan}, "in flight at rest"),
    ],
)
def test_resources_in_use_when_idle_fail(grown: dict[str, float], name: str) -> None:
    """Unused resources must be released."""
    after = replace(REST, **grown)  # type: ignore[arg-type]
    assert failed(judge(samples(90), FINE, rests=(REST, after), log="")) == {name}


@pytest.mark.parametrize(
    "outcomes",
    [
        FINE | {"asks": {"as expected": 100, "unexpected: 500": 1}},
        FINE | {"asks": {"as expected": 100, "hung": 1}},
        FINE | {"asks": {"refused: 503": 100}},
    ],
)
def test_outcomes_of_requests(outcomes: dict[str, dict[str, int]]) -> None:
    """One unexpected reply fails the run; so does a kind of request that never succeeded, because it was not tested."""
    assert failed(judge(samples(90), outcomes, rests=(REST, REST), log="")) == {"outcomes"}


def test_traceback_is_an_unexpected_error() -> None:
    """Even if no reply reported it."""
    assert failed(judge(samples(90), FINE, rests=(REST, REST), log="Traceback (most recent")) == {"log"}


def test_short_run_is_not_judged() -> None:
    """Too few samples fail the run."""
    assert failed(judge(samples(5), FINE, rests=(REST, REST), log="")) == {"samples"}


def test_quantiles_of_the_lag() -> None:
    """By upper edges, since an earlier scrape."""
    before = {0.001: 10.0, 0.01: 20.0, math.inf: 20.0}
    lags = {0.001: 10.0, 0.01: 29.0, math.inf: 30.0}
    assert quantile(lags, 0.5) == 0.01
    assert quantile(before, 0.5) == 0.001
    assert quantile(lags, 0.5, before) == 0.01
    assert quantile(lags, 1.0, before) == math.inf
    assert math.isnan(quantile(lags, 0.5, lags))
