"""The demo's conversations: enough follow-ups with known answers, reproducible, and split by conversation."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from demo.conversations import conversations

DEMO = Path(__file__).resolve().parents[2] / "demo"


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DEMO / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return read("conversations.jsonl")


def test_the_committed_file_is_what_the_builder_writes(rows: list[dict[str, Any]]) -> None:
    """The same questions give the same conversations."""
    assert conversations() == rows


def test_there_are_enough_follow_ups_of_every_kind_in_both_splits(rows: list[dict[str, Any]]) -> None:
    """At least 150 follow-ups have a known answer, and each kind is in train and in test."""
    assert sum(row["passage"] is not None for row in rows) >= 150
    kinds = Counter((row["split"], row["kind"]) for row in rows)
    assert {kind for _, kind in kinds} == {"fact", "relation", "subject", "answer", "again", "switch", "small_talk"}
    assert min(kinds.values()) >= 5
    assert len(kinds) == 14


def test_a_conversation_is_in_one_split(rows: list[dict[str, Any]]) -> None:
    """Nothing of a test conversation is seen in train, and no fact is asked in both."""
    splits = {(row["conversation"], row["split"]) for row in rows}
    assert len(splits) == len({conversation for conversation, _ in splits})
    asked = {split: {row["question"] for row in rows if row["split"] == split} for split in ("train", "test")}
    assert asked["train"] & asked["test"] == {None}


def test_every_follow_up_means_a_question_of_the_demo(rows: list[dict[str, Any]]) -> None:
    """Its answers and its passage are those of questions.jsonl."""
    known = {row["question"]: row for row in read("questions.jsonl")}
    for row in rows:
        if row["question"] is None:
            assert row["kind"] == "small_talk"
            continue
        assert row["gold"] == known[row["question"]]["gold"]
        assert row["passage"] == known[row["question"]]["tags"]["passage"]


def test_a_follow_up_comes_after_an_exchange(rows: list[dict[str, Any]]) -> None:
    """The roles alternate, the user begins and ends, and only full questions are said to stand alone."""
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        assert len(roles) >= 3
        assert row["stands_alone"] == (row["messages"][-1]["content"] == row["question"])
