"""The whole evaluation, and the page made of it, on a world whose truth is known."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import DataError
from app.offline.evaluate.evaluate import evaluate
from app.offline.evaluate.study import relabelled
from app.offline.refit.options import Options
from app.offline.refit.refit import refit
from app.offline.report.report import report
from app.offline.table import Outcomes
from tests.offline.world import World

KEYS = Path(__file__).parents[3] / "docs" / "evaluate.md"


def rich_table(groups: int = 400, seed: int = 5) -> Outcomes:
    """A table with everything: two phrasings a group, texts, tags, timings, tokens, prefixes, k = 10, a gap."""
    table, _ = World(phrasings=2).draw(groups, seed)
    n, rng = len(table), np.random.default_rng(seed)
    s = table.signals[0]["seq_logprob"]
    extra = {"margin": s + rng.normal(size=n), "margin@4": s + 2 * rng.normal(size=n), "trigger": rng.random(n)}
    extra["margin"][3] = np.nan
    popular = np.where(s > 0.5, "head", np.where(s > -0.5, "torso", "tail"))
    return replace(
        table,
        questions=[f"what is <thing> {i % 7} & {i}" for i in range(n)],
        tags=[{"popularity": str(popular[i]), "<b>topic": "x" if i % 3 else "y", "views": i} for i in range(n)],
        correct=table.correct | {10: table.correct[5] & (rng.random(n) < 0.9)},
        answers={k: ["a"] * n for k in (0, 1, 5, 10)},
        gold=[["a"]] * n,
        signals={**table.signals, 0: table.signals[0] | extra, 10: {}},
        evidence=table.evidence | {"k0.margin": extra["margin"]},
        prompt_tokens={k: np.full(n, 30.0 + 100 * k) for k in (0, 1, 5, 10)},
        completion_tokens={k: np.full(n, 6.0) for k in (0, 1, 5, 10)},
        ms={k: np.full(n, 50.0 + 20 * k) for k in (0, 1, 5, 10)},
    )


@pytest.fixture(scope="module")
def table() -> Outcomes:
    return rich_table()


@pytest.fixture(scope="module")
def found(table: Outcomes) -> dict[str, Any]:
    return evaluate(table, resamples=100)


NASTY = [
    "$x_",
    "<script>alert(1)</script>",
    "城市" * 3,
    "a\nb\x00\x1b[31m",
    "\ud800",
    "w" * 5000,
    "\u202eabc",
    "🙂",
    "-->",
]


@pytest.mark.parametrize("nasty", NASTY)
def test_any_text_can_be_a_tag(table: Outcomes, found: dict[str, Any], nasty: str) -> None:
    """As a name and as a value: the page is made, can be written, and contains no markup of the data."""
    rows = [{**row, "bucket": f"{nasty}{number}"} for number, row in enumerate(found["tags"]["<b>topic"])]
    page = report(table, evaluation={**found, "tags": {nasty: rows}})
    assert page.encode()
    assert "<script" not in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", page)
    assert "w" * 100 not in page


def test_every_documented_key_is_there(found: dict[str, Any]) -> None:
    """The documented top-level keys are exactly the keys, and all of it is JSON."""
    rows = [line for line in KEYS.read_text().splitlines() if line.startswith("| ")][1:]
    first_column = [row.split("|")[1] for row in rows]
    names = {
        name.split(".")[0] for cell in first_column if "… `" not in cell for name in re.findall(r"`([^`]+)`", cell)
    }
    assert names == set(found)
    json.dumps(found, allow_nan=False)


def test_every_signal_has_the_same_figures(found: dict[str, Any]) -> None:
    """Ours, a prefix gate and every baseline have the same figures, and the informative one wins."""
    signals = found["signals"]
    assert set(signals) == {
        *("seq_logprob", "margin", "margin@4", "trigger", "fused"),
        *("random", "question_length", "query_text"),
    }
    assert len({frozenset(entry) for entry in signals.values()}) == 1
    assert signals["margin"]["missing"] == 1
    best = signals["seq_logprob"]
    assert best["ece"] < 0.06 < best["ece_raw"]
    assert best["frontier"]["normalised"] > signals["margin@4"]["frontier"]["normalised"] > 0.05
    assert abs(signals["random"]["frontier"]["normalised"]) < 0.1
    assert found["deltas"]["seq_logprob_minus"]["random"]["binary"]["low"] > 0.0


def test_parts_tell_what_the_world_is(found: dict[str, Any]) -> None:
    """Harm, cost, drafts, larger k and audits are what the table was made to say."""
    matrix = found["harm"]["k5"]["matrix"]
    assert sum(cell["n"] for cell in matrix.values()) == found["n"] == 800
    assert found["groups"] == 400
    harm = found["harm"]["k5"]
    assert harm["harm_of_all"]["value"] == pytest.approx(harm["harm_given_right"]["value"] * found["accuracy"]["k0"])
    assert found["cost"]["ms"]["break_even_skip"]["value"] == pytest.approx(50 / 150)
    assert found["drafts"]["draft64"]["total"] - found["drafts"]["probe"]["total"] == pytest.approx(58)
    assert found["larger_k"]["k10"]["minus_k5"]["high"] < 0.0
    skips = {row["bucket"]: row["skip"]["value"] for row in found["popularity"]}
    assert skips["head"] > skips["torso"] > skips["tail"]
    assert len(found["tags"]["views"]) == 4
    assert found["selective"]["confidence_source"]["k5"] == "its own signal"
    assert found["selective"]["proper"]["accuracy_at_80"]["value"] > found["selective"]["full_coverage"]["value"]


def test_held_out_figures_name_their_split(found: dict[str, Any]) -> None:
    """Operating points come with n, thresholds and an interval, from a split that chose nothing."""
    deploy = found["deploy"]
    assert sum(part["rows"] for part in deploy["splits"].values()) == 800
    assert deploy["matched"]["graded"]["n"] == deploy["splits"]["test"]["rows"]
    assert deploy["policies"]["graded"]["certificate"] or deploy["policies"]["graded"]["uncertified_reason"]


def test_a_small_bare_table_is_evaluated_without_splits() -> None:
    """Forty rows with one signal and nothing else: what can be said is said, the rest is null with a reason."""
    table, _ = World(reading_signals=False).draw(40, seed=6)
    found = evaluate(table, resamples=20)
    assert "too few" in found["deploy"]["unavailable_reason"]
    assert found["cost"]["ms"] is None
    assert "k0.ms" in found["cost"]["unavailable_reason"]["ms"]
    assert found["popularity"] is None
    assert found["selective"]["confidence_source"]["k5"].startswith("the closed-book signal")
    assert "query_text" in found["unassessed"]
    assert "too few" in report(table, evaluation=found)


def test_nothing_to_evaluate_is_refused() -> None:
    """A table without any closed-book signal, and one without answers to judge again, name the remedy."""
    table, _ = World().draw(60, seed=7)
    with pytest.raises(DataError, match="log-probabilities"):
        evaluate(replace(table, signals={**table.signals, 0: {}}), resamples=10)
    with pytest.raises(DataError, match="no answers"):
        evaluate(table, rule="tokens")


def test_answers_can_be_judged_again(table: Outcomes) -> None:
    """A rule relabels every answer at every k."""
    again = relabelled(table, "tokens")
    assert all(again.correct[k].all() for k in table.correct)


class Page(HTMLParser):
    """What a browser would fetch, and the elements that must be balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "br"}:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in {"src", "href", "xlink:href"} and value and not value.startswith("#"):
                self.fetched.append(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page(table: Outcomes) -> str:
    artifact, _ = refit(table, Options(name="<world>", created="2026-01-01T00:00:00+00:00"))
    return report(table, artifact=artifact, evaluation=evaluate(table, resamples=50, artifact=artifact))


def test_the_page_is_whole_and_fetches_nothing(page: str) -> None:
    """Elements are balanced, ids are unique, and nothing outside is asked for."""
    parsed = Page()
    parsed.feed(page)
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))
    assert parsed.fetched == []
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_data_cannot_become_markup(page: str) -> None:
    """Names and tags from data are escaped."""
    assert "<world>" not in page
    assert "<b>topic" not in page
    assert "&lt;world&gt;" in page


def test_pictures_follow_the_page(page: str) -> None:
    """Every figure has an alternative text and a sentence, and no colour that a dark page would swallow."""
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert len(figures) >= 12
    for figure in figures:
        assert re.search(r'role="img" aria-label="[^"]+"', figure)
        assert re.search(r"<figcaption>.+</figcaption>", figure)
        assert not re.findall(r"#[0-9a-f]{6}\b", figure)


def test_the_certificate_comes_first(page: str, table: Outcomes) -> None:
    """The page opens with what is guaranteed, or why nothing is, for an artifact and without one."""
    assert re.search(r'class="lead">Calibrator &lt;world&gt; \S+ is (not )?certified', page)
    few, _ = World().draw(60, seed=8)
    assert re.search(r'class="lead">The graded policy fitted on this table is', report(few))
