"""The kinds of dashboard panels."""

import re
import warnings
from string import ascii_uppercase
from typing import NamedTuple, TypeAlias

with warnings.catch_warnings():
    # By default the library writes the schema of Grafana 13; this one works with 10 and later.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, timeseries
    from grafana_foundation_sdk.builders.prometheus import Dataquery
    from grafana_foundation_sdk.models.common import (
        BigValueTextMode,
        DataSourceRef,
        GraphThresholdsStyleMode,
        LegendDisplayMode,
        LegendPlacement,
        SortOrder,
        StackingMode,
        TooltipDisplayMode,
    )
    from grafana_foundation_sdk.models.dashboard import Threshold, ThresholdsMode
    from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef("prometheus", "$datasource")
SHARE, RATIO, SECONDS, COUNT, PER_SECOND = "percentunit", "none", "s", "short", "reqps"
Panel: TypeAlias = timeseries.Panel | stat.Panel | heatmap.Panel


class Query(NamedTuple):
    """One expression, and the legend of its series."""

    expr: str
    legend: str


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    stacked: bool = False,
    limit: float | None = None,
    highest: float | None = None,
) -> timeseries.Panel:
    """Lines over time; `limit` is drawn where a figure turns from good to bad."""
    panel = timeseries.Panel().title(title).description(description).unit(unit).datasource(SOURCE).span(8).height(8)
    legend = common.VizLegendOptions().show_legend(True)  # noqa: FBT003 - the library's own signature
    panel.legend(legend.display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM))
    panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    for letter, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(_target(query, letter))
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    if limit is not None:
        line = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.LINE)
        panel.thresholds(_red_from(limit)).thresholds_style(line)
    if highest is not None:
        panel.min(0).max(highest)
    return panel


def figure(title: str, description: str, unit: str, query: Query, *, red_from: float | None = None) -> stat.Panel:
    """One current number."""
    panel = stat.Panel().title(title).description(description).unit(unit).datasource(SOURCE).span(4).height(4)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return panel.thresholds(_red_from(red_from)).with_target(_target(query))


def words(title: str, description: str, query: Query) -> stat.Panel:
    """Labels of the current series, without a number."""
    return figure(title, description, RATIO, query).text_mode(BigValueTextMode.NAME)


def buckets(title: str, description: str, expr: str) -> heatmap.Panel:
    """The buckets of a histogram of shares, over time."""
    panel = heatmap.Panel().title(title).description(description).datasource(SOURCE).span(8).height(8)
    panel.y_axis(heatmap.YAxisConfig().unit(SHARE))
    # Every field is given: the library writes a missing one as zero, not as Grafana's default.
    colours = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64)
    panel.color(colours.exponent(0.5).fill("dark-blue"))
    return panel.with_target(_target(Query(expr, "{{le}}")).format(PromQueryFormat.HEATMAP))


def _target(query: Query, letter: str = "A") -> Dataquery:
    # Series of single gateways follow the variable; rules add up the gateways of a job.
    expr = re.sub(r'\b((?:fetchwise|process)_\w+|up)\{job="\$job"', r'\1{job="$job",instance=~"$instance"', query.expr)
    return Dataquery().expr(expr).legend_format(query.legend).datasource(SOURCE).ref_id(letter)


def _red_from(limit: float | None) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color="green")]
    if limit is not None:
        steps.append(Threshold(value=limit, color="red"))
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
