"""Drift in one running gateway: confidences become too high, the calibrator is revoked, and a refit restores it."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.calibrators import drift
from app.learning import shadow
from app.offline.from_log import identities, read_log
from app.offline.refit.holdout import publish
from app.offline.refit.options import Options
from app.offline.refit.refit import refit
from app.storage.decisions import SqlDecisionStore
from app.storage.reading import LoggedDecisions
from tests.fakes.gateway import FakeGateway
from tests.waiting import until

from .conftest import Open

RIGHT, WRONG = "Certainly right.", "Certainly wrong."


@dataclass
class Fading:
    """Questions with calibrated closed-book answers, until the reader becomes worse."""

    gateway: FakeGateway
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    known: bool = True
    asked: int = 0
    judged_until: float = 0.0

    async def ask(self) -> dict[str, Any]:
        """Ask a new question and send its reference as feedback."""
        self.asked += 1
        question = f"What is the secret of number {self.asked}?"
        sure = self.chance.uniform(0.3, 0.99)
        rates = {0: sure if self.known else sure - 0.5, 1: 0.8, 5: 0.85}
        for k, rate in rates.items():
            text = RIGHT if self.chance.random() < rate else WRONG
            self.gateway.reader.says(question, text, k=k, sure=sure if k == 0 else 0.8)
        receipt: dict[str, Any] = (await self.gateway.client.post("/answer", json={"question": question})).json()
        said = await self.gateway.client.post("/feedback", json={"id": receipt["id"], "references": ["right"]})
        assert said.status_code == 200, said.text
        self.judged_until = time.time()
        return receipt

    def waited(self) -> float:
        """A time at which the waiting time has passed for what is judged, and for nothing else."""
        return self.judged_until + 86_400.0

    async def problem(self) -> str:
        """What /readyz says about the calibrator."""
        await self.gateway.refresh()
        problem: str = (await self.gateway.client.get("/readyz")).json()["calibrator"]["problem"]
        return problem


async def test_drift_revokes_and_a_refit_from_the_log_restores(
    open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alarm, fallback, refit on shadow runs since the change, and the new version is served, without a restart."""
    monkeypatch.setattr("app.wiring.gateway.DRIFT_EVERY_S", 0.02)
    monkeypatch.setattr("app.wiring.gateway.CALIBRATOR_EVERY_S", 0.02)
    monkeypatch.setattr(shadow, "IDLE_S", 0.0)
    learning = {"solicit_share": 1.0, "shadow_share": 1.0, "learning_budget": 100.0}
    async with open_gateway(artifact={}, **learning) as gateway:
        traffic = Fading(gateway)
        monkeypatch.setattr(drift, "now", traffic.waited)
        for _ in range(100):
            await traffic.ask()
        assert await traffic.problem() == ""

        traffic.known, changed = False, time.time()
        while "revoked" not in await traffic.problem() and traffic.asked < 500:
            await traffic.ask()
        assert traffic.asked < 500, "the alarm never came"
        receipt = await traffic.ask()
        assert (receipt["decision"]["reason"], receipt["k"]) == ("not_certified", 1)
        assert await gateway.metric("calibrator_revoked") == 1

        while traffic.asked < 800:
            await traffic.ask()
        runs = traffic.asked - 100

        async def ran() -> bool:
            return await gateway.metric("shadow_runs_total", result="completed") >= runs

        await until(ran)
        version = await asyncio.to_thread(
            refitted, gateway.settings.server.data_dir, gateway.settings.calibration.where, changed
        )

        async def served() -> bool:
            return bool((await traffic.ask())["decision"]["calibrator"]["version"] == version)

        await until(served)
        # The scope test has false alarms, so that a single question may be uncertified.
        receipts = [await traffic.ask() for _ in range(10)]
        used = [one["decision"]["calibrator"] for one in receipts]
        assert (version, True) in [(one["version"], one["certified"]) for one in used]
        assert await traffic.problem() == ""
        assert await gateway.metric("calibrator_revoked") == 0


def refitted(data: Path, calibrators: Path, since: float) -> str:
    """Do what `fetchwise refit --from-log` does; returns the new CURRENT."""
    store = SqlDecisionStore.open(str(data / "decisions.sqlite3"))
    try:
        logged_decisions = LoggedDecisions(store.database, collection="demo", since=since)
        learned = read_log(logged_decisions, identity_of=identities(calibrators))
    finally:
        store.close()
    options = Options(calibrators.name, "2026-01-31T12:00:00Z", epsilon=0.1, risk_target=0.4)
    artifact, summary = refit(learned.outcomes, options, logged=learned.rows)
    assert publish(artifact, summary.stats, calibrators, test=summary.test).current
    return artifact.version
