"""When a gateway asks for keys, and that their secrets are nowhere to be found."""

import base64
import logging
from pathlib import Path
from typing import Any

import pytest

from app.access.keys import Scope

from .conftest import Open, OpenKeyed
from .keyed import ASKED, NEEDS, basic


async def test_named_keys_are_wanted(open_gateway: Open, tmp_path: Path) -> None:
    """A file that the operator names and that is not there lets nobody in."""
    async with open_gateway(keys=tmp_path / "elsewhere.json") as gateway:
        assert (await gateway.client.post("/answer", json=ASKED)).status_code == 401


@pytest.mark.parametrize(
    ("chosen", "status"),
    [({"host": "0.0.0.0"}, 401), ({"host": "0.0.0.0", "open_to_anyone": "anyone may ask and see everything"}, 200)],
)
async def test_others_are_let_in_without_keys_only_in_words(
    open_gateway: Open, chosen: dict[str, Any], status: int
) -> None:
    """Also by a worker that starts after the file was lost."""
    async with open_gateway(artifact={}, **chosen) as gateway:
        assert (await gateway.client.post("/answer", json=ASKED)).status_code == status


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_the_secret_is_nowhere(open_keyed: OpenKeyed, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the log at any level, not in replies, metrics, receipts or figures, not in any file, nor is its hash."""
    caplog.set_level(logging.DEBUG)
    seen = []
    async with open_keyed(log_questions=True) as keyed:
        made, presented = keyed.make(*Scope, per_minute=60, filter={"lang": "en"})
        await keyed.known(presented)
        wrong = f"{presented[:-4]}XXXX"
        for one in (presented, wrong):
            receipt = await keyed.ask(one)
            seen += [receipt, await keyed.ask(one, filter={"lang": "fr"}), await keyed.ask(one, collection="nowhere")]
            seen += [await keyed.ask(one, question=""), await keyed.send("GET", "/nowhere", one)]
            for method, path in NEEDS:
                seen.append(await keyed.send(method, path, one))
                seen.append(await keyed.send(method, path, headers=basic(one)))
            if receipt.status_code == 200:
                judged = await keyed.send("POST", "/feedback", one, json={"id": receipt.json()["id"]})
                assert judged.status_code == 200
                seen.append(judged)
        keyed.gateway.reader.fail_with = ZeroDivisionError("unforeseen")
        seen.append(await keyed.ask(presented))
        assert seen[-1].status_code == 500
        while seen[-1].status_code != 429:
            seen.append(await keyed.send("GET", "/breakeven", presented))
    secret, almost = presented.rpartition(made.id + "_")[2], wrong.rpartition(made.id + "_")[2]
    held = [response.text + str(response.headers) for response in seen] + [caplog.text]
    held += [str(vars(record)) for record in caplog.records]
    held += [str(record.fields()) for record in caplog.records if hasattr(record, "fields")]
    files = _files(tmp_path)
    assert files.keys() >= {"decisions.sqlite3", "keys.json"}
    for text in (secret, almost, base64.b64encode(f"me:{presented}".encode()).decode()):
        assert not [one for one in held if text in one]
        assert not [name for name, content in files.items() if text.encode() in content]
    assert not [one for one in held if made.sha256 in one]
    assert [name for name, content in files.items() if made.sha256.encode() in content] == ["keys.json"]
    # It is known by its public id instead.
    assert any(made.id in one for one in held)
