"""Pieces of the report's page: numbers as people read them, cards, tables, figures, and the sentence at the top."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from app.core.artifact import Artifact, Thresholds
from app.offline.refit.splits import fixed_k

CSS = Path(__file__).with_name("report.css").read_text()

Cell = str | tuple[str, str]


def decimal(value: float | None, places: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:,.{places}f}"


def percent(value: float | None) -> str:
    """A share."""
    return "–" if value is None else f"{value * 100:.1f} %"


def with_interval(entry: Mapping[str, Any] | float | None, places: int = 3) -> tuple[str, str]:
    """A value, and the interval that belongs to it if there is one."""
    if not isinstance(entry, Mapping):
        return decimal(entry, places), ""
    if entry["low"] is None:
        return decimal(entry["value"], places), ""
    return decimal(entry["value"], places), f"[{decimal(entry['low'], places)}, {decimal(entry['high'], places)}]"


def cards(numbers: Sequence[tuple[str, str, tuple[str, str]]]) -> str:
    """Key numbers: a colour, a name, and the value with its interval."""
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="{kind}"><span>{escape(name)}</span><b>{value}</b><small>{spread}</small></div>'
            for kind, name, (value, spread) in numbers
        )
        + "</div>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table that scrolls on its own where the page is narrow. Cells must be escaped where they come from data."""
    titles = "".join(f'<th scope="col">{title}</th>' for title in head)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell) -> str:
    return cell if isinstance(cell, str) else f"{cell[0]} <small>{cell[1]}</small>"


def figure(svg: str, look: str) -> str:
    """A picture, and one sentence on what to look at."""
    return f"<figure>{svg}<figcaption>{look}</figcaption></figure>"


def matrix(cells: Mapping[str, Any], k: int) -> str:
    """The four ways in which a closed-book answer and one read from k passages can be right or wrong."""
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
    ks = (none, few, many)
    if artifact is not None:
        fit = artifact.policies["graded"]
        held = fit.certificate
        promise = held and (held.epsilon, held.delta, held.reference, held.n, held.bound)
        why, needed, fixed = fit.why_not, fit.labels_needed, fixed_k(fit.thresholds, ks)
        subject = f"Calibrator {artifact.name} {artifact.version}"
    else:
        entry = found["deploy"].get("policies", {}).get("graded")
        if entry is None:
            return escape(f"Nothing can be certified on this table: {found['deploy'].get('why_not')}.")
        held = entry["certificate"]
        promise = held and tuple(held[key] for key in ("epsilon", "delta", "reference", "n", "bound"))
        fixed = fixed_k(Thresholds(**entry["thresholds"]), ks)
        why, needed, subject = entry["why_not"], entry["labels_needed"], "The graded policy fitted on this table"
    more = f" About {needed:,} labelled groups would be needed for more." if needed else ""
    if not promise:
        return escape(f"{subject} is not certified: {why}.{more if str(needed) not in str(why) else ''}")
    epsilon, delta, reference, n, bound = promise
    if fixed is not None:
        return escape(
            f"{subject} is certified only as always-k{fixed}, which is no gate: no cheaper thresholds could be shown "
            f"to stay within {epsilon * 100:g} points of {reference} at {1 - delta:.0%} confidence (validation, "
            f"n = {n:,} groups).{more}"
        )
    return escape(
        f"{subject} is certified: with {1 - delta:.0%} confidence its accuracy is at most {epsilon * 100:g} points "
        f"below that of {reference} (validation, n = {n:,} groups; pointwise lower bound of the "
        f"difference at this step {bound:+.3f}).{more}"
    )
