"""What operators see: metrics, traces and log lines.

`api`, `wiring` and `cli` may import it.
"""

from typing import TYPE_CHECKING

from app.settings import groups

if TYPE_CHECKING:
    from app.telemetry.tracing import Tracing


def open_tracing(settings: groups.Server, version: str) -> "Tracing | None":
    """Traces of this version of the gateway; None if they are off."""
    if settings.traces == "off":
        return None
    # Imported here: an optional dependency, and slow to import.
    from app.telemetry.tracing import Tracing  # noqa: PLC0415

    return Tracing(version)
