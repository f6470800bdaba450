"""Building blocks of the report: formatted numbers, cards, tables, figures, and the sentence at the top."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from app.core.artifact import Artifact, LabelsNeeded, Thresholds
from app.offline.evaluate.deploy import describe
from app.offline.refit.splits import fixed_k
from app.offline.report.plots import to_svg

_CSS = Path(__file__).with_name("report.css").read_text()

Cell = str | tuple[str, str]


def decimal(value: float | None, places: int = 3) -> str:
    """A number, or a dash if there is none."""
    return "–" if value is None else f"{value:,.{places}f}"


def percent(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{value * 100:.1f} %"


def with_interval(entry: Mapping[str, Any] | float | None, places: int = 3) -> tuple[str, str]:
    """A value, and its interval if it has one."""
    if not isinstance(entry, Mapping):
        return decimal(entry, places), ""
    if entry["low"] is None:
        return decimal(entry["value"], places), ""
    return decimal(entry["value"], places), f"[{decimal(entry['low'], places)}, {decimal(entry['high'], places)}]"


def page(title: str, *sections: str) -> str:
    """A whole HTML document that needs no other file."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_CSS}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{''.join(sections)}</main></body></html>\n"
    )


def point_name(point: str) -> str:
    """An operating point in words."""
    names = {"artifact": "this artifact", "served": "served after a refit"}
    return names.get(point, f"{point.removeprefix('matched_')}, by the published rule")


def legend(few: int, many: int) -> str:
    """The legend of the frontiers."""
    return (
        '<p class="legend"><span class="accent">━ graded</span> <span>╍ binary</span> '
        '<span class="dim">┈ random</span> <span class="dim">─ oracle (binary)</span> '
        '<span>◆ operating point</span> <span class="none">● always k0</span> '
        f'<span class="few">● always k{few}</span> <span class="many">● always k{many}</span></p>'
    )


def section(title: str, *parts: str) -> str:
    """A part of the page under a heading."""
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>"


def columns(*parts: str, kind: str = "row") -> str:
    """Parts beside each other if the page is wide enough."""
    return f'<div class="{kind}">{"".join(parts)}</div>'


def cards(numbers: Sequence[tuple[str, str, tuple[str, str]]]) -> str:
    """Key numbers: a colour, a name, and the value with its interval."""
    each = (
        f'<div class="{kind}"><span>{escape(name)}</span><b>{value}</b><small>{spread}</small></div>'
        for kind, name, (value, spread) in numbers
    )
    return columns(*each, kind="cards")


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], title: str = "") -> str:
    """A table that scrolls by itself on a narrow page. The caller escapes cells that come from data."""
    above = f"<h3>{title}</h3>" if title else ""
    titles = "".join(f'<th scope="col">{title}</th>' for title in head)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'{above}<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell) -> str:
    return cell if isinstance(cell, str) else f"{cell[0]} <small>{cell[1]}</small>"


def picture(figure: Figure, name: str, alt: str, caption: str) -> str:
    """A figure with its caption: what to look at."""
    return f"<figure>{to_svg(figure, name, alt)}<figcaption>{caption}</figcaption></figure>"


def matrix(cells: Mapping[str, Any], k: int) -> str:
    """The four ways in which the closed-book answer and the one from k passages can be right or wrong."""
    cell = {
        key: f"<td class='{kind}'><strong>{percent(cells[key]['share']['value'])}</strong>"
        f"<br>{word}<br><small>{cells[key]['n']} questions</small></td>"
        for key, kind, word in (
            (f"y0=1,y{k}=1", "plain", "right both ways"),
            (f"y0=1,y{k}=0", "bad", "harmed"),
            (f"y0=0,y{k}=1", "good", "rescued"),
            (f"y0=0,y{k}=0", "plain", "wrong both ways"),
        )
    }
    return (
        f"<table class='matrix'><caption>What {k} passages do to the closed-book answer</caption>"
        f"<tr><td></td><th scope='col'>k={k}: right</th><th scope='col'>k={k}: wrong</th></tr>"
        f"<tr><th scope='row'>closed-book: right</th>{cell[f'y0=1,y{k}=1']}{cell[f'y0=1,y{k}=0']}</tr>"
        f"<tr><th scope='row'>closed-book: wrong</th>{cell[f'y0=0,y{k}=1']}{cell[f'y0=0,y{k}=0']}</tr></table>"
    )


def certificate(found: Mapping[str, Any], artifact: Artifact | None) -> str:
    """What is guaranteed, in one sentence; or why nothing is, and how many labels it would take."""
    none, few, many = found["ks"]
    if artifact is not None:
        entry = describe(artifact.ladder or artifact.policies["graded"])
        subject = f"Calibrator {artifact.name} {artifact.version}"
    elif "policies" in found["deploy"]:
        entry, subject = found["deploy"]["policies"]["graded"], "The graded policy fitted on this table"
    else:
        return escape(f"Nothing can be certified on this table: {found['deploy'].get('unavailable_reason')}.")
    promise, why, needed = entry["certificate"], entry["uncertified_reason"], entry["labels_needed"]
    more = f" More takes {LabelsNeeded(**needed).text}." if needed else ""
    if not promise:
        return escape(f"{subject} is not certified: {why}.")
    points, confidence = f"{promise['epsilon'] * 100:g} points", f"{1 - promise['delta']:.0%} confidence"
    basis = f"n = {promise['n']:,} groups, {promise['labels']:,} labelled rows; {promise['population']}"
    # The ladder has no thresholds.
    fixed = fixed_k(Thresholds(**entry["thresholds"]), (none, few, many)) if entry["thresholds"] else None
    if fixed is not None:
        return escape(
            f"{subject} is certified only as always-k{fixed}, which saves nothing: no cheaper thresholds could be "
            f"shown to stay within {points} of {promise['reference']} at {confidence} ({basis}).{more}"
        )
    if not promise["epsilon"]:
        return escape(
            f"{subject} is certified: with {confidence} its accuracy is above that of {promise['reference']} by at "
            f"least {promise['bound']:.3f} ({basis}).{more}"
        )
    return escape(
        f"{subject} is certified: with {confidence} its accuracy is at most {points} below that of "
        f"{promise['reference']} ({basis}; pointwise lower bound of the difference {promise['bound']:+.3f}).{more}"
    )
