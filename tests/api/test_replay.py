"""Every logged decision, read back from disk and decided again by the artifact that it names, comes out the same."""

import itertools
from typing import Any

import pytest

from app.calibrators.store import ArtifactStore
from app.core.replay import Logged, Replayed, replay_logged
from app.core.scope import Scope
from app.errors import UpstreamTimeout, UpstreamUnavailable
from app.storage.decisions import SqlDecisionStore
from app.storage.reading import logged
from tests.fakes.artifacts import a_ladder_artifact
from tests.fakes.gateway import FakeGateway

from .conftest import Open
from .test_learning import eventually_kept

POLICIES = ("ladder", "graded", "binary", "always", "never")
RETRIEVALS = ("auto", "required", "forbidden")
SURE = (0.05, 0.3, 0.55, 0.65, 0.9)
WISHES = [
    {"policy": policy, "retrieval": retrieval, "abstain": abstain}
    for policy, retrieval, abstain in itertools.product(POLICIES, RETRIEVALS, (True, False))
    if (policy, retrieval) not in {("always", "forbidden"), ("never", "required")}
]


async def ask_everything(gateway: FakeGateway, **more: Any) -> int:
    """Ask with every wish and degree of confidence; returns how many questions were answered."""
    answered = 0
    for number, (wish, sure) in enumerate(itertools.product(WISHES, SURE)):
        question = f"What is the secret of number {number}?"
        gateway.reader.says(question, "Nobody knows.", k=0, sure=sure)
        for k in (1, 5):
            gateway.reader.says(question, "It is out.", k=k, sure=1.0 - sure)
        reply = await gateway.ask(question, **wish, **more)
        answered += reply.status_code == 200
    return answered


async def decided_again(gateway: FakeGateway, count: int) -> tuple[list[Logged], list[Replayed]]:
    """What the log holds, and what comes of deciding it again."""
    await eventually_kept(gateway, "decisions", count)
    store = SqlDecisionStore.open(str(gateway.settings.server.data_dir / "decisions.sqlite3"))
    found = logged(store.database, last=10_000)
    store.close()
    assert len(found) == count
    return found, list(replay_logged(found, ArtifactStore(gateway.settings.calibration.where).load))


@pytest.mark.parametrize("texts", ["full", "hash"])
async def test_logged_decisions_replay(open_gateway: Open, texts: str) -> None:
    """Over all policies, wishes and degrees of confidence; no text of a question or an answer is needed."""
    async with open_gateway(artifact={}, log_texts=texts) as gateway:
        found, again = await decided_again(gateway, await ask_everything(gateway))
    assert {one.action for one in found} == {"k0", "k1", "k5", "abstain"}
    assert again == [Replayed(one.id) for one in found]


async def test_explored_decisions_replay(open_gateway: Open) -> None:
    """The random draw is in the row."""
    async with open_gateway(artifact={}, explore_share=0.5, learning_budget=1.0) as gateway:
        found, again = await decided_again(gateway, await ask_everything(gateway))
    assert len([one for one in found if one.effective_policy["sampled"]["explore"] is not None]) > 10
    assert again == [Replayed(one.id) for one in found]


@pytest.mark.parametrize(
    ("broken", "reasons"),
    [
        ("vectors", {"retrieval_failed"}),
        ("filter", {"no_passages"}),
        ("reader", {"degraded", "low_confidence"}),
    ],
)
async def test_decisions_with_a_failure_replay(open_gateway: Open, broken: str, reasons: set[str]) -> None:
    """A search that failed or found nothing, a read that failed: the answer that was left comes out again."""
    async with open_gateway(artifact={}) as gateway:
        if broken == "vectors":
            gateway.vectors.fail_with = UpstreamUnavailable("vectors", "gone")
        elif broken == "reader":
            gateway.reader.fail_on_k, gateway.reader.fail_with = 5, UpstreamTimeout("reader", "slow")
        more = {"filter": {"lang": "nowhere"}} if broken == "filter" else {}
        found, again = await decided_again(gateway, await ask_everything(gateway, **more))
    failed = [one for one in found if one.failure_kind is not None]
    assert reasons <= {one.reason for one in failed}
    assert again == [Replayed(one.id) for one in found]


async def test_decisions_without_a_calibrator_replay(open_gateway: Open) -> None:
    """Decisions without a calibrator need no artifact."""
    async with open_gateway() as gateway:
        found, again = await decided_again(gateway, await ask_everything(gateway))
    assert {one.reason for one in found} >= {"not_calibrated", "retrieval_forbidden"}
    assert again == [Replayed(one.id) for one in found]


@pytest.mark.parametrize(
    ("floors", "reason"),
    [({}, "confident"), ({"search.cosine": 2.0}, "out_of_scope")],
    ids=["in scope", "out of scope"],
)
@pytest.mark.parametrize("explore", [0.0, 0.5])
async def test_decisions_of_the_ladder_replay(
    open_gateway: Open, floors: dict[str, float], reason: str, explore: float
) -> None:
    """With its options, the evidence that moved it, and the scope test."""
    fitted = a_ladder_artifact()
    scope = Scope(0.05, floors, None, ("LATIN",), "questions in English")
    artifact = {"heads": fitted.heads, "ladder": fitted.ladder, "scope": scope}
    async with open_gateway(artifact=artifact, explore_share=explore, learning_budget=1.0) as gateway:
        found, again = await decided_again(gateway, await ask_everything(gateway))
    assert reason in {one.reason for one in found}
    assert any(step["options"] for one in found for step in one.steps)
    assert again == [Replayed(one.id) for one in found]
