"""What a key is limited to: its collections, its filter, its rates, and its own answers."""

import asyncio
from pathlib import Path

import httpx
import pytest

from app.access.keys import Scope
from app.errors import UpstreamUnavailable
from tests.fakes.gateway import events_of
from tests.fakes.keys import make_key
from tests.waiting import until

from .conftest import Open, OpenKeyed
from .keyed import ASKED, BODIES, Keyed
from .replies import check_shape


async def test_collections_and_filters(keyed: Keyed) -> None:
    """403 is the same whether or not the collection exists."""
    _, presented = keyed.make(collections=["demo"], filter={"lang": "en"})
    await keyed.known(presented)
    for collection in ("nowhere", "other"):
        error = check_shape(await keyed.ask(presented, collection=collection), 403, "denied")
        assert "collection" in error.error.message
    error = check_shape(await keyed.ask(presented, filter={"lang": "fr"}), 403, "denied")
    assert error.error.message.startswith("filter.lang")
    for fine in ({}, {"collection": "demo"}, {"filter": {"lang": "en"}}, {"filter": {"year": 7}}):
        assert (await keyed.ask(presented, **fine)).status_code == 200
    counted = await keyed.denied()
    assert (counted["collection"], counted["filter"]) == (2, 1)


async def test_a_forced_filter_is_never_certified(keyed: Keyed) -> None:
    """The certificate applies to the whole collection only."""
    (_, free), (_, bound) = keyed.make(), keyed.make(filter={"lang": "en"})
    await keyed.known(free, bound)
    assert (await keyed.ask(free)).json()["decision"]["calibrator"]["certified"] is True
    assert (await keyed.ask(bound)).json()["decision"]["calibrator"]["certified"] is False


async def test_the_rate_of_a_key(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute's requests at once, then 429; after Retry-After it is served, and other keys are not affected."""
    now = 5000.0
    monkeypatch.setattr(keyed.gateway.app.state.gateway.guard.rates, "_clock", lambda: now)
    (_, presented), (_, other) = keyed.make(per_minute=3), keyed.make(per_minute=3)
    await keyed.known(presented, other)
    assert [(await keyed.ask(presented)).status_code for _ in range(3)] == [200] * 3
    refused = await keyed.ask(presented)
    error = check_shape(refused, 429, "rate_limit_exceeded")
    assert "3 requests per minute" in error.error.message
    assert refused.headers["retry-after"] == "20"
    assert (await keyed.send("POST", "/feedback", presented)).status_code == 429
    assert (await keyed.ask(other)).status_code == 200
    now += 19.0
    assert (await keyed.ask(presented)).headers["retry-after"] == "1"
    now += 1.0
    assert (await keyed.ask(presented)).status_code == 200
    assert (await keyed.denied())["rate"] == 3


async def test_questions_max_concurrent(keyed: Keyed) -> None:
    """The limit of the key applies even if the gateway is idle; it is free again when a question ends or fails."""
    (_, presented), (_, other) = keyed.make(max_concurrent=2), keyed.make()
    await keyed.known(presented, other)
    reader = keyed.gateway.reader
    reader.hang = True
    working = [asyncio.create_task(keyed.ask(presented)) for _ in range(2)]
    await until(lambda: reader.hanging == 2)
    refused = await keyed.ask(presented)
    check_shape(refused, 429, "rate_limit_exceeded")
    reader.hang = False
    assert (await keyed.ask(other)).status_code == 200
    working[0].cancel()
    await asyncio.gather(working[0], return_exceptions=True)
    assert (await keyed.ask(presented)).status_code == 200
    reader.fail_with = UpstreamUnavailable("reader", "down")
    assert [(await keyed.ask(presented)).status_code for _ in range(3)] == [503] * 3
    working[1].cancel()
    await asyncio.gather(working[1], return_exceptions=True)
    assert (await keyed.denied())["concurrency"] == 1


async def test_feedback_is_for_ones_own_answers(keyed: Keyed) -> None:
    """The id of another key's answer, an unknown id and an id from before keys give the same 404."""
    (mine, me), (_, you) = keyed.make(), keyed.make()
    await keyed.known(me, you)
    identifier = (await keyed.ask(me)).json()["id"]

    async def judge(presented: str, about: str) -> httpx.Response:
        return await keyed.send("POST", "/feedback", presented, json={"id": about})

    theirs, unknown = await judge(you, identifier), await judge(you, "f" * 24)
    for refused, about in ((theirs, identifier), (unknown, "f" * 24)):
        error = check_shape(refused, 404, "unknown_decision")
        assert error.error.message.replace(about, "ID") == unknown.json()["error"]["message"].replace("f" * 24, "ID")
    assert keyed.gateway.logged("feedback") == []
    assert (await judge(me, identifier)).status_code == 200
    (decision,), (verdict,) = keyed.gateway.logged("decisions"), keyed.gateway.logged("feedback")
    assert decision["key"] == verdict["key"] == mine.id


async def test_what_was_answered_without_keys_is_nobodys(open_gateway: Open, tmp_path: Path) -> None:
    """A key cannot judge it; without keys, answers to a key cannot be judged."""
    path = tmp_path / "data" / "keys.json"
    async with open_gateway(artifact={}) as gateway:
        before = (await gateway.client.post("/answer", json=ASKED)).json()["id"]
    _, presented = make_key(path)
    async with open_gateway() as gateway:
        keyed = Keyed(gateway, path)
        assert (await keyed.send("POST", "/feedback", presented, json={"id": before})).status_code == 404
        during = (await keyed.ask(presented)).json()["id"]
    for one in (path, path.with_name("keys.json.in-use")):
        one.unlink()
    async with open_gateway() as gateway:
        for identifier, status in ((during, 404), (before, 200)):
            said = {"id": identifier, "correct": True}
            assert (await gateway.client.post("/feedback", json=said)).status_code == status


async def test_feedback_is_wanted_of_those_who_may_give_it(open_keyed: OpenKeyed) -> None:
    """A key without the scope is never asked for feedback, on either API, streamed or not."""
    chatted = BODIES["/v1/chat/completions"]
    async with open_keyed(solicit_share=1.0, shadow_share=1.0, learning_budget=10.0) as keyed:
        (_, judge), (_, silent) = keyed.make(Scope.ANSWER, Scope.FEEDBACK), keyed.make(Scope.ANSWER)
        await keyed.known(judge, silent)
        for presented, wanted in ((judge, True), (silent, False)):
            plain = (await keyed.ask(presented)).json()
            final = events_of(await keyed.ask(presented, stream=True))[-1][1]
            completion = (await keyed.send("POST", "/v1/chat/completions", presented, json=chatted)).json()
            assert [one["feedback_wanted"] for one in (plain, final, completion["fetchwise"])] == [wanted] * 3
