"""What every VectorStore promises: the fake, the embedded engine, and a real server over REST and gRPC."""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.core.available import Passage
from app.core.question import Filter
from app.errors import DataError, UnknownCollection, UpstreamUnavailable
from app.ports import VectorStore
from app.upstream.vectors.payload import point_id
from app.upstream.vectors.qdrant_edge import QdrantEdge
from tests.e2e.qdrant import QdrantProcess
from tests.fakes.retriever import FakeRetriever


@pytest.fixture
def name() -> str:
    """A collection that no other test has."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture(
    params=[
        "fake",
        "edge",
        pytest.param("rest", marks=pytest.mark.e2e),
        pytest.param("grpc", marks=pytest.mark.e2e),
    ]
)
async def empty(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> AsyncIterator[VectorStore]:
    """A store without the collection `name`."""
    store: VectorStore
    match request.param:
        case "fake":
            store = FakeRetriever()
        case "edge":
            store = QdrantEdge(tmp_path)
        case transport:
            server: QdrantProcess = request.getfixturevalue("qdrant_process")
            store = server.client(grpc=transport == "grpc")
    try:
        yield store
    finally:
        await store.close()


def at(degrees: float) -> list[float]:
    """A unit vector; the nearer two angles, the nearer the vectors."""
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), 0.0]


PASSAGES = {
    0.0: Passage("en-0", "Zero", "nought", payload={"lang": "en", "year": 1, "draft": True}),
    10.0: Passage("en-10", "Ten", "ten", payload={"lang": "en", "year": 2, "draft": False}),
    20.0: Passage("fr-20", "Vingt", "vingt", payload={"lang": "fr", "year": 1, "draft": False}),
    30.0: Passage("fr-30", "Trente", "trente", payload={"lang": "fr", "year": 2, "draft": True}),
    # The same fields with look-alikes of other types.
    40.0: Passage("odd-40", "Odd", "odd", payload={"lang": "true", "year": "1", "draft": 1}),
}


@pytest.fixture
async def store(empty: VectorStore, name: str) -> VectorStore:
    """A store with five passages in `name`, in the order of their distance from zero degrees."""
    await empty.create(name, dimension=3)
    await empty.add(name, [*PASSAGES.values()], [at(degrees) for degrees in PASSAGES])
    return empty


async def found(store: VectorStore, name: str, *, limit: int = 10, where: Filter | None = None) -> list[str]:
    """The ids that a search from zero degrees finds, in order."""
    return [passage.id for passage in await store.search(name, at(0), limit=limit, where=where)]


async def test_nearest_first(store: VectorStore, name: str) -> None:
    """Passages come nearest first, each with its cosine similarity."""
    passages = await store.search(name, at(0), limit=10)
    assert [passage.id for passage in passages] == ["en-0", "en-10", "fr-20", "fr-30", "odd-40"]
    assert [passage.score for passage in passages] == pytest.approx(
        [math.cos(math.radians(degrees)) for degrees in PASSAGES], abs=1e-6
    )


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_limit(store: VectorStore, name: str, limit: int) -> None:
    """A search returns no more than `limit`, and those the nearest."""
    assert await found(store, name, limit=limit) == ["en-0", "en-10", "fr-20", "fr-30", "odd-40"][:limit]


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ({}, ["en-0", "en-10", "fr-20", "fr-30", "odd-40"]),
        ({"lang": "fr"}, ["fr-20", "fr-30"]),
        ({"lang": "true"}, ["odd-40"]),
        ({"year": 1}, ["en-0", "fr-20"]),
        ({"year": "1"}, ["odd-40"]),
        ({"draft": True}, ["en-0", "fr-30"]),
        ({"draft": False}, ["en-10", "fr-20"]),
        ({"draft": 1}, ["odd-40"]),
        ({"lang": "fr", "year": 1}, ["fr-20"]),
        ({"lang": "en", "year": 2, "draft": False}, ["en-10"]),
        ({"lang": "en", "year": 3}, []),
        ({"lang": "EN"}, []),
        ({"lang": "f"}, []),
        ({"nowhere": "x"}, []),
        ({"id": "en-0"}, []),
        ({"year": 2**70}, []),
        ({'"\\ud800': "\ud800"}, []),
    ],
)
async def test_filter(store: VectorStore, name: str, where: Filter, ids: list[str]) -> None:
    """A filter keeps passages whose every named field has exactly this value, of exactly this type."""
    assert await found(store, name, where=where) == ids


@pytest.mark.parametrize("key", ["a.b", "a[0]", "a b", 'q"uote', "back\\slash", "日本", "", "fields", "id", "terms"])
async def test_any_field_name(store: VectorStore, name: str, key: str) -> None:
    """A field of any name can be filtered on and comes back."""
    await store.add(name, [Passage("named", "", "", payload={key: "here"})], [at(90)])
    assert await found(store, name, where={key: "here"}) == ["named"]
    assert await found(store, name, where={key: "there"}) == []
    [passage] = await store.search(name, at(90), limit=1)
    assert passage.payload == {key: "here"}


async def test_limit_applies_after_filter(store: VectorStore, name: str) -> None:
    """A filter never leaves fewer than `limit` where more passages match."""
    assert await found(store, name, limit=1, where={"lang": "fr"}) == ["fr-20"]


async def test_unknown_collection(store: VectorStore) -> None:
    """Every call about a collection that does not exist raises an error that says so."""
    for call in (
        store.search("never-made", at(0), limit=1),
        store.count("never-made"),
        store.known("never-made", ["a"]),
        store.sample("never-made", limit=1),
        store.add("never-made", [Passage("a", "", "")], [at(0)]),
    ):
        with pytest.raises(UnknownCollection, match="never-made"):
            await call


async def test_count_and_known(store: VectorStore, name: str) -> None:
    """A store counts and lists its passages."""
    assert await store.count(name) == 5
    assert await store.known(name, ["en-0", "fr-30", "absent"]) == {"en-0", "fr-30"}
    assert await store.known(name, []) == set()


async def test_replace(store: VectorStore, name: str) -> None:
    """Adding a known id replaces its text, its fields and its vector, and makes no second passage."""
    await store.add(name, [Passage("en-0", "New", "new", payload={"lang": "de"})], [at(90)])
    assert await store.count(name) == 5
    assert await found(store, name, limit=1) == ["en-10"]
    [passage] = await store.search(name, at(90), limit=1)
    assert (passage.title, passage.text, passage.payload) == ("New", "new", {"lang": "de"})
    assert await found(store, name, where={"lang": "en"}) == ["en-10"]


@pytest.mark.parametrize(
    "passage",
    [
        Passage("plain", "Title", "Text"),
        Passage(
            "ünï/côde 日本#1", "日本語 🙂", "עברית\nline two\ttab \x00 nul “quotes”", payload={"läng": "日本", "n": -1}
        ),
        Passage("", "", "", payload={"big": 2**63 - 1, "small": -(2**63), "yes": True, "no": False, "one": 1}),
        Passage("long", "t" * 1000, "x" * 200_000),
    ],
    ids=["plain", "unicode", "extremes", "long"],
)
async def test_round_trip(store: VectorStore, name: str, passage: Passage) -> None:
    """Id, title, text and fields come back as they went in, types included."""
    await store.add(name, [passage], [at(90)])
    [back] = await store.search(name, at(90), limit=1)
    assert (back.id, back.title, back.text, dict(back.payload)) == (
        passage.id,
        passage.title,
        passage.text,
        passage.payload,
    )
    assert {key: type(value) for key, value in back.payload.items()} == {
        key: type(value) for key, value in passage.payload.items()
    }
    assert await store.known(name, [passage.id]) == {passage.id}


async def test_add_many(store: VectorStore, name: str) -> None:
    """Adding more than fits in one batch stores them all."""
    many = [Passage(f"many-{i}", "", str(i)) for i in range(700)]
    await store.add(name, many, [at(90)] * len(many))
    assert await store.count(name) == 705


async def test_sample(store: VectorStore, name: str) -> None:
    """A sample is drawn by a hash of the ids: every store draws the same, and a larger one holds the smaller."""
    await store.add(name, [Passage(f"more-{i}", "", str(i)) for i in range(1_500)], [at(90)] * 1_500)
    every = await store.sample(name, limit=10_000)
    ids = sorted([*(passage.id for passage in PASSAGES.values()), *(f"more-{i}" for i in range(1_500))], key=point_id)
    assert [passage.id for passage in every] == ids
    assert await store.sample(name, limit=1_200) == every[:1_200]
    assert {(one.title, one.text) for one in every if one.id == "en-0"} == {("Zero", "nought")}
    assert {one.score for one in every} == {0.0}


async def test_sample_of_an_empty_collection(empty: VectorStore, name: str) -> None:
    """A collection without passages gives none."""
    await empty.create(name, dimension=3)
    assert await empty.sample(name, limit=5) == []


async def test_create_is_idempotent(store: VectorStore, name: str) -> None:
    """Making a collection again keeps what is in it."""
    await store.create(name, dimension=3)
    assert await store.count(name) == 5


async def test_other_dimension(store: VectorStore, name: str) -> None:
    """A collection keeps its dimension: making it with another, or adding such a vector, is refused whole."""
    with pytest.raises(DataError, match=name):
        await store.create(name, dimension=4)
    with pytest.raises(DataError, match=name):
        await store.add(name, [Passage("a", "", "")], [[1.0, 0.0]])
    assert await store.count(name) == 5


async def test_collections_are_apart(store: VectorStore, name: str) -> None:
    """What is added to one collection is not found in another, whose dimension is its own."""
    await store.create(f"{name}-2", dimension=2)
    await store.add(f"{name}-2", [Passage("en-0", "", "")], [[1.0, 0.0]])
    assert await store.count(f"{name}-2") == 1
    assert await store.count(name) == 5


async def test_concurrent_searches(store: VectorStore, name: str) -> None:
    """Fifty searches at once each get their own answer."""
    angles = [10.0 * (i % 5) for i in range(50)]
    results = await asyncio.gather(*(store.search(name, at(angle), limit=1) for angle in angles))
    assert [passages[0].id for passages in results] == [PASSAGES[angle].id for angle in angles]


async def test_ping_and_close(store: VectorStore, name: str) -> None:
    """An open store answers a ping; a closed one is unavailable."""
    await store.ping()
    await store.close()
    await store.close()
    with pytest.raises(UpstreamUnavailable):
        await store.ping()
    with pytest.raises(UpstreamUnavailable):
        await store.search(name, at(0), limit=1)
