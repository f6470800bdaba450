"""`fetchwise serve` as a newcomer meets it: real reader, real vectors, real embedder, real processes."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from app.api.schemas import Receipt
from tests.e2e.processes import REPO, Gateway, descendants, fetchwise, gateway, wait_until_gone

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few passages of the demo world: enough to search in, quick to embed."""
    lines = (REPO / "demo/passages.jsonl").read_text().splitlines()
    path = tmp_path_factory.mktemp("seed") / "passages.jsonl"
    path.write_text("\n".join([line for line in lines if "Jamaica" in line] + lines[:40]) + "\n")
    return path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, seed: Path) -> Iterator[Gateway]:
    """One gateway without a calibrator, for the tests that only ask."""
    data_dir = tmp_path_factory.mktemp("data")
    with gateway(data_dir, seed=str(seed), calibrators=str(data_dir / "none")) as one:
        yield one


def test_a_question_over_curl_is_answered_with_a_receipt(running: Gateway) -> None:
    """The README's curl line answers, and the receipt is complete."""
    done = subprocess.run(
        [
            "curl",
            "-s",
            f"{running.url}/answer",
            "-H",
            "content-type: application/json",
            "-d",
            '{"question":"What is the capital of Jamaica?"}',
        ],
        capture_output=True,
        check=True,
        timeout=90,
    )
    receipt = Receipt.model_validate_json(done.stdout)
    assert "Kingston" in (receipt.answer or "")
    assert receipt.citations[0].title.startswith("Jamaica")


def test_a_streamed_answer_is_the_same_and_comes_in_pieces(running: Gateway) -> None:
    """The pieces that the real reader sends make up the answer that it gives when asked at once."""
    asked = {"question": "What is the capital of Jamaica?", "abstain": False}
    plain = httpx.post(f"{running.url}/answer", json=asked, timeout=90).json()
    with httpx.stream("POST", f"{running.url}/answer", json=asked | {"stream": True}, timeout=90) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = "".join(response.iter_text()).strip().split("\n\n")
    events = [(block.split("\n")[0], json.loads(block.split("data: ", 1)[1])) for block in blocks]
    tokens = [data["text"] for name, data in events if name == "event: token"]
    assert [name for name, _ in events[:2]] == ["event: decision", "event: passages"]
    assert len(tokens) > 1
    assert "".join(tokens).strip() == plain["answer"] == events[-1][1]["answer"]


def test_the_openai_client_asks_and_is_answered(running: Gateway) -> None:
    """Whole and streamed, alone and in a conversation."""
    with OpenAI(base_url=f"{running.url}/v1", api_key="none", timeout=90) as client:
        whole = client.chat.completions.create(
            model="fetchwise", messages=[{"role": "user", "content": "What is the capital of Jamaica?"}]
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
    assert (receipt["k"], receipt["confidence"]) == (5, None)
    assert counted.usage is not None
    assert counted.usage.prompt_tokens == receipt["usage"]["read"]["prompt_tokens"]
    assert whole.usage is not None
    assert counted.usage.prompt_tokens > whole.usage.prompt_tokens


def test_without_a_calibrator_everything_reads_five_and_says_so(running: Gateway) -> None:
    """No calibrator: k=5, `not_calibrated`, and readiness, log and metric all say it."""
    receipt = running.ask("What is the currency of Jamaica?").json()
    assert (receipt["k"], receipt["decision"]["reason"]) == (5, "not_calibrated")
    assert receipt["confidence"] is None
    assert "no calibrator" in httpx.get(f"{running.url}/readyz").json()["calibrator"]["problem"]
    assert (
        'fetchwise_calibrator_info{certified="false",version="none"} 1.0' in httpx.get(f"{running.url}/metrics/").text
    )
    assert "no calibrator" in running.log.read_text()


def test_ask_prints_answer_action_and_reason(running: Gateway) -> None:
    """`fetchwise ask` is readable."""
    done = fetchwise("ask", "What is the capital of Jamaica?", env=running.env)
    assert done.returncode == 0, done.stderr
    assert "Kingston" in done.stdout
    assert "k5: no calibrator matches" in done.stdout


def test_ingest_beside_a_running_gateway_names_who_holds_the_store(running: Gateway, seed: Path) -> None:
    """The embedded store has one opener at a time, and the message names it."""
    done = fetchwise("ingest", str(seed), env=running.env)
    assert done.returncode == 1
    assert str(running.process.pid) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_reader_costs_one_question_and_comes_back(tmp_path: Path, seed: Path) -> None:
    """Kill -9 on the reader in mid-answer: that question is a 503 in the error shape, later ones are answered."""
    with gateway(tmp_path, seed=str(seed), reader_timeout_s="20") as running:
        first = running.reader_pid()
        replies: list[httpx.Response] = []
        long_question = "What is the capital of Jamaica, " + "and of the country beside it, " * 40 + "please?"
        asking = threading.Thread(target=lambda: replies.append(running.ask(long_question, policy="always")))
        asking.start()
        time.sleep(0.3)
        os.kill(first, signal.SIGKILL)
        asking.join(60)
        assert [reply.status_code for reply in replies] == [503]
        assert replies[0].json()["error"]["type"] in {"upstream_unavailable", "upstream_timeout"}
        deadline = time.monotonic() + 60
        while running.ask("What is the capital of Jamaica?").status_code != 200:
            assert time.monotonic() < deadline, "the reader did not come back"
            time.sleep(0.5)
        assert running.reader_pid() != first


def test_the_shipped_calibrator_serves_as_it_is(tmp_path: Path, seed: Path) -> None:
    """A fresh clone is calibrated: nothing mismatches, and questions are skipped or fetched for by their p."""
    with gateway(tmp_path, seed=str(seed)) as running:
        calibrator = httpx.get(f"{running.url}/readyz").json()["calibrator"]
        assert calibrator["problem"] == ""
        assert calibrator["certified"]
        receipts = [running.ask(f"What is the capital of {place}?").json() for place in ("Jamaica", "France")]
        for receipt in receipts:
            assert receipt["decision"]["calibrator"]["version"] == calibrator["version"]
            assert 0.0 < receipt["decision"]["p_closed_book"] < 1.0
            p, thresholds = receipt["decision"]["p_closed_book"], receipt["decision"]["thresholds"]
            assert (receipt["k"] == 0) == (p >= thresholds["tau0"])


def test_ctrl_c_leaves_no_process_and_the_data_serve_again(tmp_path: Path, seed: Path) -> None:
    """Ctrl-C ends the gateway and everything below it with exit code 0; the second start finds its passages."""
    with gateway(tmp_path, seed=str(seed)) as running:
        below = descendants(running.process.pid)
        assert below
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 0
        assert wait_until_gone(below) == []
    with gateway(tmp_path, seed=str(seed)) as again:
        assert "Kingston" in (again.ask("What is the capital of Jamaica?", policy="always").json()["answer"] or "")


def test_kill_9_on_the_gateway_takes_the_reader_along(tmp_path: Path, seed: Path) -> None:
    """Nothing is left behind even when the gateway gets no chance to clean up."""
    with gateway(tmp_path, seed=str(seed)) as running:
        below = descendants(running.process.pid)
        running.process.kill()
        running.process.wait(10)
        assert wait_until_gone(below) == []


def test_doctor_says_what_is_missing_and_how_to_mend_it(tmp_path: Path) -> None:
    """On an empty data directory the parts pass and the missing collection and calibrator are named."""
    env = {**os.environ, "FETCHWISE_DATA_DIR": str(tmp_path), "FETCHWISE_CALIBRATORS": str(tmp_path / "none")}
    done = fetchwise("doctor", env=env | {"COLUMNS": "200"})
    assert done.returncode == 1
    assert "SmolLM2-135M-Instruct" in done.stdout
    assert "ingest" in done.stdout
    assert "refit" in done.stdout


def test_a_taken_port_is_one_sentence(running: Gateway) -> None:
    """A second gateway on the same port says so at once, without a trace."""
    done = fetchwise("serve", env=running.env)
    assert done.returncode == 1
    assert "FETCHWISE_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_receipt_of_ask_is_json(running: Gateway) -> None:
    """`ask --json` can be piped."""
    done = fetchwise("ask", "--json", "What is the capital of Jamaica?", env=running.env)
    assert json.loads(done.stdout)["action"] == "k5"
