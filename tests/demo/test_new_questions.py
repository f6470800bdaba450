"""The demo questions beyond questions.jsonl: relations not asked there, and questions without an answer anywhere."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from app.core.labels import judge, normalise

DEMO = Path(__file__).resolve().parents[2] / "demo"


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    return read("questions.jsonl")


@pytest.fixture(scope="module")
def unseen() -> list[dict[str, Any]]:
    return read("unseen.jsonl")


@pytest.fixture(scope="module")
def outside() -> list[dict[str, Any]]:
    return read("out_of_corpus.jsonl")


@pytest.fixture(scope="module")
def outside_unseen() -> list[dict[str, Any]]:
    return read("out_of_corpus_unseen.jsonl")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {passage["id"]: passage["text"] for passage in read("passages.jsonl")}


def kinds(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(row["tags"]["kind"] for row in rows)


def test_files_have_the_promised_size(
    unseen: list[dict[str, Any]], outside: list[dict[str, Any]], outside_unseen: list[dict[str, Any]]
) -> None:
    """There are enough questions of enough kinds and relations to measure on."""
    relations = Counter(row["tags"]["relation"] for row in unseen)
    assert 480 <= len(unseen) <= 520
    assert len(relations) >= 15
    assert max(relations.values()) <= 50
    assert 380 <= len(outside) <= 420
    assert len(kinds(outside)) >= 8
    assert min(kinds(outside).values()) >= 20
    assert len(outside_unseen) == 200


def test_no_question_is_in_two_files(
    questions: list[dict[str, Any]],
    unseen: list[dict[str, Any]],
    outside: list[dict[str, Any]],
    outside_unseen: list[dict[str, Any]],
) -> None:
    """Ids are unique over all files, and so are the new questions, whatever their case, accents and punctuation."""
    every = [*questions, *unseen, *outside, *outside_unseen]
    assert max(Counter(row["id"] for row in every).values()) == 1
    wordings = Counter(normalise(row["question"]) or row["question"] for row in every)
    assert [wording for wording, count in wordings.items() if count > 1] == []
    new = Counter(row["group"] for row in every[len(questions) :])
    assert max(new.values()) == 1
    assert not new.keys() & {row["group"] for row in questions}


def test_out_of_corpus_rows_have_the_expected_fields(
    outside: list[dict[str, Any]], outside_unseen: list[dict[str, Any]]
) -> None:
    """A question without an answer has no gold answer and says which kind it is."""
    for row in (*outside, *outside_unseen):
        assert set(row) == {"id", "group", "question", "gold", "tags", "out_of_corpus"}
        assert row["question"].strip() == row["question"] != ""
        assert row["gold"] == []
        assert row["out_of_corpus"] is True
        assert set(row["tags"]) == {"kind"}
        assert re.fullmatch(rf"ooc-(unseen-)?{row['tags']['kind']}-\d{{3}}", row["id"])


def test_unseen_kinds_are_new_and_old(outside: list[dict[str, Any]], outside_unseen: list[dict[str, Any]]) -> None:
    """Most of the unseen questions are of kinds that no fit sees; the others repeat every kind in other words."""
    seen, new = kinds(outside), kinds(outside_unseen)
    assert len(new.keys() - seen.keys()) >= 4
    assert seen.keys() <= new.keys()
    assert sum(count for kind, count in new.items() if kind not in seen) >= 100


def test_made_up_names_are_in_no_passage(
    outside: list[dict[str, Any]], outside_unseen: list[dict[str, Any]], texts: dict[str, str]
) -> None:
    """Every question on a made-up entity has a word that neither a passage nor another such question contains."""
    known = {word for text in texts.values() for word in normalise(text).split()}
    made_up = [row for row in (*outside, *outside_unseen) if row["tags"]["kind"] == "made-up-entity"]
    uses = Counter(word for row in made_up for word in set(normalise(row["question"]).split()))
    for row in made_up:
        assert any(word not in known and uses[word] == 1 for word in normalise(row["question"]).split()), row["id"]


def test_unseen_relations_are_new(questions: list[dict[str, Any]], unseen: list[dict[str, Any]]) -> None:
    """No relation of unseen.jsonl is asked in questions.jsonl; the fields and tags are the same."""
    assert not {row["tags"]["relation"] for row in unseen} & {row["tags"]["relation"] for row in questions}
    for row in unseen:
        assert set(row) == {"id", "group", "question", "gold", "tags"}
        assert set(row["tags"]) == {"topic", "relation", "popularity", "answerable", "subject", "passage"}
        assert row["tags"]["answerable"] == "yes"


def test_unseen_facts_are_stated(unseen: list[dict[str, Any]], texts: dict[str, str]) -> None:
    """The named passage counts as a right answer, and the question itself does not."""
    assert [row["id"] for row in unseen if not judge(texts[row["tags"]["passage"]], row["gold"])] == []
    assert [row["id"] for row in unseen if judge(row["question"], row["gold"])] == []


@pytest.mark.parametrize(
    ("relation", "key", "right", "wrong"),
    [
        ("area-rank-of", "china", ["4th", "4", "The 4th place.", "fourth"], ["14th", "40", "24"]),
        ("population-of-city", "shanghai", ["24.9 million", "about 25 million", "24,900,000"], ["24.9", "2.5 million"]),
        ("boiling-point-of", "hydrogen", ["-253", "−253 °C", "-253°C", "minus 253 degrees"], ["253", "-25"]),
        ("latitude-of-city", "shanghai", ["31", "31 degrees north", "31.2° N"], ["312", "3.1"]),
        ("distance-between-cities", "shanghai", ["120 kilometres", "120km", "about 120 km"], ["12", "1,200 km"]),
    ],
)  # fmt: skip
def test_numbers_are_judged_by_value(
    unseen: list[dict[str, Any]], relation: str, key: str, right: list[str], wrong: list[str]
) -> None:
    """Usual spellings of a number are right, and other numbers with the same digits are wrong."""
    gold = next(row["gold"] for row in unseen if row["id"] == f"{relation}-{key}")
    assert [answer for answer in right if not judge(answer, gold)] == []
    assert [answer for answer in wrong if judge(answer, gold)] == []
