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
    from grafana_foundation_sdk.builders.dashboard import (
        AnnotationQuery,
        Dashboard,
        DatasourceVariable,
        QueryVariable,
        Row,
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, VariableRefresh

WRITTEN = Path(__file__).parent / "dashboards" / "fetchwise.json"
ROWS = {
    "Is it broken?": rows.is_it_broken,
    "Does gating pay?": rows.does_it_pay,
    "What is decided?": rows.what_is_decided,
    "How long does it take?": rows.how_long_it_takes,
    "Is everything up?": rows.is_everything_up,
    "vLLM": rows.how_is_vllm,
}


def _jobs(name: str, label: str, metric: str) -> QueryVariable:
    variable = QueryVariable(name).label(label).datasource(SOURCE).query(f"label_values({metric}, job)")
    return variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def _instances() -> QueryVariable:
    query = 'label_values(fetchwise_in_flight{job="$job"}, instance)'
    variable = QueryVariable("instance").label("Instance").datasource(SOURCE).query(query).multi(True)  # noqa: FBT003
    return variable.include_all(True).all_value(".+").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)  # noqa: FBT003


def _mark(name: str, expr: str, title: str, colour: str) -> AnnotationQuery:
    """Vertical lines where an expression has a value."""
    mark = AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour)  # noqa: FBT003
    return mark.expr(expr).title_format(title).step("60s")


def build() -> str:
    """The dashboard as Grafana reads it."""
    board = (
        Dashboard("Fetchwise")
        .uid("fetchwise")
        .description("Whether the gateway works, what it decides, what that costs, and whether it pays.")
        .tags(["fetchwise"])
        .time("now-6h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_jobs("job", "Gateway", "fetchwise_in_flight"))
        .with_variable(_instances())
        .annotation(_mark("Deployments", rows.NEW_VERSION, "version {{version}} on {{instance}}", "blue"))
        .annotation(_mark("Starts", rows.STARTED, "{{instance}} started", "orange").use_value_for_time(True))  # noqa: FBT003
        .annotation(_mark("Calibrators", rows.NEW_CALIBRATOR, "serves {{version}} ({{status}})", "purple"))
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
