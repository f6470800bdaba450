"""`fetchwise serve` as a new user runs it: real reader, real vectors, real embedder, real processes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from app.api.receipt import Receipt
from tests.e2e.processes import REPO, Gateway, descendants, fetchwise, gateway, wait_until_gone
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few passages of the demo world: enough to search, quick to embed."""
    lines = (REPO / "demo/passages.jsonl").read_text().splitlines()
    path = tmp_path_factory.mktemp("seed") / "passages.jsonl"
    path.write_text("\n".join([line for line in lines if "Jamaica" in line] + lines[:40]) + "\n")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gateway's data directory, shared by all starts."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def running(data: Path, seed: Path) -> Iterator[Gateway]:
    """One gateway for all tests; the last test stops it."""
    with gateway(data, seed=str(seed), reader_timeout_s="60") as one:
        yield one


def test_only_the_gateway_listens(running: Gateway) -> None:
    """Nothing that the gateway starts listens on a port: the reader can only be asked through it."""
    tables = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    listening = {f"socket:[{fields[9]}]" for fields in tables if fields[3] == "0A"}
    assert listening & _open_files(running.process.pid)
    assert running.reader_pid() in descendants(running.process.pid)
    for pid in descendants(running.process.pid):
        assert not listening & _open_files(pid)


def _open_files(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return found


def test_what_is_stored_is_private(running: Gateway, data: Path) -> None:
    """The log, the vectors, the model and the lock of each are for the gateway's user alone."""
    # The log of its output is the test's own file.
    stored = [path for path in data.rglob("*") if path.name != "gateway.log"]
    assert {"vectors", "decisions.sqlite3"} <= {path.name for path in stored}
    assert [path for path in stored if path.lstat().st_mode & 0o077 and not path.is_symlink()] == []


def test_curl_gets_an_answer_with_a_receipt(running: Gateway) -> None:
    """The README's curl line works, and the receipt is complete."""
    done = subprocess.run(
        [
            "curl",
            "-s",
            f"{running.url}/answer",
            "-H",
            "content-type: application/json",
            "-d",
            '{"question":"What is the capital of Jamaica?","policy":"always"}',
        ],
        capture_output=True,
        check=True,
        timeout=90,
    )
    receipt = Receipt.model_validate_json(done.stdout)
    assert "Kingston" in (receipt.answer or "")
    assert receipt.citations[0].title.startswith("Jamaica")


def test_streamed_answer_is_the_same(running: Gateway) -> None:
    """The tokens that the real reader streams make up the answer that it gives without streaming."""
    asked = {"question": "What is the capital of Jamaica?", "policy": "always", "abstain": False}
    plain = httpx.post(f"{running.url}/answer", json=asked, timeout=90).json()
    with httpx.stream("POST", f"{running.url}/answer", json=asked | {"stream": True}, timeout=90) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = "".join(response.iter_text()).strip().split("\n\n")
    events = [(block.split("\n")[0], json.loads(block.split("data: ", 1)[1])) for block in blocks]
    tokens = [data["text"] for name, data in events if name == "event: token"]
    assert [name for name, _ in events[:3]] == ["event: step", "event: step", "event: passages"]
    assert len(tokens) > 1
    assert "".join(tokens).strip() == plain["answer"] == events[-1][1]["answer"]


def test_openai_client_works(running: Gateway) -> None:
    """Complete and streamed, with a single question and with a conversation."""
    with OpenAI(base_url=f"{running.url}/v1", api_key="none", timeout=90) as client:
        whole = client.chat.completions.create(
            model="fetchwise-always", messages=[{"role": "user", "content": "What is the capital of Jamaica?"}]
        )
        assert "Kingston" in (whole.choices[0].message.content or "")
        with client.chat.completions.create(
            model="fetchwise-always",
            messages=[
                {"role": "system", "content": "You answer questions about countries."},
                {"role": "user", "content": "What do you know about Jamaica?"},
                {"role": "assistant", "content": "It is a country."},
                {"role": "user", "content": "What is the capital of Jamaica?"},
            ],
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            *chunks, ended, counted = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    receipt = (ended.model_extra or {})["fetchwise"]
    assert text == receipt["answer"]
    assert "Kingston" in text
    assert sum(bool(chunk.choices[0].delta.content) for chunk in chunks) > 1
    assert receipt["k"] == 5
    assert counted.usage is not None
    stages = [receipt["usage"][stage] for stage in ("rewrite", "probe", "read", "write")]
    assert counted.usage.prompt_tokens == sum(stage["prompt_tokens"] for stage in stages if stage)
    assert whole.usage is not None
    assert counted.usage.prompt_tokens > whole.usage.prompt_tokens


def test_ask_prints_answer_action_and_reason(running: Gateway) -> None:
    """The output of `fetchwise ask` is readable."""
    done = fetchwise("ask", "--policy", "always", "What is the capital of Jamaica?", env=running.env)
    assert done.returncode == 0, done.stderr
    assert "Kingston" in done.stdout
    assert "k5: " in done.stdout


def test_ingest_during_serve_names_the_process_that_holds_the_store(running: Gateway, seed: Path) -> None:
    """Only one process can open the embedded store, and the message names it."""
    done = fetchwise("ingest", str(seed), env=running.env)
    assert done.returncode == 1
    assert str(running.process.pid) in done.stderr
    assert "Traceback" not in done.stderr


def test_shipped_calibrator_matches_the_running_system(running: Gateway) -> None:
    """A new clone is calibrated: nothing mismatches, the ladder decides on evidence, and nonsense is out of scope."""
    calibrator = httpx.get(f"{running.url}/readyz").json()["calibrator"]
    assert calibrator["problem"] == ""
    assert calibrator["certified"]
    receipt = running.ask("What is the capital of Jamaica?").json()
    assert receipt["decision"]["calibrator"]["version"] == calibrator["version"]
    assert receipt["decision"]["scope"]["in_scope"]
    assert receipt["decision"]["steps"][0]["action"] == "search"
    assert 0.0 < receipt["confidence"] < 1.0
    nonsense = running.ask("asdf qwer").json()
    assert (nonsense["answer"], nonsense["confidence"]) == (None, None)
    assert (nonsense["abstained"], nonsense["decision"]["reason"]) == (True, "out_of_scope")


def test_doctor_says_what_is_missing_and_how_to_fix_it(tmp_path: Path) -> None:
    """With an empty data directory the upstreams pass, and the missing collection and calibrator are named."""
    env = {**os.environ, "FETCHWISE_DATA_DIR": str(tmp_path), "FETCHWISE_CALIBRATORS": str(tmp_path / "none")}
    done = fetchwise("doctor", env=env | {"COLUMNS": "200"})
    assert done.returncode == 1
    assert "SmolLM2-135M-Instruct" in done.stdout
    assert "ingest" in done.stdout
    assert "refit" in done.stdout


def test_port_in_use_is_reported_in_one_sentence(running: Gateway) -> None:
    """A second gateway on the same port fails at once, without a traceback."""
    done = fetchwise("serve", env=running.env)
    assert done.returncode == 1
    assert "FETCHWISE_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_receipt_of_ask_is_json(running: Gateway) -> None:
    """The output of `ask --json` can be piped."""
    done = fetchwise("ask", "--json", "--policy", "always", "What is the capital of Jamaica?", env=running.env)
    assert json.loads(done.stdout)["action"] == "k5"


def test_killed_or_stopped_gateway_leaves_no_process(running: Gateway, data: Path, seed: Path) -> None:
    """A killed reader costs at most one question; Ctrl-C and kill -9 leave no process; the data can be served again."""
    asked = "What is the capital of Jamaica?"
    first = running.reader_pid()
    # A stopped process cannot answer before it is killed.
    os.kill(first, signal.SIGSTOP)
    pool = ThreadPoolExecutor(1)
    asking = pool.submit(running.ask, asked, policy="always")
    in_flight = "fetchwise_in_flight 1.0"
    wait_until(lambda: in_flight in httpx.get(f"{running.url}/metrics").text, "the question is not in progress")
    os.kill(first, signal.SIGKILL)
    reply = asking.result(90)
    # 200 if the question had not reached the reader yet, and a new one was up by then.
    assert reply.status_code == 200 or reply.json()["error"]["type"] == "upstream_unavailable"
    wait_until(lambda: running.ask(asked).status_code == 200, "the reader did not come back")
    assert running.reader_pid() != first

    below = descendants(running.process.pid)
    assert below
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(30) == 0
    wait_until_gone(below)
    with gateway(data, seed=str(seed)) as again:
        assert "Kingston" in (again.ask(asked, policy="always").json()["answer"] or "")
        below = descendants(again.process.pid)
        again.process.kill()
        again.process.wait(10)
        wait_until_gone(below)
