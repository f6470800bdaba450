"""Real Prometheus and Alertmanager with the configuration of deploy/, on free ports and with shorter intervals."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.processes import REPO
from tests.waiting import wait_until
from tests.wire.servers import free_port

DEPLOY = REPO / "deploy"
RUNBOOK = "https://runbooks.example/fetchwise.md"
Labels = Mapping[str, str]
Rewrite = Callable[[str], str]


def tool(name: str) -> str:
    """The path of a monitoring tool."""
    found = shutil.which(name)
    assert found, f"no {name}: `make test-e2e` installs it"
    return found


def run_tool(name: str, *arguments: str | Path) -> str:
    """Run a tool to its end and return its output; it must succeed."""
    done = subprocess.run([tool(name), *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def get(self, path: str, **params: str) -> Any:
        """The data of an API reply."""
        reply = httpx.get(f"{self.url}/api/v1/{path}", params=params, timeout=10)
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]

    def query(self, expr: str) -> list[tuple[Labels, float]]:
        """The current series of an expression, with their values."""
        return [(one["metric"], float(one["value"][1])) for one in self.get("query", query=expr)["result"]]

    def by(self, label: str, expr: str) -> dict[str, float]:
        """The values by one label, which must be unique."""
        found = self.query(expr)
        values = {labels[label]: value for labels, value in found}
        assert len(values) == len(found), f"{label} is not unique: {found}"
        return values

    def value(self, expr: str) -> float:
        """The value of an expression with one series."""
        ((_, value),) = self.query(expr)
        return value

    def until(self, expr: str) -> None:
        """Wait until an expression has a series."""
        wait_until(lambda: self.query(expr), f"{expr} stayed empty")

    def settle(self) -> None:
        """Wait until every rule has been evaluated on the latest scrape, including rules that read other rules."""
        for _ in range(2):
            now = datetime.now(UTC)
            wait_until(lambda since=now: self._evaluated_since(since), "the rules were not evaluated")  # type: ignore[misc]

    def firing(self, job: str | None = None) -> set[str]:
        """The names of the firing alerts, of one job or of all."""
        return {
            one["labels"]["alertname"]
            for one in self.get("alerts")["alerts"]
            if one["state"] == "firing" and job in {None, one["labels"].get("job")}
        }

    def _evaluated_since(self, moment: datetime) -> bool:
        groups = self.get("rules")["groups"]
        broken = [rule for group in groups for rule in group["rules"] if rule["health"] == "err"]
        assert not broken, broken
        # The timestamp is that of the start of an evaluation.
        return all(datetime.fromisoformat(group["lastEvaluation"]) > moment for group in groups)


@contextmanager
def prometheus(
    folder: Path,
    targets: Mapping[str, Sequence[str]],
    *,
    rewrite: Rewrite = lambda rules: rules,
    alertmanager: str | None = None,
) -> Iterator[Prometheus]:
    """Run Prometheus with our configuration: every second instead of every 15, these targets, and modified rules."""
    port = free_port()
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for scraped in config["scrape_configs"]:
        if scraped["job_name"] == "prometheus":
            scraped["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    for name in ("rules", "targets"):
        (folder / name).mkdir(parents=True)
    for rules in (DEPLOY / "prometheus/rules").glob("*.yml"):
        (folder / "rules" / rules.name).write_text(rewrite(rules.read_text()))
    everyone = {**targets, "alertmanager": [alertmanager] if alertmanager else []}
    for job, addresses in everyone.items():
        write_targets(folder, job, addresses)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    arguments = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=expand-external-labels,exemplar-storage",
    )
    with _running("prometheus", arguments, folder, f"http://127.0.0.1:{port}/-/ready", RUNBOOK_URL=RUNBOOK):
        yield Prometheus(f"http://127.0.0.1:{port}")


def write_targets(folder: Path, job: str, addresses: Sequence[str]) -> None:
    """Write what Prometheus scrapes, each as `address` or `job/address`; it notices a change within seconds."""
    groups = [{"targets": [one.partition("/")[2] or one], "labels": _job_of(one)} for one in addresses]
    (folder / f"targets/{job}.yml").write_text(yaml.safe_dump(groups))


def _job_of(address: str) -> dict[str, str]:
    job, _, rest = address.partition("/")
    return {"job": job} if rest else {}


def scaled(rules: str, factor: int = 600) -> str:
    """The same rules, by default 600 times as fast: an hour is six seconds. Slow is 2.5 s instead of ten.

    No window is shorter than a few scrapes.
    """
    seconds = {"m": 60, "h": 3600, "d": 86_400}

    def shorter(match: "re.Match[str]", least: int) -> str:
        return f"{match[1]}{max(least, int(match[2]) * seconds[match[3]] // factor)}s"

    rules = re.sub(r"(\[)(\d+)([mhd])(?=\])", lambda match: shorter(match, 5), rules)
    rules = re.sub(r"(for: |offset )(\d+)([mhd])\b", lambda match: shorter(match, 1), rules)
    return rules.replace('le="10.0"', 'le="2.5"')


@contextmanager
def alertmanager(folder: Path) -> Iterator[str]:
    """Run Alertmanager with our configuration; yields its address."""
    port = free_port()
    arguments = (
        f"--config.file={DEPLOY / 'alertmanager/alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    )
    with _running("prometheus-alertmanager", arguments, folder, f"http://127.0.0.1:{port}/-/ready"):
        yield f"127.0.0.1:{port}"


@contextmanager
def _running(name: str, arguments: Sequence[str], folder: Path, ready: str, **env: str) -> Iterator[None]:
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen([tool(name), *arguments], stdout=file, stderr=file, env=os.environ | env)

    def is_ready() -> bool:
        assert process.poll() is None, f"{name} ended: {log.read_text()[-3000:]}"
        try:
            return httpx.get(ready, timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until(is_ready, f"{name} was not ready in time")
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
