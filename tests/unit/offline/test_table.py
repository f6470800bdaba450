import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.artifact import Identity
from app.errors import DataError
from app.offline.builder import load
from app.offline.table import normalise_group

IDENTITY = {
    "reader": "r",
    "quantisation": "q",
    "chat_template": "c",
    "prompts": "p",
    "writing": "w",
    "max_tokens": 24,
    "stop": ["\n"],
    "logprobs": "top20",
    "embedder": "e",
    "collection": "c",
    "ks": [0, 1, 5],
}


def cell(**changes: Any) -> dict[str, Any]:
    return {"answer": "a", "correct": True, "signals": {"margin": 1.5, "seq_logprob": -0.5}, "ms": 12} | changes


def row(number: int = 0, **changes: Any) -> dict[str, Any]:
    whole = {"id": f"q{number}", "question": f"Who wrote book {number}?", "gold": ["x"], "tags": {"source": "t"}}
    return whole | {"k0": cell(), "k1": cell(), "k5": cell()} | changes


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_columns_hold_what_the_lines_say(tmp_path: Path) -> None:
    """Every field of a row lands in its column, and a group defaults to the normalised question."""
    file = write(
        tmp_path / "t.jsonl",
        {"schema": 1, "identity": IDENTITY, "rule": "tokens", "ks": [0, 1, 5], "trigger": False},
        row(0),
        row(1, group="g", k5=cell(correct=0, passages_read=4)),
    )
    table = load(file)
    assert len(table) == 2
    assert table.identity == Identity("r", "q", "c", "p", "w", 24, ("\n",), "top20", "e", "c", (0, 1, 5))
    assert table.ids == ["q0", "q1"]
    assert table.groups == ["who wrote book 0", "g"]
    assert table.questions[1] == "Who wrote book 1?"
    assert table.gold == [["x"], ["x"]]
    assert table.tags[0] == {"source": "t"}
    assert table.ks == (0, 1, 5)
    assert table.answers[5] == ["a", "a"]
    assert table.correct[5].tolist() == [True, False]
    assert table.signals[0]["margin"].tolist() == [1.5, 1.5]
    assert table.ms[1].tolist() == [12.0, 12.0]
    assert np.isnan(table.prompt_tokens[0]).all()


def test_signals_may_come_and_go(tmp_path: Path) -> None:
    """A signal that a row lacks, or has as null, is NaN there and untouched elsewhere, in any order of names."""
    file = write(
        tmp_path / "t.jsonl",
        row(0, k0=cell(signals={"a": 1, "b": 2})),
        row(1, k0=cell(signals={"b": 3, "a": 4})),
        row(2, k0=cell(signals={"a": None, "b": 5})),
        row(3, k0=cell(signals={})),
        row(4, k0=cell(signals={"c": 6.5})),
        row(5, k0=cell(signals={"a": 7, "b": 8, "c": 9})),
    )
    signals = load(file).signals[0]
    nan = np.nan
    np.testing.assert_array_equal(signals["a"], [1, 4, nan, nan, nan, 7])
    np.testing.assert_array_equal(signals["b"], [2, 3, 5, nan, nan, 8])
    np.testing.assert_array_equal(signals["c"], [nan, nan, nan, nan, 6.5, 9])


def test_a_compressed_table_is_the_same_table(tmp_path: Path) -> None:
    """A .gz file reads like the plain one."""
    file = tmp_path / "t.jsonl.gz"
    file.write_bytes(gzip.compress(("\n".join(json.dumps(row(i)) for i in range(3)) + "\n\n").encode()))
    assert load(file).ids == ["q0", "q1", "q2"]


def test_other_ks_are_kept(tmp_path: Path) -> None:
    """A table can have k=10 in addition to the three that a policy chooses among."""
    file = write(tmp_path / "t.jsonl", row(0, k10=cell(correct=False)))
    assert load(file).ks == (0, 1, 5)
    assert load(file).correct[10].tolist() == [False]


def test_loading_for_fitting_leaves_texts_out(tmp_path: Path) -> None:
    """Without texts there are numbers, ids and groups, and taking rows still works."""
    table = load(write(tmp_path / "t.jsonl", *(row(i) for i in range(4))), texts=False)
    assert table.questions == []
    assert table.answers[0] == []
    taken = table.take(np.array([3, 1]))
    assert taken.ids == ["q3", "q1"]
    assert taken.questions == []


def test_taking_rows_takes_every_column(tmp_path: Path) -> None:
    """Rows keep their fields together when they are picked and reordered."""
    file = write(tmp_path / "t.jsonl", *(row(i, k1=cell(signals={"a": i}, answer=str(i))) for i in range(5)))
    taken = load(file).take(np.array([4, 0]))
    assert taken.ids == ["q4", "q0"]
    assert taken.answers[1] == ["4", "0"]
    assert taken.signals[1]["a"].tolist() == [4, 0]


def test_a_question_without_words_is_its_own_group() -> None:
    """Punctuation alone still names a group."""
    assert normalise_group("???") == "???"


FAULTS = {
    "torn": ('{"id": "q9", "question": "x", "k0": {"ans', "not a complete JSON object"),
    "not an object": ("[1]", "not a JSON object"),
    "NaN": (json.dumps(row(9, k0=cell(signals={"margin": float("nan")}))), "null for a missing signal"),
    "infinite": (json.dumps(row(9, k0=cell(signals={"margin": float("inf")}))), "null for a missing signal"),
    "overflow": (json.dumps(row(9)).replace("1.5", "1e999"), "not a complete JSON object"),
    "text for a signal": (row(9, k1=cell(signals={"margin": "NaN", "seq_logprob": 1})), "k1.signals.margin"),
    "truth for a signal": (row(9, k1=cell(signals={"other": True})), "k1.signals.other"),
    "twice": (row(0), "already at"),
    "no k5": ({key: value for key, value in row(9).items() if key != "k5"}, "k5 is missing"),
    "k10 on one row": (row(9, k10=cell()), "k10 is not on the first row"),
    "label": (row(9, k5=cell(correct="yes")), "k5.correct is 'yes'"),
    "no label": (row(9, k5=cell(correct="?")), "k5.correct is '?'"),
    "milliseconds": (row(9, k0=cell(ms="fast")), "k0.ms is 'fast'"),
    "no id": (row(9) | {"id": None}, "id and question"),
    "late head": ({"schema": 1, "identity": IDENTITY}, "second identity line"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_line_is_named_with_its_remedy(tmp_path: Path, fault: str) -> None:
    """Whatever is wrong with a line, the message says which file, which line and what."""
    line, words = FAULTS[fault]
    file = write(tmp_path / "t.jsonl", row(0), row(1), line)
    with pytest.raises(DataError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}:3: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ({"schema": 3, "identity": IDENTITY}, "schema 3"),
        ({"schema": 1, "identity": {"reader": "r"}}, "identity must hold exactly"),
    ],
)
def test_a_wrong_head_is_named(tmp_path: Path, head: dict[str, Any], words: str) -> None:
    """A head of another schema, or with half an identity, is refused on line 1."""
    with pytest.raises(DataError, match=r":1: ") as caught:
        load(write(tmp_path / "t.jsonl", head, row(0)))
    assert words in str(caught.value)


def test_a_null_identity_is_none(tmp_path: Path) -> None:
    """A head may say that there is no identity."""
    assert load(write(tmp_path / "t.jsonl", {"schema": 1, "identity": None}, row(0))).identity is None


def test_an_empty_or_missing_or_cut_file_is_refused(tmp_path: Path) -> None:
    """No rows, no file, and half a compressed file are each said to be so."""
    with pytest.raises(DataError, match="no rows"):
        load(write(tmp_path / "t.jsonl", {"schema": 1, "identity": None}))
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path / "none.jsonl")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(json.dumps(row(0)).encode() * 50)[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        load(cut)
