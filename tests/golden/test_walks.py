"""Each scenario gives what its golden file has: the reply, and every upstream call."""

import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from app.api.http.errors import ErrorOut, OpenAIErrorOut
from app.api.openai.reply import ChatCompletion
from app.api.receipt import Receipt
from app.core.policy import Reason
from tests.fakes.artifacts import an_artifact
from tests.fakes.gateway import FakeGateway, fake_gateway
from tests.fakes.reader import FakeReader

from .recording import Calls, recorded
from .scenarios import ASKED, CALIBRATORS, CHAT, SCENARIOS, Scenario

WALKS = Path(__file__).parent / "walks"
UPDATE = "pytest tests/golden --update-golden"
_ID = re.compile(r"\b[0-9a-f]{24}\b")
_WIDTH = 160


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_walk(scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, updating: bool) -> None:
    """Nothing about a scenario changes unless its golden file changes with it."""
    monkeypatch.setattr(random, "Random", seeded(scenario.seed))
    walked = await walk(scenario, tmp_path)
    path = WALKS / f"{scenario.name}.json"
    if updating:
        path.write_text(pretty(walked) + "\n")
    assert path.exists(), f"no golden file: {UPDATE}"
    assert walked == json.loads(path.read_text()), f"if this is meant: {UPDATE}"


def test_every_file_has_its_scenario(*, updating: bool) -> None:
    """No golden file is left of a scenario that is gone, and no two scenarios share one."""
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    orphans = [path for path in WALKS.iterdir() if path.stem not in names]
    if updating:
        for path in orphans:
            path.unlink()
        return
    assert not orphans, f"golden files without a scenario: {UPDATE}"


def test_every_reason_is_reached() -> None:
    """Every action and every reason is in a walk, except the bypass, which needs much traffic."""
    walks = "".join(path.read_text() for path in WALKS.iterdir())
    assert {reason for reason in Reason if f'"reason": "{reason.value}"' in walks} == set(Reason) - {Reason.BYPASSED}
    assert all(f'"action": "{action}"' in walks for action in ("k0", "k1", "k5", "abstain"))


async def walk(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """Send the scenario's request to a new gateway, and record what happens."""
    calls = Calls(scenario.fails)
    async with opened(scenario, calls, folder) as gateway:
        know(gateway.reader, scenario)
        body = dict(scenario.body) if "messages" in scenario.body else {"question": ASKED} | scenario.body
        response = await gateway.client.post(scenario.path, json=body)
        # A copy: what the end of the gateway cancels is no part of the scenario.
        made = [dict(call) for call in calls.made]
    streams = response.headers["content-type"].startswith("text/event-stream")
    if not streams:
        check_schema(response)
    return settled(
        {
            "status": response.status_code,
            "headers": {name: value for name, value in sorted(response.headers.items()) if depends(name)},
            **({"events": events(response)} if streams else {"body": response.json()}),
            "calls": made,
        }
    )


def seeded(seed: int) -> type[random.Random]:
    """A random generator with this seed, where no seed is given."""

    class Seeded(random.Random):
        def __init__(self, x: int | None = None) -> None:
            super().__init__(seed if x is None else x)

    return Seeded


def check_schema(response: httpx.Response) -> None:
    """A reply equals its documented schema to the last key."""
    good, bad = (ChatCompletion, OpenAIErrorOut) if response.request.url.path == CHAT else (Receipt, ErrorOut)
    schema: type[BaseModel] = good if response.status_code == 200 else bad
    assert schema.model_validate(response.json()).model_dump(mode="json") == response.json()


@asynccontextmanager
async def opened(scenario: Scenario, calls: Calls, folder: Path) -> AsyncIterator[FakeGateway]:
    """The scenario's gateway; some scenarios have a question that holds the only permit."""
    settings: dict[str, Any] = {"solicit_share": 0.0, "decision_log": "off"} | dict(scenario.settings)
    if scenario.mandatory:
        settings["mandatory_retrieval"] = folder / "mandatory.txt"
        settings["mandatory_retrieval"].write_text(scenario.mandatory)
    if scenario.calibrator == "revoked":
        (folder / "data").mkdir()
        (folder / "data" / "revoked.json").write_text(json.dumps({an_artifact().version: "feedback"}))
    if scenario.full:
        settings |= {"max_in_flight": 1, "queue": 0}
    async with fake_gateway(
        folder, artifact=CALIBRATORS[scenario.calibrator], fakes=recorded(calls), **settings
    ) as gateway:
        if not scenario.full:
            yield gateway
            return
        async with gateway.busy():
            yield gateway


def know(reader: FakeReader, scenario: Scenario) -> None:
    """Script the answers, so that each shows how many passages it was read from."""
    five = scenario.read if scenario.five is None else scenario.five
    for k, text, sure in ((0, "Paris", scenario.p), (1, "It is one", scenario.read), (5, "It is five", five)):
        if isinstance(sure, tuple):
            reader.says(ASKED, text, k=k, tokens=sure)
        else:
            reader.says(ASKED, text, k=k, sure=sure)


def depends(header: str) -> bool:
    """Whether a header depends on the scenario."""
    return header in {"content-type", "retry-after"} or header.startswith("x-fetchwise-")


def events(response: httpx.Response) -> list[Any]:
    """Server-sent events in order: name and data, or the data alone where they have no name."""
    found: list[Any] = []
    for block in response.text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"] if fields["data"] == "[DONE]" else json.loads(fields["data"])
        found.append([fields["event"], data] if "event" in fields else data)
    return found


def settled(value: Any, key: str = "") -> Any:
    """A value without what differs from run to run or from machine to machine."""
    if isinstance(value, dict):
        return {name: settled(each, "ms" if key == "timings_ms" else name) for name, each in value.items()}
    if isinstance(value, list):
        return [settled(each) for each in value]
    if isinstance(value, str):
        return _ID.sub("<id>", value)
    if key in {"ms", "created"} and value is not None:
        return f"<{key}>"
    return float(f"{value:.6g}") if isinstance(value, float) else value


def pretty(value: Any, indent: str = "") -> str:
    """JSON in which a line holds what fits into one, or has no object in it."""
    line = json.dumps(value, ensure_ascii=False)
    each = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if len(indent + line) <= _WIDTH or not any(isinstance(one, dict | list) for one in each):
        return line
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, dict) else [""] * len(each)
    inner = indent + " "
    items = ",\n".join(f"{inner}{name}{pretty(one, inner)}" for name, one in zip(names, each, strict=True))
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{items}\n{indent}{end}"
