"""Random actions and shadow runs in a running gateway: what receipts, the log and the metrics say of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.calibrators.store import ArtifactStore
from app.core.artifact import Identity
from app.errors import ConfigurationError
from app.learning import shadow
from app.offline.from_log import identities, read_log
from app.offline.refit.refit import MIN_GROUPS
from app.storage.decisions import SqlDecisionStore
from app.storage.reading import LoggedDecisions
from tests.fakes.gateway import FakeGateway
from tests.waiting import until

from .conftest import Open
from .test_feedback import say


async def eventually_kept(gateway: FakeGateway, table: str, count: int) -> list[Any]:
    """Rows of a table, once there are that many."""
    await until(lambda: len(gateway.logged(table)) >= count)
    return gateway.logged(table)


async def test_a_random_action_says_so_and_its_chances_are_logged(open_gateway: Open) -> None:
    """With a share of one every question is drawn: all three actions come up, none is called certified."""
    async with open_gateway(artifact={}, explore_share=1.0) as gateway:
        receipts = [await gateway.receipt(abstain=False) for _ in range(40)]
        rows = await eventually_kept(gateway, "decisions", 40)
    assert {receipt["action"] for receipt in receipts} == {"k0", "k1", "k5"}
    assert {receipt["decision"]["reason"] for receipt in receipts} == {"explored"}
    assert not any(receipt["decision"]["calibrator"]["certified"] for receipt in receipts)
    for row in rows:
        assert row["explored"] == 1
        assert json.loads(row["propensities"]).keys() == {"k0", "k1", "k5"}


async def test_required_evidence_and_abstention_stand_above_chance(open_gateway: Open) -> None:
    """Under `required` no draw answers closed-book, and an unsure answer is withheld however it was chosen."""
    async with open_gateway(artifact={}, explore_share=1.0) as gateway:
        required = [await gateway.receipt(retrieval="required") for _ in range(20)]
        gateway.reader.says("Who?", "Nobody.", sure=0.05)
        unsure = [await gateway.receipt("Who?") for _ in range(10)]
    assert {receipt["k"] for receipt in required} == {1, 5}
    assert {receipt["action"] for receipt in unsure} == {"abstain"}


async def test_a_spent_budget_ends_exploration(open_gateway: Open) -> None:
    """Once the first allowance is gone, a budget of nothing leaves every decision to the gate."""
    async with open_gateway(artifact={}, explore_share=1.0, learning_budget=0.0) as gateway:
        long = "What is the capital of France? " * 60
        reasons = [(await gateway.receipt(long))["decision"]["reason"] for _ in range(40)]
    assert reasons[0] == "explored"
    assert reasons[-1] != "explored"


async def test_a_shadow_run_follows_when_the_gateway_is_idle(open_gateway: Open) -> None:
    """The receipt asks for feedback; every action's answer is stored under its id, and references label all three."""
    async with open_gateway(artifact={}, shadow_share=1.0) as gateway:
        receipt = await gateway.receipt()
        (run,) = await eventually_kept(gateway, "full_runs", 1)
        assert (await say(gateway, receipt["id"], references=["Francville", "Paris"])).status_code == 200
        assert await gateway.metric("shadow_runs_total", result="completed") == 1
    assert receipt["feedback_wanted"]
    assert run["decision_id"] == receipt["id"]
    assert json.loads(run["outcomes"]).keys() == {"0", "1", "5"}


async def test_nothing_is_drawn_by_default(open_gateway: Open) -> None:
    """Learning costs, so it is off until an operator wants it; without a log it could not even be kept."""
    async with open_gateway(artifact={}) as gateway:
        receipts = [await gateway.receipt() for _ in range(5)]
        rows = await eventually_kept(gateway, "decisions", 5)
        assert gateway.logged("full_runs") == []
    assert all(row["propensities"] is None for row in rows)
    assert all(receipt["decision"]["reason"] != "explored" for receipt in receipts)
    async with open_gateway(artifact={}, explore_share=1.0, shadow_share=1.0, decision_log="off") as gateway:
        assert (await gateway.receipt())["decision"]["reason"] != "explored"


async def test_shadow_runs_need_the_texts(open_gateway: Open) -> None:
    """With hashes only, a run cannot be judged: such a gateway does not start."""
    with pytest.raises(ConfigurationError, match="FETCHWISE_LOG_TEXTS=full"):
        async with open_gateway(artifact={}, shadow_share=0.1, log_texts="hash"):
            pass


async def test_a_refit_reads_what_a_gateway_logged(open_gateway: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, shadow runs and feedback of a running gateway become full rows and single-action rows."""
    monkeypatch.setattr(shadow, "IDLE_S", 0.0)
    async with open_gateway(artifact={}, explore_share=0.5, shadow_share=1.0, learning_budget=1e6) as gateway:
        receipts = [await gateway.receipt(f"Who is number {n}?", abstain=False) for n in range(120)]
        await eventually_kept(gateway, "full_runs", MIN_GROUPS)
        for receipt in receipts:
            assert (await say(gateway, receipt["id"], references=["Francville"])).status_code == 200
        settings = gateway.settings
    store = SqlDecisionStore.open(str(settings.decision_log_at))
    logged_decisions = LoggedDecisions(store.database, collection=settings.vectors.collection, since=0.0)
    logged = read_log(logged_decisions, identity_of=identities(settings.calibration.where))
    store.close()
    account = logged.rows.report["log"]
    assert len(logged.outcomes) == account["full_rows"] >= MIN_GROUPS
    assert logged.outcomes.identity == next(iter(identities_in(settings.calibration.where)))
    assert all(np.isfinite(logged.outcomes.signals[k]["seq_logprob"]).all() for k in (0, 1, 5))
    # Runs that found no idle moment in time leave rows of one action.
    left = account["single_action_rows"] + account["excluded"].get("held_out", 0)
    assert account["full_rows"] + left == 120
    assert account["excluded"].keys() <= {"held_out"}


def identities_in(folder: Path) -> list[Identity | None]:
    """What the calibrators of a folder were fitted on."""
    store = ArtifactStore(folder)
    return [store.load(version).identity for version in store.versions()]
