"""Upgrading tables: what `collect` stores now is added to older tables, and answers from elsewhere are merged."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.corpus.ingest import ingest
from app.errors import DataError
from app.offline.builder import load
from app.offline.collect import collect
from app.offline.lines import read_lines
from app.offline.questions import LabelledQuestion, read_questions
from app.offline.upgrade import Replies, upgrade
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.retriever import FakeRetriever
from tests.offline.test_collect import ScriptedReader, a_collector
from tests.offline.world import IDENTITY

SYSTEM = replace(IDENTITY, embedder="fake-256")
PLACES = ("Jamaica", "Cuba", "Haiti", "Aruba", "Peru", "Chile", "Benin", "Ghana")


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    path = tmp_path / "passages.jsonl"
    lines = [
        {"id": place, "title": place, "text": f"The capital of {place} is Kingston.", "n": i}
        for i, place in enumerate(PLACES)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def questions(*places: str) -> list[LabelledQuestion]:
    return [LabelledQuestion(f"q-{one}", f"What is the capital of {one}?", ("Kingston",), one) for one in places]


@pytest.fixture
async def collected(tmp_path: Path, passages: Path) -> Path:
    """A table of the current schema."""
    embedder, vectors = FakeEmbedder(), FakeRetriever()
    await ingest([passages], collection="world", embedder=embedder, corpus=vectors)
    asked = [
        *questions("Jamaica", "Cuba", "Peru"),
        LabelledQuestion("out", "Hello?", (), "out", {"kind": "greeting"}, True),
    ]
    out = tmp_path / "collected.jsonl"
    await collect(asked, out, a_collector((ScriptedReader(), embedder, vectors), identity=SYSTEM))
    return out


def as_schema_1(path: Path, to: Path) -> Path:
    """The same table as an earlier version wrote it."""
    head, *rows = [line for _, line in read_lines(path)]
    head = {name: value for name, value in head.items() if name != "corpus"} | {"schema": 1}
    rows = [{name: value for name, value in row.items() if name not in {"evidence", "vector"}} for row in rows]
    to.write_text("".join(json.dumps(line) + "\n" for line in (head, *rows)))
    return to


def reply(identifier: str, row: dict[str, Any], **cells: Any) -> dict[str, Any]:
    return {"set": "new", "id": identifier, "cells": cells, "passages": row["passages"]}


def a_cell(answer: str, **more: Any) -> dict[str, Any]:
    signals = {"seq_logprob": -0.25, "neg_entropy": -1.0, "margin": 2.0}
    return {"answer": answer, "signals": signals, "prompt_tokens": 9, "completion_tokens": 5, "ms": 3.0} | more


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def test_collected_rows_carry_evidence_vectors_and_word_counts(collected: Path) -> None:
    """The evidence of all answers together, the question's embedding, and the counts of the collection's words."""
    table = load(collected)
    assert table.ks == (0, 1, 5)
    assert table.stats.passages == 8
    assert table.stats.counts["capital"] == 8
    assert not table.stats.centroids.size
    assert {"search.cosine", "k0.margin", "k1.support", "k0~k5.agreement", "k5.tokens"} <= table.evidence.keys()
    assert "scope.nearness" not in table.evidence
    assert table.evidence["k1.support"].tolist()[:3] == [1.0, 1.0, 1.0]
    assert table.vectors is not None
    assert table.vectors.shape == (4, 256)
    np.testing.assert_allclose(np.linalg.norm(table.vectors, axis=1), 1.0, atol=1e-3)
    assert table.out_of_corpus.tolist() == [False, False, False, True]
    assert table.kinds == ["", "", "", "greeting"]
    assert table.notes == ()


async def test_an_answer_to_a_question_from_outside_is_right_if_it_refuses(collected: Path) -> None:
    """The reader's "No idea." is a refusal, its "Kingston." is not."""
    table = load(collected)
    assert [bool(table.correct[k][3]) for k in (0, 1, 5)] == [True, False, False]
    assert [bool(table.correct[k][0]) for k in (0, 1, 5)] == [False, True, True]


async def test_an_upgraded_table_is_the_collected_one(tmp_path: Path, collected: Path, passages: Path) -> None:
    """Evidence, vectors and word counts computed afterwards equal those that were computed while asking."""
    old = as_schema_1(collected, tmp_path / "old.jsonl")
    out = tmp_path / "new.jsonl.gz"
    done = await upgrade(old, out, passages=passages, embedder=FakeEmbedder())
    assert (done.rows, done.added, done.replaced, done.notes) == (4, 0, 0, ())
    new, before = (list(read_lines(path)) for path in (out, collected))
    assert new[0][1] == before[0][1]
    for (_, one), (_, other) in zip(new[1:], before[1:], strict=True):
        assert one.pop("evidence") == pytest.approx(other.pop("evidence"), abs=2e-7)
        assert one == other
    first = out.read_bytes()
    await upgrade(old, out, passages=passages, embedder=FakeEmbedder())
    assert out.read_bytes() == first


async def test_a_table_of_schema_1_has_the_evidence_of_its_answers(tmp_path: Path, collected: Path) -> None:
    """Signals and agreement are there, what needs passages is not, and a note says how to add it."""
    table, whole = load(as_schema_1(collected, tmp_path / "old.jsonl"), texts=False), load(collected)
    assert {"k0.margin", "k5.tokens", "k1~k5.agreement", "k1.new_words"} <= table.evidence.keys()
    assert not any(name.startswith("search") or "support" in name for name in table.evidence)
    for name, column in table.evidence.items():
        np.testing.assert_allclose(column, whole.evidence[name], atol=2e-7, err_msg=name)
    assert table.vectors is None
    assert table.stats.passages == 0
    (note,) = table.notes
    assert "4 of 4 rows have no evidence of passages: `fetchwise tables upgrade` adds it" in note


async def test_replies_replace_answers_and_add_rows(tmp_path: Path, collected: Path, passages: Path) -> None:
    """Labels are made again by the table's rule; other sets are ignored; the limit becomes that of the replies."""
    rows = {row["id"]: row for _, row in list(read_lines(collected))[1:]}
    asked = write(
        tmp_path / "more.jsonl",
        {"id": "q-Cuba", "question": "What is the capital of Cuba?", "gold": ["Kingston"]},
        {"id": "o2", "question": "How are you?", "gold": [], "out_of_corpus": True, "tags": {"kind": "greeting"}},
        {"id": "o3", "question": "Who is there?", "gold": [], "out_of_corpus": True},
    )
    cells = {"k0": a_cell("I don't know."), "k1": a_cell("Fine.", passages_read=1), "k5": a_cell("x", truncated=True)}
    file = write(
        tmp_path / "replies.jsonl",
        reply("o2", rows["out"], **cells),
        reply("q-Jamaica", rows["q-Jamaica"], k0=a_cell("It is Kingston.")),
        reply("q-Peru", rows["q-Peru"], k0=a_cell("Kingston")) | {"set": "other"},
    )
    out = tmp_path / "new.jsonl"
    replies = Replies(file, frozenset({"new"}), (asked,), max_tokens=48)
    done = await upgrade(collected, out, passages=passages, embedder=FakeEmbedder(), replies=replies)
    assert (done.rows, done.added, done.replaced) == (5, 1, 1)
    assert done.notes == ("1 questions have neither a row nor a reply, and are left out",)
    table = load(out)
    assert table.identity == replace(SYSTEM, max_tokens=48)
    assert table.ids == ["q-Jamaica", "q-Cuba", "q-Peru", "out", "o2"]
    assert table.correct[0].tolist() == [True, False, False, True, True]
    assert table.evidence["k0.margin"][[0, 4]].tolist() == [2.0, 2.0]
    assert table.evidence["k0~k1.agreement"][0] == 1.0
    assert list(read_lines(out))[-1][1]["k5"]["truncated"] is True
    alone = tmp_path / "alone.jsonl"
    await upgrade(collected, alone, passages=passages, embedder=FakeEmbedder(), replies=replies, only_new=True)
    assert load(alone).ids == ["o2"]
    assert load(alone).identity == table.identity


async def test_answers_that_the_old_limit_cut_need_a_reply(tmp_path: Path, collected: Path, passages: Path) -> None:
    """A higher limit would have given another answer."""
    head, *rows = [line for _, line in read_lines(collected)]
    rows[1]["k5"]["completion_tokens"] = 24
    table = write(tmp_path / "cut.jsonl", head, *rows)
    file = write(tmp_path / "replies.jsonl", reply("q-Jamaica", rows[0], k0=a_cell("Kingston")))
    with pytest.raises(DataError, match=r"1 rows, such as 'q-Cuba', .* the limit of 24 tokens cut off"):
        await upgrade(
            table,
            tmp_path / "out.jsonl",
            passages=passages,
            embedder=FakeEmbedder(),
            replies=Replies(file, max_tokens=48),
        )
    again = write(tmp_path / "replies.jsonl", reply("q-Cuba", rows[1], k5=a_cell("Kingston", completion_tokens=30)))
    out = tmp_path / "out.jsonl"
    await upgrade(table, out, passages=passages, embedder=FakeEmbedder(), replies=Replies(again, max_tokens=48))
    assert load(out).completion_tokens[5][1] == 30


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown id": ({"id": "nobody"}, "'nobody' is neither in the table nor in a file of --questions"),
    "no cells": ({"cells": {}}, "`cells` must hold some of k0, k1, k5"),
    "other k": ({"cells": {"k7": a_cell("x")}}, "`cells` must hold some of"),
    "no answer": ({"cells": {"k0": {"signals": {}}}}, "k0 needs a text `answer`"),
    "empty answer": ({"cells": {"k0": a_cell("  ")}}, "k0: the answer is empty but has signals"),
    "signal": ({"cells": {"k0": a_cell("x", signals={"margin": "high"})}}, "k0 needs a text `answer` and `signals`"),
    "passages": ({"cells": {"k1": a_cell("x")}, "passages": ["zz"]}, "from other passages than its row"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_wrong_reply_is_named_by_its_line(tmp_path: Path, collected: Path, passages: Path, fault: str) -> None:
    """The message has the file, the line and what to do; nothing is written."""
    changes, says = FAULTS[fault]
    row = list(read_lines(collected))[1][1]
    good = reply("q-Cuba", row, k0=a_cell("x"))
    file = write(tmp_path / "replies.jsonl", good, reply("q-Jamaica", row, k0=a_cell("x")) | changes)
    out = tmp_path / "out.jsonl"
    with pytest.raises(DataError, match=r"replies\.jsonl:2: ") as caught:
        await upgrade(collected, out, passages=passages, embedder=FakeEmbedder(), replies=Replies(file))
    assert says in str(caught.value)
    assert not out.exists()


async def test_a_second_reply_and_an_incomplete_new_row_are_refused(
    tmp_path: Path, collected: Path, passages: Path
) -> None:
    """Which of two answers counts must not depend on the order of lines, and a row has every cell."""
    row = list(read_lines(collected))[1][1]
    one = reply("q-Jamaica", row, k0=a_cell("x"))
    out, embedder = tmp_path / "out.jsonl", FakeEmbedder()
    twice = write(tmp_path / "twice.jsonl", one, one)
    with pytest.raises(DataError, match="a second reply for 'q-Jamaica'"):
        await upgrade(collected, out, passages=passages, embedder=embedder, replies=Replies(twice))
    asked = write(tmp_path / "more.jsonl", {"id": "o2", "question": "How?", "gold": ["x"]})
    part = write(tmp_path / "part.jsonl", one | {"id": "o2"})
    with pytest.raises(DataError, match="a new row needs every cell and its passages, without k1, k5"):
        await upgrade(collected, out, passages=passages, embedder=embedder, replies=Replies(part, questions=(asked,)))


async def test_other_passages_and_embedders_are_refused(tmp_path: Path, collected: Path, passages: Path) -> None:
    """Evidence of other passages or other embeddings would be silently wrong."""
    out = tmp_path / "out.jsonl"
    with pytest.raises(DataError, match="was collected with the embedder fake-256, the settings name fake-8"):
        await upgrade(collected, out, passages=passages, embedder=FakeEmbedder(8))
    few = write(tmp_path / "few.jsonl", *(line for _, line in list(read_lines(passages))[:3]))
    with pytest.raises(DataError, match=r"few\.jsonl: has no passage \w+, which row 'q-Jamaica' read"):
        await upgrade(collected, out, passages=few, embedder=FakeEmbedder())
    head, *rows = [line for _, line in read_lines(collected)]
    short = write(tmp_path / "short.jsonl", head, rows[0] | {"passages": rows[0]["passages"][:2]})
    with pytest.raises(DataError, match="row 'q-Jamaica' names 2 passages, fewer than k=5"):
        await upgrade(short, out, passages=passages, embedder=FakeEmbedder())
    bare = write(tmp_path / "bare.jsonl", *rows)
    with pytest.raises(DataError, match="has no first line"):
        await upgrade(bare, out, passages=passages, embedder=FakeEmbedder())
    assert not out.exists()


async def test_a_compressed_table_can_be_upgraded_in_place(tmp_path: Path, collected: Path, passages: Path) -> None:
    """TABLE and --out may be the same file."""
    path = tmp_path / "old.jsonl.gz"
    path.write_bytes(gzip.compress(as_schema_1(collected, tmp_path / "old.jsonl").read_bytes()))
    await upgrade(path, path, passages=passages, embedder=FakeEmbedder())
    assert load(path).stats.passages == 8


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"gold": ["x"], "out_of_corpus": True}, "leave `gold` empty"),
        ({"gold": []}, "write a list of texts"),
    ],
)
def test_only_questions_from_outside_have_no_gold(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    """An empty `gold` is a mistake unless the question says that the corpus cannot answer it."""
    with pytest.raises(DataError, match=says):
        read_questions(write(tmp_path / "q.jsonl", {"question": "x"} | row))
    assert read_questions(write(tmp_path / "q.jsonl", {"question": "x", "gold": [], "out_of_corpus": True}))
