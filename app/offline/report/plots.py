"""The plots of the report, as inline SVG with the colours of the page, for light and dark mode.

Plots are drawn in placeholder colours, which become CSS variables. Each k has one colour on the whole page.
"""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

# Placeholder colours, and the CSS variable that replaces each.
VARIABLES = {
    "#010101": "ink",
    "#020202": "muted",
    "#030303": "grid",
    "#040404": "accent",
    "#050505": "none",
    "#060606": "few",
    "#070707": "many",
}
_COLOUR = {name: placeholder for placeholder, name in VARIABLES.items()}
INK, MUTED, GRID, ACCENT = (_COLOUR[name] for name in ("ink", "muted", "grid", "accent"))
# For reading no passage, few, and many.
ACTIONS = tuple(_COLOUR[name] for name in ("none", "few", "many"))
# The confidences that are compared, in words.
CONFIDENCES = {
    "proper": "confidence of the answer given",
    "naive": "naive: always p0",
    "random": "random",
    "oracle": "oracle",
}
_LONGEST_LABEL = 40
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    # A dollar sign is a character of the data.
    "text.parse_math": False,
    "font.size": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.labelcolor": INK,
}


def plain(text: str) -> str:
    """Text from the data as a label: one short line of characters that can be printed."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return line if len(line) <= _LONGEST_LABEL else f"{line[:_LONGEST_LABEL]}…"


def to_svg(figure: Figure, name: str, alt: str) -> str:
    """One `<svg>` that scales with its column; its ids are unique on the page."""
    out = io.StringIO()
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        # The browser's fonts show what matplotlib's font lacks: the text stays text.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    for placeholder, variable in VARIABLES.items():
        svg = svg.replace(placeholder, f"var(--{variable})")
    svg = svg.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1)


def _axes(width: float, height: float, heights: Sequence[float] = (1.0,)) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    return figure, [row[0] for row in grid]


def _legend(figure: Figure, columns: int) -> None:
    """Put the legend below the axes."""
    figure.legend(loc="outside lower center", ncols=columns)


def _percent(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f} %"))


@mpl.rc_context(_STYLE)
def reliability(bins: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """The share right by predicted probability, with Wilson intervals, above the number of questions in each bin."""
    figure, (top, low) = _axes(4.4, 4.2, (3.0, 1.0))
    top.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    p, accuracy = [b["p"] for b in bins], [b["accuracy"]["value"] for b in bins]
    reach = [[abs(b["accuracy"]["value"] - b["accuracy"][end]) for b in bins] for end in ("low", "high")]
    top.errorbar(p, accuracy, yerr=reach, color=ACCENT, marker="o", markersize=4, linewidth=1.5, elinewidth=1)
    top.set(ylim=(0, 1), xlim=(0, 1), ylabel="share right", title=title)
    counts = [b["n"] for b in bins]
    low.bar([b["low"] + 0.05 for b in bins], counts, width=0.09, color=MUTED)
    for b in bins:
        low.annotate(str(b["n"]), (b["low"] + 0.05, b["n"]), (0, 2), textcoords="offset points", ha="center", size=8)
    low.set(
        xlim=(0, 1), ylim=(0, max(counts, default=1) * 1.35), xlabel="probability of being right", ylabel="questions"
    )
    low.grid(visible=False)
    low.set_yticks([])
    return figure


@mpl.rc_context(_STYLE)
def frontier(
    curves: Mapping[str, Any],
    axis: str,
    ks: Sequence[int],
    fixed: Mapping[str, float],
    point: tuple[float, float] | None,
) -> Figure:
    """Accuracy by budget: graded, binary, random, oracle, and every fixed k."""
    figure, (plot,) = _axes(3.8, 3.4)
    x = curves["x"]
    plot.plot(x, curves["oracle"], color=MUTED, linewidth=0.8, label="oracle (binary)")
    plot.plot(x, curves[axis], color=ACCENT, linewidth=2, label="graded")
    plot.plot(x, curves["binary"], color=INK, linewidth=1.2, linestyle="--", label="binary")
    few, many = ks[1:]
    plot.plot([0, 1], [fixed["k0"], fixed[f"k{many}"]], color=MUTED, linewidth=1, linestyle=":", label="random")
    places = (0.0, {"full": 0.0, "call": 1.0, "passage": few / many}[axis], 1.0)
    for number, (k, place, colour) in enumerate(zip(ks, places, ACTIONS, strict=True)):
        plot.plot(place, fixed[f"k{k}"], "o", color=colour, markersize=7, clip_on=False, zorder=5 - number / 10)
    if point is not None:
        plot.plot(*point, "D", color=INK, markersize=6, zorder=6, label="operating point")
    label = {
        "full": f"questions that read {many}",
        "call": "questions that retrieve",
        "passage": f"passages read, of {many} a question",
    }
    plot.set(xlim=(0, 1), xlabel=label[axis], ylabel="accuracy", title=f"{axis} axis")
    _percent(plot.xaxis)
    plot.margins(y=0.12)
    return figure


@mpl.rc_context(_STYLE)
def risk(curves: Mapping[str, Sequence[Sequence[float]]], error: float) -> Figure:
    """The error among answered by coverage."""
    figure, (plot,) = _axes(5.2, 3.4)
    styles = {"naive": (INK, "--"), "proper": (ACCENT, "-"), "oracle": (MUTED, "-")}
    for name, (colour, line) in styles.items():
        points = np.array(curves[name])
        plot.plot(points[:, 0], points[:, 1], color=colour, linestyle=line, linewidth=1.6, label=CONFIDENCES[name])
    plot.axhline(error, color=MUTED, linestyle=":", linewidth=1, label="random")
    for coverage in (0.8, 0.9):
        plot.axvline(coverage, color=GRID, linewidth=1)
    plot.set(xlim=(0, 1), ylim=(0, None), xlabel="coverage: share of questions answered", ylabel="error among answered")
    _percent(plot.xaxis)
    _legend(figure, 2)
    return figure


@mpl.rc_context(_STYLE)
def histogram(right: Sequence[int], wrong: Sequence[int], ks: Sequence[int], tau0: float, tau1: float) -> Figure:
    """The distribution of p0, and how many passages each range of it reads."""
    figure, (plot,) = _axes(5.2, 3.2)
    bars = len(right)
    edges = (np.arange(bars) + 0.5) / bars
    plot.bar(edges, right, width=0.9 / bars, color=ACCENT, label="closed-book right")
    plot.bar(edges, wrong, bottom=right, width=0.9 / bars, color=MUTED, label="closed-book wrong")
    top = max(np.add(right, wrong).max(), 1) * 1.25
    low, high = min(tau1, 1.0), min(tau0, 1.0)
    spans = ((high, 1.0), (low, high), (0.0, low))
    for k, (start, end), colour in zip(ks, spans, ACTIONS, strict=True):
        if end > start:
            plot.axvspan(start, end, color=colour, alpha=0.13, linewidth=0)
            if end - start > 0.03:
                place = ((start + end) / 2, top * 0.94)
                plot.annotate(f"k{k}", place, ha="center", va="center", color=colour, weight="bold")
    for tau in {low, high} - {0.0, 1.0}:
        plot.axvline(tau, color=INK, linewidth=1)
    plot.set(
        xlim=(0, 1), ylim=(0, top), xlabel="p0: probability that the closed-book answer is right", ylabel="questions"
    )
    plot.grid(visible=False, axis="x")
    _legend(figure, 2)
    return figure


def _interval_rows(plot: Axes, rows: Sequence[Mapping[str, Any]], offset: float, style: Mapping[str, Any]) -> None:
    values = [np.nan if row["value"] is None else row["value"] for row in rows]
    reach = [
        [0.0 if row[end] is None or row["value"] is None else abs(row["value"] - row[end]) for row in rows]
        for end in ("low", "high")
    ]
    places = np.arange(len(rows)) + offset
    plot.errorbar(values, places, xerr=reach, linestyle="none", elinewidth=1.2, markersize=5, **style)


@mpl.rc_context(_STYLE)
def buckets(rows: Sequence[Mapping[str, Any]], key: str, ks: Sequence[int]) -> Figure:
    """Accuracy of each fixed k and of the gate, and the share that the gate skips, in each bucket."""
    figure, (top, low) = _axes(5.6, 1.9 + 0.62 * len(rows), (1.6 * len(rows) + 1.0, len(rows) + 1.0))
    series = [*((f"k{k}", colour, "o") for k, colour in zip(ks, ACTIONS, strict=True)), ("gate", INK, "D")]
    for number, (name, colour, marker) in enumerate(series):
        found = [row["accuracy"][name] for row in rows]
        _interval_rows(top, found, (number - 1.5) * 0.17, {"color": colour, "marker": marker, "label": name})
    _interval_rows(low, [row["skip"] for row in rows], 0.0, {"color": ACTIONS[0], "marker": "s"})
    labels = [f"{plain(str(row['bucket']))} ({row['groups']})" for row in rows]
    for plot, title in ((top, f"accuracy by {key} (groups)"), (low, "share answered closed-book by the gate")):
        plot.set_yticks(range(len(rows)), labels)
        plot.set_ylim(len(rows) - 0.5, -0.5)
        plot.set(xlim=(0, 1), title=title)
        plot.grid(visible=False, axis="y")
        _percent(plot.xaxis)
    _legend(figure, 4)
    return figure


@mpl.rc_context(_STYLE)
def break_even(regime: Mapping[str, Any] | None, reading: str, skip: float) -> Figure:
    """The skip rate from which a gate pays, by the cost of retrieval relative to reading."""
    figure, (plot,) = _axes(5.2, 3.4)
    x = np.linspace(0.0, 2.0, 101)
    for probe in (0.25, 0.5, 0.75, 1.0):
        y = probe / (1.0 + x)
        plot.plot(x, y, color=MUTED, linewidth=0.8)
        plot.annotate(f"c_cb = {probe:g} c_ob", (2.0, y[-1]), (4, -3), textcoords="offset points", size=8, color=MUTED)
    if regime is not None:
        probe = regime["c_cb"]["value"] / regime[reading]["value"]
        plot.plot(x, probe / (1.0 + x), color=ACCENT, linewidth=2, label="this table's probe")
        plot.plot(
            0.0, probe, "D", color=ACCENT, markersize=7, clip_on=False, label="as measured, c_ob includes retrieval"
        )
    plot.axhline(skip, color=ACTIONS[0], linewidth=1.4, label=f"skipped at the operating point: {skip:.0%}")
    plot.set(xlim=(0, 2), xlabel="cost of retrieving over cost of reading, c_ret / c_ob", ylabel="break-even skip rate")
    plot.set_ylim(0.0, 1.15 if regime is None else max(1.15, 1.1 * regime["c_cb"]["value"] / regime[reading]["value"]))
    _percent(plot.yaxis)
    _legend(figure, 1)
    return figure


@mpl.rc_context(_STYLE)
def sizes(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Held-out calibration error by number of groups fitted on."""
    figure, (plot,) = _axes(5.2, 3.2)
    for method, colour, marker in (("logistic", ACCENT, "o"), ("isotonic", INK, "s")):
        mine = [row for row in rows if row["method"] == method]
        x, mean = [row["groups"] for row in mine], np.array([row["ece"]["mean"] for row in mine])
        spread = np.array([row["ece"]["deviation"] for row in mine])
        plot.plot(x, mean, color=colour, marker=marker, markersize=4, label=method)
        plot.fill_between(x, np.maximum(mean - spread, 0.0), mean + spread, color=colour, alpha=0.15, linewidth=0)
    fitted = sorted({row["groups"] for row in rows})
    # The last one is the size of the table, and may be too close to the one before.
    ticks = [size for size, after in zip(fitted, [*fitted[1:], np.inf], strict=True) if after >= 1.5 * size]
    plot.set_xscale("log")
    plot.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    plot.minorticks_off()
    plot.set(ylim=(0, None), xlabel="groups fitted on", ylabel="held-out ECE")
    _legend(figure, 2)
    return figure


@mpl.rc_context(_STYLE)
def signals(found: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The area under each signal's frontier: binary, and graded on the passage axis."""
    names = sorted(found, key=lambda name: -found[name]["frontier"]["binary"])
    figure, (plot,) = _axes(5.6, 1.4 + 0.34 * len(names))
    for axis, colour, marker, offset in (("binary", INK, "o", -0.13), ("passage", ACCENT, "D", 0.13)):
        rows = [found[name]["frontier"]["intervals"][axis] for name in names]
        label = "binary" if axis == "binary" else "graded, passage axis"
        _interval_rows(plot, rows, offset, {"color": colour, "marker": marker, "label": label})
    marks = found[names[0]]["frontier"]
    for mark in ("random", "oracle"):
        plot.axvline(marks[mark], color=MUTED, linewidth=1, linestyle=":")
        plot.annotate(mark, (marks[mark], len(names) - 0.55), (3, 0), textcoords="offset points", size=8, color=MUTED)
    plot.set_yticks(range(len(names)), names)
    plot.set_ylim(len(names) - 0.4, -0.6)
    plot.set(xlabel="area under the frontier")
    plot.grid(visible=False, axis="y")
    _legend(figure, 2)
    return figure
