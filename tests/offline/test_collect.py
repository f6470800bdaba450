"""Collecting outcomes: every question once at every k, resumable, never two systems in one file."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.core.available import Passage
from app.core.signals import ALL_NAMES, TokenLogprobs
from app.errors import DataError, PromptTooLong, UpstreamUnavailable
from app.offline.builder import load
from app.offline.collect import Collector, collect
from app.offline.questions import LabelledQuestion, read_questions
from app.ports import Generation, Prompt
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.retriever import FakeRetriever
from tests.offline.world import IDENTITY

TOKEN = TokenLogprobs(-0.1, tuple(-0.1 - i for i in range(20)))


class ScriptedReader:
    """Cannot answer closed-book, and finds `Kingston` if a passage has it."""

    def __init__(self) -> None:
        self.asked: list[Prompt] = []
        self.failures = 0

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        self.asked.append(prompt)
        if self.failures:
            self.failures -= 1
            raise UpstreamUnavailable("reader", "down")
        if max_tokens == 1:
            return Generation("Yes", (TokenLogprobs(-0.5, TOKEN.top),), 9, 1, 0)
        found = any("Kingston" in passage.text for passage in prompt.passages)
        return Generation("Kingston." if found else "No idea.", (TOKEN, TOKEN), 10, 3, len(prompt.passages))


def questions(count: int) -> list[LabelledQuestion]:
    return [
        LabelledQuestion(f"q{i}", f"Capital of Jamaica, asked {i} times?", ("Kingston",), f"g{i}") for i in range(count)
    ]


@pytest.fixture
async def world() -> tuple[ScriptedReader, FakeEmbedder, FakeRetriever]:
    reader, embedder, retriever = ScriptedReader(), FakeEmbedder(), FakeRetriever()
    await retriever.create("world", dimension=embedder.dimension)
    passages = [Passage(f"p{i}", "Jamaica", f"The capital of Jamaica is Kingston, note {i}.") for i in range(8)]
    await retriever.add("world", passages, await embedder.embed_passages([p.text for p in passages]))
    return reader, embedder, retriever


def a_collector(world: tuple[ScriptedReader, FakeEmbedder, FakeRetriever], **more: Any) -> Collector:
    reader, embedder, retriever = world
    parts: dict[str, Any] = {"reader": reader, "embedder": embedder, "retriever": retriever}
    return Collector(**parts | {"identity": IDENTITY, "ks": IDENTITY.ks} | more)


async def test_the_table_holds_what_the_refit_job_reads(tmp_path: Path, world: Any) -> None:
    """What collect writes, `load` reads: identity, labels, every signal with its prefixes, tokens and time."""
    out = tmp_path / "outcomes.jsonl"
    days = iter(datetime(2026, 1, day, 12, tzinfo=UTC) for day in (3, 1, 2, 5, 4, 6))
    report = await collect(questions(6), out, a_collector(world, today=lambda: next(days)), concurrency=1)
    table = load(out)
    assert (table.first, table.last) == ("2026-01-01T12:00:00+00:00", "2026-01-06T12:00:00+00:00")
    assert (report.asked, report.skipped, report.failed) == (6, 0, ())
    assert table.identity == IDENTITY
    assert [table.correct[k].mean() for k in (0, 1, 5)] == [0.0, 1.0, 1.0]
    assert set(table.signals[0]) == set(ALL_NAMES)
    assert table.prompt_tokens[5].tolist() == [10.0] * 6


async def test_a_second_run_asks_nothing_twice(tmp_path: Path, world: Any) -> None:
    """Rows that are there are not asked again, and the file does not change."""
    out = tmp_path / "outcomes.jsonl"
    await collect(questions(3), out, a_collector(world))
    before, asked = out.read_bytes(), len(world[0].asked)
    report = await collect(questions(3), out, a_collector(world))
    assert (report.asked, report.skipped) == (0, 3)
    assert out.read_bytes() == before
    assert len(world[0].asked) == asked


async def test_an_interrupted_run_is_resumed_without_a_torn_line(tmp_path: Path, world: Any) -> None:
    """A half-written last line is cut off, and its question asked again."""
    out = tmp_path / "outcomes.jsonl"
    await collect(questions(4), out, a_collector(world))
    whole = out.read_bytes()
    out.write_bytes(whole[:-40])
    report = await collect(questions(4), out, a_collector(world))
    assert (report.asked, report.skipped) == (1, 3)
    assert sorted(json.loads(line)["id"] for line in out.read_bytes().splitlines()[1:]) == ["q0", "q1", "q2", "q3"]


async def test_cancelling_keeps_every_finished_row(tmp_path: Path, world: Any) -> None:
    """Ctrl-C in mid-run leaves whole lines only."""
    out = tmp_path / "outcomes.jsonl"

    def stop(done: int, _: int) -> None:
        if done == 2:
            asyncio.get_running_loop().call_soon(running.cancel)

    running = asyncio.ensure_future(collect(questions(50), out, a_collector(world), concurrency=1, on_progress=stop))
    with pytest.raises(asyncio.CancelledError):
        await running
    assert 2 <= len(load(out)) < 50


async def test_two_systems_never_share_a_file(tmp_path: Path, world: Any) -> None:
    """A table of another reader is refused, naming what differs."""
    out = tmp_path / "outcomes.jsonl"
    await collect(questions(1), out, a_collector(world))
    with pytest.raises(DataError, match="reader: fitted on 'reader', running 'other'"):
        await collect(questions(2), out, a_collector(world, identity=replace(IDENTITY, reader="other")))


async def test_additional_k_are_collected(tmp_path: Path, world: Any) -> None:
    """`--k 8` adds a column and changes no other."""
    out = tmp_path / "outcomes.jsonl"
    await collect(questions(1), out, a_collector(world, ks=(0, 1, 5, 8)))
    table = load(out)
    assert list(table.correct) == [0, 1, 5, 8]
    assert max(len(prompt.passages) for prompt in world[0].asked) == 8


async def test_the_trigger_becomes_a_signal(tmp_path: Path, world: Any) -> None:
    """`--trigger` stores the log-odds that the reader need not look the answer up: negative where it says yes."""
    out = tmp_path / "outcomes.jsonl"
    await collect(questions(1), out, a_collector(world, trigger=True))
    assert load(out).signals[0]["trigger"][0] < 0


async def test_a_reader_that_restarts_costs_no_question(tmp_path: Path, world: Any, monkeypatch: Any) -> None:
    """One failure is tried again; only a question that fails every attempt is given up, and named."""
    monkeypatch.setattr("app.offline.collect.RETRY_S", 0.0)
    world[0].failures = 1
    out = tmp_path / "outcomes.jsonl"
    report = await collect(questions(2), out, a_collector(world), concurrency=1)
    assert report.failed == ()
    world[0].failures = 100
    report = await collect(questions(3), out, a_collector(world), concurrency=1)
    assert report.failed == (("q2", "reader: down"),)


class FussyReader(ScriptedReader):
    """Has no room for one question; says how many passages it had room for."""

    async def generate(self, prompt: Prompt, *, max_tokens: int) -> Generation:
        if "asked 1 times" in prompt.question:
            raise PromptTooLong("the question does not fit")
        return replace(
            await super().generate(prompt, max_tokens=max_tokens), passages_read=min(3, len(prompt.passages))
        )


async def test_a_question_that_does_not_fit_is_given_up_and_the_run_goes_on(tmp_path: Path, world: Any) -> None:
    """It is named with the reason, is not tried again, and leaves no row; the others say how much they read."""
    out = tmp_path / "outcomes.jsonl"
    report = await collect(questions(3), out, a_collector((FussyReader(), *world[1:])))
    assert (report.asked, report.failed) == (2, (("q1", "the question does not fit"),))
    rows = [json.loads(line) for line in out.read_bytes().splitlines()[1:]]
    assert sorted(row["id"] for row in rows) == ["q0", "q2"]
    assert [rows[0][k].get("passages_read") for k in ("k0", "k1", "k5")] == [None, 1, 3]


async def test_a_closed_book_answer_never_passes_for_a_reading(tmp_path: Path) -> None:
    """A collection with fewer passages than k is refused before the reader is asked."""
    reader, embedder, retriever = ScriptedReader(), FakeEmbedder(), FakeRetriever()
    await retriever.create("world", dimension=embedder.dimension)
    out = tmp_path / "outcomes.jsonl"
    with pytest.raises(DataError, match="holds 0 passages, fewer than k=5 reads"):
        await collect(questions(1), out, a_collector((reader, embedder, retriever)))
    assert not out.exists()
    assert reader.asked == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rule": "compat"}, "rule: was 'tokens', now 'compat'"),
        ({"ks": (0, 1, 5, 8)}, r"ks: was \[0, 1, 5\], now \[0, 1, 5, 8\]"),
        ({"trigger": True}, "trigger: was False, now True"),
    ],
)
async def test_other_options_are_refused(tmp_path: Path, world: Any, more: Any, says: str) -> None:
    """Another label rule, other ks or a trigger are refused by name."""
    out = tmp_path / "outcomes.jsonl"
    await collect(questions(1), out, a_collector(world))
    with pytest.raises(DataError, match=says):
        await collect(questions(2), out, a_collector(world, **more))


async def test_what_cannot_be_collected_is_refused_before_it_begins(tmp_path: Path, world: Any) -> None:
    """A compressed table, a negative k and a missing file of questions each end in a message with its remedy."""
    out = tmp_path / "outcomes.jsonl.gz"
    with pytest.raises(DataError, match="compress it afterwards"):
        await collect(questions(1), out, a_collector(world))
    assert not out.exists()
    with pytest.raises(DataError, match="k=-2 is negative"):
        a_collector(world, ks=(-2, 0, 1, 5))
    with pytest.raises(DataError, match=r"none\.jsonl: cannot be read"):
        read_questions(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "fix or delete"),
        ('{"question": "x"}', "gold"),
        ('{"question": "", "gold": ["a"]}', "write a text"),
        ('{"question": "x", "gold": []}', "list of texts"),
        ('{"id": "a", "question": "x", "gold": ["y"]}', "not unique"),
    ],
)
def test_a_bad_question_is_named_by_its_line(tmp_path: Path, line: str, says: str) -> None:
    """The message has the file, the line and the remedy."""
    path = tmp_path / "questions.jsonl"
    path.write_text('{"id": "a", "question": "x", "gold": ["y"]}\n' + line + "\n")
    with pytest.raises(DataError, match=says) as caught:
        read_questions(path)
    assert f"{path}:2" in str(caught.value)
