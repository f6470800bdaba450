"""Pieces of the report's page: numbers as people read them, cards, tables, figures, and the sentence at the top."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from app.decision.artifact import Artifact, Thresholds
from app.refit.ledger import fixed_k

CSS = """
:root{--bg:#fbfbfa;--card:#fff;--ink:#1c1d1f;--muted:#7a7f87;--grid:#e3e5e8;--accent:#0f766e;--none:#2563eb;--few:#c27803;
--many:#9333ea;--abstain:#64748b;--good:#d9f2e3;--bad:#fbe0de}
@media(prefers-color-scheme:dark){:root{--bg:#15171a;--card:#1d2024;--ink:#e8e9eb;--muted:#8e949d;--grid:#33373d;
--accent:#2dd4bf;--none:#6ea8fe;--few:#fbbf24;--many:#c084fc;--abstain:#94a3b8;--good:#17392a;--bad:#45201f}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:72rem;margin:0 auto;padding:1.5rem 1rem 4rem}h1{font-size:1.6rem;margin:0 0 .5rem}
h2{font-size:1.2rem;margin:2.5rem 0 .75rem;border-top:1px solid var(--grid);padding-top:1.25rem}
h3{font-size:1rem;margin:1.25rem 0 .5rem}.lead{font-size:1.15rem;max-width:60rem;margin:.25rem 0}
.basis,.legend,figcaption,small,caption{color:var(--muted);font-size:.875rem}.legend span{margin-right:1rem}
.legend span{color:var(--ink)}.legend .dim{color:var(--muted)}.legend .accent{color:var(--accent)}
.legend .none{color:var(--none)}.legend .few{color:var(--few)}.legend .many{color:var(--many)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(10.5rem,1fr));gap:.75rem;margin:1.25rem 0 0}
.cards div{background:var(--card);border:1px solid var(--grid);border-top:3px solid var(--muted);border-radius:6px;
padding:.6rem .75rem}.cards .none{border-top-color:var(--none)}.cards .few{border-top-color:var(--few)}
.cards .many{border-top-color:var(--many)}.cards .abstain{border-top-color:var(--abstain)}
.cards b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}.cards span{font-size:.85rem}
.row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(22rem,100%),1fr));gap:1rem;align-items:start}
.three{grid-template-columns:repeat(auto-fit,minmax(min(18rem,100%),1fr))}
figure{margin:0;background:var(--card);border:1px solid var(--grid);border-radius:6px;padding:.75rem}
figure svg{width:100%;height:auto;max-width:40rem;display:block;margin:0 auto}figcaption{margin-top:.5rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}
td+td{white-space:nowrap}thead th{font-weight:600}.matrix td,.matrix th{text-align:center;padding:.8rem}
.matrix caption{text-align:left;margin-bottom:.4rem}
.matrix .good{background:var(--good)}.matrix .bad{background:var(--bad)}
"""

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
