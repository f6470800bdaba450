"""One self-contained HTML page about an outcome table and what was fitted on it.

`evaluate` computes, `plots` draws, and this module writes the page.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from app.core.artifact import Artifact
from app.offline.evaluate.deploy import probabilities
from app.offline.evaluate.evaluate import evaluate, histogram
from app.offline.evaluate.frontier import AXES
from app.offline.report import plots
from app.offline.report.pages import (
    Cell,
    cards,
    certificate,
    columns,
    decimal,
    legend,
    matrix,
    page,
    percent,
    picture,
    point_name,
    section,
    table,
    with_interval,
)
from app.offline.table import Outcomes


def report(outcomes: Outcomes, *, artifact: Artifact | None = None, evaluation: Mapping[str, Any] | None = None) -> str:
    """The page as HTML. Without an evaluation it evaluates the table, with the thresholds of an artifact if given."""
    found = evaluate(outcomes, artifact=artifact) if evaluation is None else evaluation
    title = f"Fetchwise report: {artifact.name} {artifact.version}" if artifact else "Fetchwise report"
    return page(
        title,
        _summary(found, artifact),
        _calibration(found),
        _gate(found, outcomes, artifact),
        _frontiers(found),
        _selective(found),
        _harm(found),
        _tags(found),
        _cost(found),
        _signals(found),
        _notes(found),
    )


def _point(found: Mapping[str, Any]) -> dict[str, Any]:
    """The operating point that the page describes."""
    name = found["selective"]["point"]
    return {"name": name, **found["deploy"]["whole_table"][name]}


def _summary(found: Mapping[str, Any], artifact: Artifact | None) -> str:
    point, main = _point(found), found["signals"][found["main"]]
    _, few, many = found["ks"]
    harm, selective, ms = found["harm"][f"k{many}"], found["selective"], found["cost"]["ms"]
    numbers = [
        ("none", "closed-book", with_interval(found["accuracy_intervals"]["k0"])),
        ("few", f"always k={few}", with_interval(found["accuracy_intervals"][f"k{few}"])),
        ("many", f"always k={many}", with_interval(found["accuracy_intervals"][f"k{many}"])),
        ("", f"gate: {point_name(point['name'])}", with_interval(point["accuracy"])),
        ("", f"passages read, of always k={many}", (percent(point["shares"]["passage"]), "")),
        ("", "retrieval calls", (percent(point["shares"]["call"]), "")),
        ("", f"ECE of {found['main']}", (decimal(main["ece"]), f"raw {decimal(main['ece_raw'])}")),
        ("", f"right closed-book, wrong at k={many}", with_interval(harm["harm_given_right"])),
        ("abstain", "accuracy at 80 % coverage", with_interval(selective["proper"]["accuracy_at_80"])),
        ("", "break-even skip rate", with_interval(ms["break_even_skip"]) if ms else ("not measured", "no timings")),
    ]
    basis = (
        f"{found['n']:,} questions in {found['groups']:,} groups; labels {escape(found['labels'])}. "
        f"Intervals: {escape(found['protocol']['intervals'])}. Unless a split is named, figures are "
        f"{escape(found['protocol']['diagnostic'])}."
    )
    return f'<p class="lead">{certificate(found, artifact)}</p><p class="basis">{basis}</p>{cards(numbers)}'


def _calibration(found: Mapping[str, Any]) -> str:
    curves, main, n = found["curves"]["reliability"], escape(found["main"]), found["n"]
    titles = {
        "raw": (f"{main}, min-max scaled", f"A raw score is not a probability: it is off the diagonal. n = {n}."),
        "calibrated": (f"{main}, calibrated", f"On the diagonal, 70 % means right 70 % of the time. n = {n}."),
    }
    pictures = [
        picture(plots.reliability(curves[kind], title), f"reliability-{kind}", f"Reliability diagram, {title}", caption)
        for kind, (title, caption) in titles.items()
    ]
    sizes = picture(
        plots.sizes(found["sizes"]["rows"]),
        "sizes",
        "Calibration error by number of labels",
        f"How many labels calibration needs: mean and standard deviation of {found['sizes']['repeats']} draws, "
        f"each evaluated on {found['sizes']['held_out_groups']} other groups.",
    )
    rows = [
        [name, *(with_interval(entry[metric]) for metric in ("auroc", "ece", "ece_null", "brier", "nll"))]
        for name, entry in found["methods"].items()
        if name != "signal"
    ]
    methods = table(
        ["method", "AUROC", "ECE", "ECE if calibrated", "Brier", "NLL"],
        rows,
        f"Methods on {main}, out-of-fold, n = {n}",
    )
    return section("Calibration", columns(*pictures, sizes), methods)


def _gate(found: Mapping[str, Any], outcomes: Outcomes, artifact: Artifact | None) -> str:
    point, bars, ks = _point(found), found["curves"]["histogram"], found["ks"]
    made = f"{found['curves']['p0']['method']} on {', '.join(found['curves']['p0']['signals'])}"
    if artifact is not None:
        inside = outcomes.take(np.flatnonzero(~outcomes.out_of_corpus))
        bars, made = histogram(probabilities(artifact.p0, inside), inside.correct[0]), "the artifact's own p0"
    thresholds = picture(
        plots.histogram(bars["right"], bars["wrong"], ks, **point["thresholds"]),
        "histogram",
        "Histogram of p0",
        f"Where the thresholds are ({point_name(point['name'])}, chosen on {point['chosen_on']}; {made}): right "
        f"answers should be on the k0 side. n = {found['n']}, {bars['missing']} without a signal read {ks[-1]}.",
    )
    head = ["accuracy", f"minus always-k{ks[-1]}", *(f"k{k}" for k in ks)]
    rows = [
        [point_name(name), entry["chosen_on"], *_operating(entry, ks)]
        for name, entry in found["deploy"]["whole_table"].items()
    ]
    title = "On the whole table, including the rows it was chosen on"
    whole = table(["operating point", "chosen on", *head], rows, title)
    return section("The gate", columns(thresholds), _held_out(found, head), whole)


def _operating(entry: Mapping[str, Any], ks: Sequence[int]) -> list[Cell]:
    shares = [percent(entry["shares"][f"k{k}"]) for k in ks]
    return [with_interval(entry["accuracy"]), with_interval(entry[f"minus_k{ks[-1]}"]), *shares]


def _held_out(found: Mapping[str, Any], head: list[str]) -> str:
    title = "Held out: train fits, validation chooses, test is evaluated once"
    deploy = found["deploy"]
    if "test" not in deploy:
        return f"<h3>{title}</h3><p>{escape(deploy.get('unavailable_reason', 'not evaluated'))}</p>"
    test, ks = deploy["test"], found["ks"]
    rows: list[list[Cell]] = [[f"always k{k}", with_interval(test["accuracy"][f"k{k}"])] for k in ks]
    for name in ("graded", "ladder", "chat"):
        refitted = {
            "accuracy": test["accuracy"][name],
            f"minus_k{ks[-1]}": test[f"{name}_minus_fixed"][f"k{ks[-1]}"],
            "shares": test["shares"][name],
        }
        rows.append([f"{name}, by refit", *_operating(refitted, ks)])
    rows += [[point_name(f"matched_{name}"), *_operating(entry, ks)] for name, entry in deploy["matched"].items()]
    return table([f"policy, on test, n = {test['n']}", *head], rows, title)


def _frontiers(found: Mapping[str, Any]) -> str:
    point, curves = _point(found), found["curves"]["frontier"]
    _, few, many = found["ks"]
    captions = {
        "full": f"Only questions that read {many} passages count; those that read {few} are free.",
        "call": f"Reading {few} is a retrieval call, too: grading can hardly help here.",
        "passage": f"The fair budget: k={few} costs {few}/{many} of k={many}.",
    }
    pictures = [
        picture(
            plots.frontier(
                curves, axis, found["ks"], found["accuracy"], (point["shares"][axis], point["accuracy"]["value"])
            ),
            f"frontier-{axis}",
            f"Accuracy by {axis} budget",
            caption,
        )
        for axis, caption in captions.items()
    ]
    delta, held = found["deltas"]["graded_minus_binary"]["passage"], found["deltas"]["graded_minus_binary_on_test"]
    whole = "out-of-fold, both with the best thresholds on the same rows"
    rows: list[list[Cell]] = [[whole, with_interval(delta["binary_enveloped"])]]
    if held:
        rows.append(["on test, both with thresholds chosen on train", with_interval(held["difference"])])
    areas = table(["measured", "difference"], rows, "Area of graded minus binary on the passage axis")
    return section("Frontiers", legend(few, many), columns(*pictures, kind="row three"), areas)


def _selective(found: Mapping[str, Any]) -> str:
    entry = found["selective"]
    curves = picture(
        plots.risk(found["curves"]["risk"], 1.0 - entry["full_coverage"]["value"]),
        "risk",
        "Risk by coverage",
        f"Lower is better: the error if only the most confident answers are given; {point_name(entry['point'])}.",
    )
    rows: list[list[Cell]] = [
        [text, *(with_interval(entry[name][key]) for key in ("aurc", "accuracy_at_80", "accuracy_at_90"))]
        for name, text in plots.CONFIDENCES.items()
    ]
    made = "; ".join(f"{k} by {source}" for k, source in entry["confidence_source"].items())
    full = " ".join(with_interval(entry["full_coverage"]))
    text = f"<p>Full coverage: {full}. Confidence of the answer given: {escape(made)}. n = {found['n']}.</p>"
    figures = table(["confidence", "AURC", "accuracy at 80 %", "at 90 %"], rows)
    return section("Abstention", columns(curves, f"<div>{figures}{text}</div>"))


def _harm(found: Mapping[str, Any]) -> str:
    most = found["ks"][-1]
    harm = found["harm"][f"k{most}"]
    rows: list[list[Cell]] = [
        [escape(text), with_interval(harm[name])] for name, text in found["harm"]["definitions"].items() if name in harm
    ]
    rows += [
        [f"harm avoided: {point_name(name)}", with_interval(entry)] for name, entry in found["harm"]["saved"].items()
    ]
    shares = f"{table([f'k = {most}', 'share'], rows)}<p>n = {found['n']}, the whole table.</p>"
    return section("Harm and rescue", columns(f"<div>{matrix(harm['matrix'], most)}</div>", f"<div>{shares}</div>"))


def _tags(found: Mapping[str, Any]) -> str:
    tags = ({"popularity": found["popularity"]} if found["popularity"] else {}) | found["tags"]
    pictures = [
        picture(
            plots.buckets(rows, key, found["ks"]),
            f"tag-{number}",
            f"Accuracy and skip rate by {escape(key)}",
            f"Is the gate as good for every {escape(key)}? The skip rate should follow closed-book accuracy. "
            f"n = {sum(row['n'] for row in rows)}.",
        )
        for number, (key, rows) in enumerate((plots.plain(key), rows) for key, rows in tags.items())
    ]
    return section("By tag", columns(*pictures)) if pictures else ""


def _cost(found: Mapping[str, Any]) -> str:
    point, cost = _point(found), found["cost"]
    _, few, many = found["ks"]
    break_even = picture(
        plots.break_even(cost["ms"], f"c_ob{many}", point["shares"]["k0"]),
        "break-even",
        "Break-even skip rate",
        "A gate pays if the blue line is above the curve of your probe.",
    )
    parts = []
    for unit in ("ms", "tokens"):
        regime = cost[unit]
        if regime is None:
            parts.append(f"<p>{unit}: not measured, {escape(cost['unavailable_reason'][unit])}.</p>")
            continue
        costs = {"c_cb": "closed-book probe", f"c_ob{few}": f"reading {few}", f"c_ob{many}": f"reading {many}"}
        rows: list[list[Cell]] = [[f"{text} ({k})", with_interval(regime[k], 1)] for k, text in costs.items()]
        rows.append(["break-even skip rate", with_interval(regime["break_even_skip"])])
        rows += [
            [f"gate / always k={many}: {point_name(name)}", decimal(entry[f"gate_over_always_k{many}"])]
            for name, entry in regime["gates"].items()
        ]
        parts.append(table(["", unit], rows, f"{unit}, mean per question"))
    if found["drafts"]:
        rows = [
            [name, decimal(found["drafts"][name]["total"], 0)] for name in ("probe", "draft32", "draft64", "draft128")
        ]
        parts.append(table(["gate", "tokens"], rows, "Tokens per question: probe and prefix drafts"))
    return section("Cost", columns(break_even, f"<div>{''.join(parts)}</div>"))


def _signals(found: Mapping[str, Any]) -> str:
    areas = picture(
        plots.signals(found["signals"]),
        "signals",
        "Area under the frontier of every signal",
        f"Which signal best predicts when to retrieve; baselines should be to the left of ours. n = {found['n']}.",
    )
    rows = [
        [
            escape(name),
            entry["kind"],
            *(decimal(entry[key]) for key in ("auroc", "ece_raw", "ece", "ece_null", "brier_raw", "brier", "nll")),
            *(decimal(entry["frontier"][key]) for key in ("binary", *AXES, "normalised")),
            str(entry["missing"]),
        ]
        for name, entry in found["signals"].items()
    ]
    head = ["signal", "kind", "AUROC", "raw ECE", "ECE", "ECE if calibrated", "raw Brier", "Brier", "NLL"]
    head += ["binary", *AXES, "normalised", "missing"]
    return section("Signals and baselines", columns(areas), table(head, rows))


def _notes(found: Mapping[str, Any]) -> str:
    notes = [*found["deploy"].get("notes", []), *(f"{name}: {why}" for name, why in found["unassessed"].items())]
    most = found["ks"][-1]
    for name, entry in found["larger_k"].items():
        accuracy, against = (" ".join(with_interval(entry[key])) for key in ("accuracy", f"minus_k{most}"))
        notes.append(f"{name}: accuracy {accuracy}, minus k{most} {against}, on the whole table")
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return section("Notes", f"<ul>{items or '<li>none</li>'}</ul>")
