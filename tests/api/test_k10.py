"""Ten passages as a further rung, by FETCHWISE_KS alone: collected, fitted, served, logged, counted and shown."""

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from app.cli import main
from app.core.available import Passage
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import Fakes, fake_gateway, fake_parts_opener, filled
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever

KS = (0, 1, 5, 10)
ACTIONS = [f"k{k}" for k in KS]
# What the graded policy reads here, and why.
CHOSEN = [(0, "confident"), (1, "borderline"), (10, "uncertain")]
CORPUS = [Passage(f"p{number}", "Notes", f"Note {number} about the secret.") for number in range(12)]
QUESTIONS = [f"What is the secret of number {number}?" for number in range(900)]


@pytest.fixture(autouse=True)
def ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole configuration."""
    monkeypatch.setenv("FETCHWISE_KS", "0,1,5,10")


async def parts() -> Fakes:
    """A reader whose closed-book answers are calibrated, and that needs ten passages for the others."""
    reader, embedder, vectors = Fakes(FakeReader(), FakeEmbedder(), FakeRetriever())
    chance = random.Random(3)
    for question in QUESTIONS:
        sure = chance.uniform(0.3, 0.99)
        for k, rate in {0: sure, 1: 0.3 + 0.65 * sure, 5: 0.6, 10: 0.95}.items():
            text = "right" if chance.random() < rate else "wrong"
            reader.says(question, text, k=k, sure=sure if k == 0 else 0.8)
    await filled(vectors, embedder, corpus=CORPUS)
    return Fakes(reader, embedder, vectors)


def fetchwise(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run one command, which must succeed."""
    monkeypatch.setattr(sys, "argv", ["fetchwise", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


async def test_a_further_rung_needs_no_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From `collect` and `refit` to the receipt, the log, the metrics, the dashboard and `/breakeven`."""
    monkeypatch.setattr("app.cli.console.open_parts", fake_parts_opener(*await parts()))
    (labelled := tmp_path / "questions.jsonl").write_text(
        "".join(json.dumps({"id": one, "question": one, "gold": ["right"]}) + "\n" for one in QUESTIONS)
    )
    outcomes, calibrators = tmp_path / "outcomes.jsonl", tmp_path / "calibrators"
    await asyncio.to_thread(fetchwise, monkeypatch, "collect", str(labelled), "--out", str(outcomes))
    options = ("--outcomes", str(outcomes), "--out", str(calibrators), "--epsilon", "0.1", "--policy", "graded")
    await asyncio.to_thread(fetchwise, monkeypatch, "refit", *options)

    async with fake_gateway(tmp_path, fakes=await parts(), collection=False) as gateway:
        receipts = [await gateway.receipt(question, abstain=False) for question in QUESTIONS[:100]]
        always = await gateway.receipt(policy="always", abstain=False)
        await gateway.refresh()
        economics = (await gateway.client.get("/breakeven")).json()
        shown = (await gateway.client.get("/dashboard/data?window=900")).json()
        counted = {k: await gateway.metric("requests_total", action=f"k{k}", k=str(k), reason=why) for k, why in CHOSEN}
        passages = await gateway.metric("passages_read_total", k="10")
        starting = {dict(labels)["action"] for name, labels in await gateway.metrics() if "fetchwise_requests" in name}

    assert {(one["k"], one["decision"]["reason"]) for one in receipts} == set(CHOSEN)
    assert all(one["decision"]["calibrator"]["certified"] for one in receipts)
    assert all(one["confidence"] is not None and len(one["citations"]) == one["k"] for one in receipts)
    assert (always["k"], always["action"], len(always["citations"])) == (10, "k10", 10)

    chosen = Counter(one["k"] for one in receipts)
    assert counted == chosen
    assert passages == 10 * (chosen[10] + 1)
    assert starting == {*ACTIONS, "abstain"}
    assert Counter(row["k"] for row in gateway.logged("decisions")) == chosen + Counter([10])
    assert shown["actions"] == {action: chosen[k] for k, action in zip(KS, ACTIONS, strict=True)} | {
        "k10": chosen[10] + 1,
        "abstain": 0,
    }
    assert list(economics["shares"]) == [*ACTIONS, "abstain"]
    for found in economics["costs"]["latency"], economics["costs"]["tokens"]:
        assert list(found["stages"]) == [
            "probe",
            *(f"{stage}_k{k}" for k in (1, 5, 10) for stage in ("retrieve", "read")),
        ]
        assert list(found["against"]) == ACTIONS[1:]
        assert found["stages"]["read_k10"]["n"] > 0
    assert economics["reference"] == "k10"
    assert "ten passages" in economics["sentence"]
