"""The Grafana dashboard as code: `python -m deploy.grafana.dashboard` writes dashboards/fetchwise.json."""

import json
import sys
import warnings
from itertools import count
from pathlib import Path

from deploy.grafana import rows
from deploy.grafana.panels import SOURCE

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, VariableRefresh

WRITTEN = Path(__file__).parent / "dashboards" / "fetchwise.json"
ROWS = {
    "Does gating pay?": rows.does_it_pay,
    "What is decided?": rows.what_is_decided,
    "How long does it take?": rows.how_long_it_takes,
    "Is everything up?": rows.is_everything_up,
    "vLLM": rows.how_is_vllm,
}


def _jobs(name: str, label: str, metric: str) -> QueryVariable:
    variable = QueryVariable(name).label(label).datasource(SOURCE).query(f"label_values({metric}, job)")
    return variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def build() -> str:
    """The dashboard as Grafana reads it."""
    board = (
        Dashboard("Fetchwise")
        .uid("fetchwise")
        .description("What the gateway decides, what that costs, and whether it pays.")
        .tags(["fetchwise"])
        .time("now-6h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_jobs("job", "Gateway", "fetchwise_in_flight"))
        .with_variable(_jobs("vllm", "vLLM", "vllm:num_requests_running"))
    )
    ids = count(1)
    for title, panels in ROWS.items():
        board.with_row(Row(title).id(next(ids)))
        for panel in panels():
            board.with_panel(panel.id(next(ids)))
    return json.dumps(board.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else WRITTEN).write_text(build())
