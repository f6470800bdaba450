"""Whether the run passed: pure arithmetic on its samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import theilslopes

from bench.soak.watching import MB, Sample

# What the heap may grow by in a run of any length: a moment of load enlarges it for good. And what each
# request may leave behind on top: the order of a dictionary entry, which only a long run can distinguish from noise.
ALLOWED_MB = 48.0
ALLOWED_BYTES_PER_REQUEST = 100.0
# The decision log's pool of connections fills up to its fixed size, two files each; a leak keeps growing.
ALLOWED_FDS = 16
# asyncio's thread pool fills up to its fixed size.
ALLOWED_THREADS = 8
# Fewer samples than this give no slope.
_FEWEST = 15


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of the run, and its result."""

    name: str
    held: bool
    said: str


def judge(
    samples: Sequence[Sample],
    outcomes: Mapping[str, Mapping[str, int]],
    *,
    rests: tuple[Sample, Sample],
    log: str,
) -> list[Finding]:
    """Judge the samples between two idle periods, the first of them after the warm-up."""
    before, after = rests
    between = [sample for sample in samples if sample.at >= before.at]
    if len(between) < _FEWEST:
        return [Finding("samples", held=False, said=f"{len(between)} samples after the warm-up are too few")]
    return [
        _memory(between),
        _flat("file descriptors at rest", before.fds, after.fds, ALLOWED_FDS),
        _flat("threads at rest", before.threads, after.threads, ALLOWED_THREADS),
        Finding("in flight at rest", held=before.in_flight == after.in_flight == 0, said=f"{after.in_flight:g}"),
        _outcomes(outcomes),
        Finding("log", held="Traceback" not in log, said="no traceback" if "Traceback" not in log else "a traceback"),
    ]


def _memory(samples: Sequence[Sample]) -> Finding:
    """By the median of all slopes between two samples, which is robust against spikes."""
    slope = theilslopes([one.rss for one in samples], [one.at for one in samples]).slope
    grown = float(slope) * (samples[-1].at - samples[0].at)
    requests = samples[-1].requests - samples[0].requests
    allowed = ALLOWED_MB * MB + ALLOWED_BYTES_PER_REQUEST * requests
    per_thousand = grown / MB / max(requests, 1) * 1000
    return Finding(
        "memory",
        held=grown <= allowed,
        said=f"{grown / MB:+.1f} MB after the warm-up ({per_thousand:+.2f} MB a 1,000 requests), "
        f"{allowed / MB:.1f} MB allowed",
    )


def _flat(name: str, before: int, after: int, allowed: int) -> Finding:
    return Finding(name, held=after - before <= allowed, said=f"{before}, then {after}; {allowed} more are allowed")


def _outcomes(outcomes: Mapping[str, Mapping[str, int]]) -> Finding:
    """No unexpected error, no request that hung, and of every kind some that went as they should."""
    bad = {
        f"{kind}: {outcome}": count
        for kind, each in outcomes.items()
        for outcome, count in each.items()
        if outcome.startswith(("unexpected", "hung"))
    }
    never = [kind for kind, each in outcomes.items() if not each.get("as expected")]
    total = sum(count for each in outcomes.values() for count in each.values())
    said = f"{total} requests"
    if bad:
        said += f"; {bad}"
    if never:
        said += f"; never as they should: {', '.join(never)}"
    return Finding("outcomes", held=not bad and not never, said=said)
