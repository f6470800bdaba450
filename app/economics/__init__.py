"""What gating costs and saves: the window of recent traffic, the break-even point, the bypass.

Knows no upstream and no storage. `calibrators` and the layers above it may import it.
"""

from collections.abc import Callable, Sequence

from app.core.artifact import CalibratorStatus
from app.core.cost import Objective
from app.economics.bypass import BypassWatch
from app.economics.view import TrafficView
from app.economics.window import TrafficWindow
from app.errors import ConfigurationError
from app.settings import groups


def open_economics(
    settings: groups.Economics, window: TrafficWindow, *, ks: Sequence[int], status: Callable[[], CalibratorStatus]
) -> tuple[TrafficView, BypassWatch]:
    """The view of the traffic, and what decides by it whether questions bypass the gate."""
    if settings.objective is Objective.MONEY and settings.tariff.is_free:
        raise ConfigurationError("FETCHWISE_OBJECTIVE=money needs prices: set FETCHWISE_TARIFF_PROMPT_TOKEN and others")

    def deciding() -> str | None:
        found = status()
        return found.version if found.matches else None

    traffic = TrafficView(
        window, seconds=settings.window_s, reference=lambda: status().fallback_k, tariff=settings.tariff, ks=ks
    )
    bypass = BypassWatch(traffic, objective=settings.objective, calibrator=deciding, enabled=settings.bypass == "auto")
    return traffic, bypass
