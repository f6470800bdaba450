"""One self-contained page about an outcome table and what was fitted on it: for people, with nothing fetched.

`evaluate` computes, `plots` draws, and this module says in plain words what to look at.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from app.core.artifact import Artifact
from app.offline.evaluate.evaluate import evaluate
from app.offline.evaluate.frontier import AXES
from app.offline.refit.fit import predict_many
from app.offline.report import plots
from app.offline.report.pages import (
    CSS,
    Cell,
    cards,
    certificate,
    decimal,
    figure,
    matrix,
    percent,
    table,
    with_interval,
)
from app.offline.table import Outcomes

_BARS = 20


def report(outcomes: Outcomes, *, artifact: Artifact | None = None, evaluation: Mapping[str, Any] | None = None) -> str:
    """The page as HTML. Without an evaluation the table is evaluated here, with the artifact's thresholds if given."""
    found = evaluate(outcomes, artifact=artifact) if evaluation is None else evaluation
    title = f"Fetchwise report: {artifact.name} {artifact.version}" if artifact else "Fetchwise report"
    sections = [
        _summary(found, artifact),
        _calibration(found),
        _gate(found, outcomes, artifact),
        _frontiers(found),
        _selective(found),
        _harm(found),
        *_audits(found),
        _cost(found),
        _signals(found),
        _small_print(found),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{''.join(sections)}</main></body></html>\n"
    )


def _point(found: Mapping[str, Any]) -> dict[str, Any]:
    """The operating point that the page describes."""
    name = found["selective"]["point"]
    return {"name": name, **found["deploy"]["whole_table"][name]}


def _summary(found: Mapping[str, Any], artifact: Artifact | None) -> str:
    point, main = _point(found), found["signals"][found["main"]]
    _, few, many = found["ks"]
    harm, selective = found["harm"][f"k{many}"], found["selective"]
    ms = found["cost"]["ms"]
    numbers = [
        ("none", "closed-book", with_interval(found["accuracy_intervals"]["k0"])),
        ("few", f"always k={few}", with_interval(found["accuracy_intervals"][f"k{few}"])),
        ("many", f"always k={many}", with_interval(found["accuracy_intervals"][f"k{many}"])),
        ("", f"gate ({point['name']})", with_interval(point["accuracy"])),
        ("", f"passages read, of always k={many}", (percent(point["shares"]["passage"]), "")),
        ("", "retrieval calls", (percent(point["shares"]["call"]), "")),
        ("", f"ECE of {found['main']}", (decimal(main["ece"]), f"raw {decimal(main['ece_raw'])}")),
        ("", f"right closed-book, wrong at k={many}", with_interval(harm["harm_given_right"])),
        ("abstain", "accuracy at 80 % coverage", with_interval(selective["proper"]["accuracy_at_80"])),
        ("", "break-even skip rate", with_interval(ms["break_even_skip"]) if ms else ("not measured", "no timings")),
    ]
    lead = certificate(found, artifact)
    basis = (
        f"{found['n']:,} questions in {found['groups']:,} groups; labels {escape(found['labels'])}. "
        f"Intervals: {escape(found['protocol']['intervals'])}. Unless a split is named, figures are "
        f"{escape(found['protocol']['diagnostic'])}."
    )
    return f'<p class="lead">{lead}</p><p class="basis">{basis}</p>{cards(numbers)}'


def _calibration(found: Mapping[str, Any]) -> str:
    curves, main, n = found["curves"]["reliability"], escape(found["main"]), found["n"]
    raw, calibrated = (
        figure(
            plots.to_svg(
                plots.reliability(curves[kind], title), f"reliability-{kind}", f"Reliability diagram, {title}"
            ),
            look,
        )
        for kind, title, look in (
            ("raw", f"{main}, min-max scaled", f"A raw score is no probability: off the diagonal. n = {n}."),
            ("calibrated", f"{main}, calibrated", f"On the diagonal, 70 % sure means right 70 % of the time. n = {n}."),
        )
    )
    rows = [
        [name, *(with_interval(entry[metric]) for metric in ("auroc", "ece", "brier", "nll"))]
        for name, entry in found["methods"].items()
        if name != "signal"
    ]
    sizes = figure(
        plots.to_svg(plots.sizes(found["sizes"]["rows"]), "sizes", "Calibration error against labels"),
        f"How many labels calibration needs: mean and standard deviation of {found['sizes']['repeats']} draws, "
        f"each judged on {found['sizes']['held_out_groups']} other groups.",
    )
    return (
        f'<section><h2>Calibration</h2><div class="row">{raw}{calibrated}{sizes}</div>'
        f"<h3>Methods on {main}, out-of-fold, n = {n}</h3>"
        f"{table(['method', 'AUROC', 'ECE', 'Brier', 'NLL'], rows)}</section>"
    )


def _gate(found: Mapping[str, Any], outcomes: Outcomes, artifact: Artifact | None) -> str:
    point, bars = _point(found), found["curves"]["histogram"]
    thresholds, right, wrong, missing = point["thresholds"], bars["right"], bars["wrong"], bars["missing"]
    made = f"{found['curves']['p0']['method']} on {', '.join(found['curves']['p0']['signals'])}"
    if artifact is not None:
        p, labels = predict_many(artifact.p0, outcomes.signals[0], len(outcomes)), outcomes.correct[0]
        known = np.isfinite(p)
        right, wrong = (np.histogram(p[known & kind], _BARS, (0.0, 1.0))[0].tolist() for kind in (labels, ~labels))
        missing, made = int((~known).sum()), "the artifact's own p0"
    picture = figure(
        plots.to_svg(
            plots.histogram(right, wrong, found["ks"], thresholds["tau0"], thresholds["tau1"]),
            "histogram",
            "Histogram of p0",
        ),
        f"Where the thresholds fall ({point['name']}, chosen on {point['chosen_on']}; {made}): right answers should "
        f"pile up on the k0 side. n = {found['n']}, {missing} without a signal, which read {found['ks'][-1]}.",
    )
    ks = found["ks"]
    head = ["accuracy", f"minus always-k{ks[-1]}", *(f"k{k}" for k in ks)]
    rows = [
        [name.replace("_", " "), entry["chosen_on"], *_operating(entry, ks)]
        for name, entry in found["deploy"]["whole_table"].items()
    ]
    seen = "<h3>On the whole table, the rows it was chosen on included</h3>"
    return (
        f'<section><h2>The gate</h2><div class="row">{picture}</div>{_held_out(found, head)}'
        f"{seen}{table(['operating point', 'chosen on', *head], rows)}</section>"
    )


def _operating(entry: Mapping[str, Any], ks: Sequence[int]) -> list[Cell]:
    shares = [percent(entry["shares"][f"k{k}"]) for k in ks]
    return [with_interval(entry["accuracy"]), with_interval(entry[f"minus_k{ks[-1]}"]), *shares]


def _held_out(found: Mapping[str, Any], head: list[str]) -> str:
    title = "<h3>Held out: train fits, validation chooses, test is asked once</h3>"
    deploy = found["deploy"]
    if "test" not in deploy:
        return f"{title}<p>{escape(deploy.get('why_not', 'not evaluated'))}</p>"
    test, ks = deploy["test"], found["ks"]
    rows: list[list[Cell]] = [[f"always k{k}", with_interval(test["accuracy"][f"k{k}"])] for k in ks]
    refitted = {
        "accuracy": test["accuracy"]["graded"],
        f"minus_k{ks[-1]}": test["graded_minus_fixed"][f"k{ks[-1]}"],
        "shares": test["shares"]["graded"],
    }
    rows.append(["graded, by refit", *_operating(refitted, ks)])
    rows += [[f"{name}, published rule", *_operating(entry, ks)] for name, entry in deploy["matched"].items()]
    columns = [f"policy, on test, n = {test['n']}", *head]
    return f"{title}{table(columns, rows)}"


def _frontiers(found: Mapping[str, Any]) -> str:
    point, curves = _point(found), found["curves"]["frontier"]
    _, few, many = found["ks"]
    looks = {
        "full": f"Each question that does not read {many} passages is saved, even if it reads {few}.",
        "call": "Few passages are a retrieval call too: grading can hardly help here.",
        "passage": f"The fair budget: k={few} costs {few}/{many} of k={many}.",
    }
    pictures = "".join(
        figure(
            plots.to_svg(
                plots.frontier(
                    curves, axis, found["ks"], found["accuracy"], (point["shares"][axis], point["accuracy"]["value"])
                ),
                f"frontier-{axis}",
                f"Accuracy against the {axis} budget",
            ),
            looks[axis],
        )
        for axis in AXES
    )
    legend = (
        '<p class="legend"><span class="accent">━ graded</span> <span>╍ binary</span> '
        '<span class="dim">┈ random</span> <span class="dim">─ oracle (binary)</span> '
        '<span>◆ operating point</span> <span class="none">● always k0</span> '
        f'<span class="few">● always k{few}</span> <span class="many">● always k{many}</span></p>'
    )
    delta = found["deltas"]["graded_minus_binary"]["passage"]
    held = found["deltas"]["graded_minus_binary_on_test"]
    rows: list[list[Cell]] = [
        ["out-of-fold, both enveloped on the rows they are measured on", with_interval(delta["binary_enveloped"])]
    ]
    if held:
        rows.append(["on test, both paths from train", with_interval(held["difference"])])
    return (
        f"<section><h2>Frontiers</h2>{legend}<div class='row three'>{pictures}</div>"
        f"<h3>Area of graded minus binary on the passage axis</h3>{table(['measured', 'difference'], rows)}</section>"
    )


def _selective(found: Mapping[str, Any]) -> str:
    entry = found["selective"]
    picture = figure(
        plots.to_svg(
            plots.risk(found["curves"]["risk"], 1.0 - entry["full_coverage"]["value"]), "risk", "Risk against coverage"
        ),
        f"Lower is better: the error left when only the surest are answered, at {entry['point'].replace('_', ' ')}.",
    )
    rows = [
        [name, *(with_interval(entry[name][key]) for key in ("aurc", "accuracy_at_80", "accuracy_at_90"))]
        for name in ("proper", "naive", "random", "oracle")
    ]
    made = "; ".join(f"{k} by {source}" for k, source in entry["made_of"].items())
    return (
        f'<section><h2>Abstaining</h2><div class="row">{picture}<div>'
        f"{table(['confidence', 'AURC', 'accuracy at 80 %', 'at 90 %'], rows)}"
        f"<p>Full coverage: {' '.join(with_interval(entry['full_coverage']))}. Proper confidence: {escape(made)}. "
        f"n = {found['n']}.</p></div></div></section>"
    )


def _harm(found: Mapping[str, Any]) -> str:
    most = found["ks"][-1]
    harm = found["harm"][f"k{most}"]
    rows: list[list[Cell]] = [
        [escape(text), with_interval(harm[name])] for name, text in found["harm"]["definitions"].items() if name in harm
    ]
    rows += [
        [f"harmful retrievals avoided at {name.replace('_', ' ')}", with_interval(entry)]
        for name, entry in found["harm"]["saved"].items()
    ]
    return (
        f'<section><h2>Harm and rescue</h2><div class="row"><div>{matrix(harm["matrix"], most)}</div>'
        f"<div>{table([f'k = {most}', 'share'], rows)}<p>n = {found['n']}, the whole table.</p></div></div></section>"
    )


def _audits(found: Mapping[str, Any]) -> list[str]:
    tags = ({"popularity": found["popularity"]} if found["popularity"] else {}) | found["tags"]
    if not tags:
        return []
    pictures = "".join(
        figure(
            plots.to_svg(
                plots.buckets(rows, key, found["ks"]), f"tag-{number}", f"Accuracy and skip rate by {escape(key)}"
            ),
            f"Does the gate serve every kind of {escape(key)} alike? Skipping should follow closed-book accuracy. "
            f"n = {sum(row['n'] for row in rows)}.",
        )
        for number, (key, rows) in enumerate(tags.items())
    )
    return [f'<section><h2>Audits by tag</h2><div class="row">{pictures}</div></section>']


def _cost(found: Mapping[str, Any]) -> str:
    point, cost = _point(found), found["cost"]
    _, few, many = found["ks"]
    picture = figure(
        plots.to_svg(
            plots.break_even(cost["ms"], f"c_ob{many}", point["shares"]["k0"]), "break-even", "Break-even skip rate"
        ),
        "A gate pays where the blue line lies above the curve of your probe.",
    )
    parts = []
    for unit in ("ms", "tokens"):
        regime = cost[unit]
        if regime is None:
            parts.append(f"<p>{unit}: not measured, {escape(cost['why_not'][unit])}.</p>")
            continue
        rows: list[list[Cell]] = [
            [name, with_interval(regime[name], 1)] for name in ("c_cb", f"c_ob{few}", f"c_ob{many}")
        ]
        rows.append(["break-even skip rate", with_interval(regime["break_even_skip"])])
        rows += [
            [f"gate over always-k{many}, {name.replace('_', ' ')}", decimal(entry[f"gate_over_always_k{many}"])]
            for name, entry in regime["gates"].items()
        ]
        parts.append(f"<h3>{unit}, mean a question</h3>{table(['', unit], rows)}")
    if found["drafts"]:
        rows = [
            [name, decimal(found["drafts"][name]["total"], 0)] for name in ("probe", "draft32", "draft64", "draft128")
        ]
        parts.append(f"<h3>Tokens a question: probe against a prefix draft</h3>{table(['gate', 'tokens'], rows)}")
    return f'<section><h2>Cost</h2><div class="row">{picture}<div>{"".join(parts)}</div></div></section>'


def _signals(found: Mapping[str, Any]) -> str:
    picture = figure(
        plots.to_svg(plots.signals(found["signals"]), "signals", "Area under the frontier of every signal"),
        f"Which signal knows best when to retrieve; baselines should lie left of ours. n = {found['n']}.",
    )
    rows = [
        [
            escape(name),
            entry["kind"],
            *(decimal(entry[key]) for key in ("auroc", "ece_raw", "ece", "brier_raw", "brier", "nll")),
            *(decimal(entry["frontier"][key]) for key in ("binary", *AXES, "normalised")),
            str(entry["missing"]),
        ]
        for name, entry in found["signals"].items()
    ]
    head = ["signal", "kind", "AUROC", "raw ECE", "ECE", "raw Brier", "Brier", "NLL"]
    head += ["binary", *AXES, "normalised", "missing"]
    return f'<section><h2>Signals and baselines</h2><div class="row">{picture}</div>{table(head, rows)}</section>'


def _small_print(found: Mapping[str, Any]) -> str:
    notes = [*found["deploy"].get("notes", []), *(f"{name}: {why}" for name, why in found["left_out"].items())]
    most = found["ks"][-1]
    for name, entry in found[f"beyond_k{most}"].items():
        accuracy, against = (" ".join(with_interval(entry[key])) for key in ("accuracy", f"minus_k{most}"))
        notes.append(f"{name}: accuracy {accuracy}, minus k{most} {against}, on the whole table")
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section><h2>Notes</h2><ul>{items or '<li>none</li>'}</ul></section>"
