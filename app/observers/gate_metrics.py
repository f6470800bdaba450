"""What Prometheus shows of the gate as it stands at the scrape: its calibrator, what replaces it, whether it pays."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from app.decision.breakeven import BreakEven, Estimate


@dataclass(frozen=True, slots=True)
class InForce:
    """Which calibrator decides (None: none does), and how many passages would be read without a gate."""

    version: str | None
    certified: bool
    reference: int
    revoked: bool = False


class GateMetrics(Collector):
    """Computed when asked for, so that nothing is shown that has long been otherwise; the unknown is absent."""

    def __init__(
        self, in_force: Callable[[], InForce], look: Callable[[], BreakEven], bypassed: Callable[[], bool]
    ) -> None:
        self._in_force = in_force
        self._look = look
        self._bypassed = bypassed

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without a sample, so that registering computes nothing."""
        yield from _families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What stands now, and what the window says."""
        calibrator, fallback, bypass, skip, even, ratio = _families()
        now, found = self._in_force(), self._look()
        certified = "revoked" if now.revoked else str(now.certified).lower()
        calibrator.add_metric((now.version or "none", certified), 1)
        fallback.add_metric((f"k{now.reference}",), 1)
        bypass.add_metric((), self._bypassed())
        _add(skip, (), found.skip_rate)
        for cost, view in found.costs.items():
            if view is not None:
                for reference, comparison in view.against.items():
                    _add(even, (cost, reference), comparison.break_even_skip)
                    _add(ratio, (cost, reference), comparison.gate_cost_ratio)
        yield from (calibrator, fallback, bypass, skip, even, ratio)


def _families() -> tuple[GaugeMetricFamily, ...]:
    return (
        GaugeMetricFamily(
            "fetchwise_calibrator_info",
            "1 for the calibrator in force; the version is `none` where none matches what runs. `certified` is true, "
            "false or revoked.",
            labels=("version", "certified"),
        ),
        GaugeMetricFamily("fetchwise_fallback_info", "1 for what would be read without a gate.", labels=("reference",)),
        GaugeMetricFamily("fetchwise_bypass", "1 while most questions bypass the gate because it loses, else 0."),
        GaugeMetricFamily("fetchwise_skip_ratio", "Share of gated questions in the window that read no passage."),
        GaugeMetricFamily(
            "fetchwise_break_even_skip_ratio",
            "Skip ratio from which gating is cheaper than always reading the reference; above 1 it never is.",
            labels=("cost", "reference"),
        ),
        GaugeMetricFamily(
            "fetchwise_gate_cost_ratio",
            "Cost of gating over that of always reading the reference; below 1 is a saving.",
            labels=("cost", "reference"),
        ),
    )


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], figure: Estimate) -> None:
    if figure.value is not None:
        family.add_metric(labels, figure.value)
