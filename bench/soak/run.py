"""Run the gateway under mixed load for a long time and report whether anything grew: `make soak`.

A real `fetchwise serve` with keys, metrics and the decision log runs on simulated upstreams that fail now and then,
while calibrators are promoted and keys are created and revoked. Writes build/soak/soak.json and a plot; the exit code
is the verdict.
"""

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from app.access.keys import Scope
from app.calibrators.store import ArtifactStore
from app.wiring.gateway import key_file
from bench.soak.load import PATIENCE_S, Clients
from bench.soak.plot import draw
from bench.soak.upstream import VERSIONS, Fault, Upstream, upstream
from bench.soak.verdict import Finding, judge
from bench.soak.watching import MB, Sample, counted, open_files, quantile, used
from tests.e2e.processes import REPO, gateway
from tests.fakes.keys import make_key

OUT = REPO / "build" / "soak"
# The part of a run that is not judged: pools fill, caches warm up, the heap reaches its size.
WARM_UP_SHARE, MAX_WARM_UP_S = 0.25, 300.0
# Longer than the gateway and its clients keep idle connections.
REST_S = 8.0
# More than can be in progress at a moderate rate: beyond it the gateway has stopped answering.
MAX_CONCURRENT = 1000
PROMOTE_EVERY_S, KEY_EVERY_S, FAULT_EVERY_S, FAULT_S = 7.0, 11.0, 15.0, 1.0


class Soak:
    """One run: the load, the changes during it, and the samples."""

    def __init__(self, seconds: float, rate: float, clients: Clients, pid: int) -> None:
        self.samples: list[Sample] = []
        self.open_at_rest: list[dict[str, int]] = []
        self._seconds = seconds
        self._rate = rate
        self._clients = clients
        self._pid = pid
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        self._in_progress: set[asyncio.Task[None]] = set()

    @property
    def _elapsed(self) -> float:
        return self._now() - self._began

    async def load(self, until: float) -> None:
        """Send requests at the rate, each when it is due, and wait for the last."""
        due = self._elapsed
        while due < until:
            await asyncio.sleep(max(0.0, due - self._elapsed))
            due += 1 / self._rate
            if len(self._in_progress) < MAX_CONCURRENT:
                task = asyncio.create_task(self._clients.one())
                self._in_progress.add(task)
                task.add_done_callback(self._in_progress.discard)
        async with asyncio.timeout(2 * PATIENCE_S):
            await asyncio.gather(*self._in_progress)

    async def watch(self, progress: Progress) -> None:
        """Take a sample every second until cancelled."""
        bar = progress.add_task("", total=self._seconds)
        while True:
            sample = await self.look()
            self.samples.append(sample)
            said = f"{sample.requests} requests, {sample.rss / MB:.0f} MB, {sample.fds} files, {sample.threads} threads"
            progress.update(bar, completed=sample.at, description=said)
            await asyncio.sleep(1.0)

    async def look(self) -> Sample:
        """Take one sample now."""
        in_flight, lags = counted(await self._clients.metrics())
        return Sample(self._elapsed, self._clients.sent, *used(self._pid), in_flight, lags)

    async def at_rest(self) -> Sample:
        """The idle gateway: abandoned requests are cancelled, and idle connections are closed."""
        for _ in range(40):
            if (await self.look()).in_flight == 0:
                break
            await asyncio.sleep(0.5)
        await asyncio.sleep(REST_S)
        self.open_at_rest.append(open_files(self._pid))
        return await self.look()


async def _promote(store: ArtifactStore) -> None:
    for number in range(sys.maxsize):
        await asyncio.sleep(PROMOTE_EVERY_S)
        await asyncio.to_thread(store.promote, list(VERSIONS)[number % len(VERSIONS)])


async def _change_keys(path: Path) -> None:
    while True:
        await asyncio.sleep(KEY_EVERY_S)
        made, _ = await asyncio.to_thread(make_key, path, "passing")
        await asyncio.sleep(KEY_EVERY_S)
        await asyncio.to_thread(key_file(path).revoke, made.id)


async def _fail(parts: Upstream) -> None:
    rng = random.Random(7)
    while True:
        await asyncio.sleep(FAULT_EVERY_S)
        with parts.failing(rng.choice(["reader", "embedder", "vectors"]), rng.choice(list(Fault))):
            await asyncio.sleep(FAULT_S)


async def soak(seconds: float, rate: float, folder: Path, console: Console) -> list[Finding]:
    """Run the soak, write the results, and judge them."""
    warm_up_s = min(WARM_UP_SHARE * seconds, MAX_WARM_UP_S)
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(upstream())
        store = await parts.publish(folder / "calibrators")
        keys = folder / "keys.json"
        _, caller = make_key(keys, "caller")
        _, operator = make_key(keys, "operator", scopes=[Scope.OPERATE])
        serving = gateway(folder, **parts.settings(folder / "calibrators"))
        # Started and stopped in a thread: the event loop of this one serves the upstreams that the gateway calls.
        running = await asyncio.to_thread(serving.__enter__)
        try:
            clients = Clients(running.url, caller=caller, operator=operator)
            stack.push_async_callback(clients.close)
            await clients.begin()
            run = Soak(seconds, rate, clients, running.process.pid)
            with Progress(
                BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn(), console=console
            ) as progress:
                background = (run.watch(progress), _promote(store), _change_keys(keys), _fail(parts))
                async with asyncio.TaskGroup() as tasks:
                    running_tasks = [tasks.create_task(work) for work in background]
                    await run.load(warm_up_s)
                    warm = await run.at_rest()
                    await run.load(seconds)
                    for task in running_tasks:
                        task.cancel()
                at_rest = await run.at_rest()
        finally:
            await asyncio.to_thread(serving.__exit__, None, None, None)
    findings = judge(run.samples, clients.outcomes, rests=(warm, at_rest), log=running.log.read_text())
    _keep(run, clients, findings, warm_up_s)
    return findings


def _keep(run: Soak, clients: Clients, findings: list[Finding], warm_up_s: float) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    samples = run.samples
    last = samples[-1].lags
    kept = {
        "seconds": samples[-1].at,
        "warm_up_s": warm_up_s,
        "requests": clients.sent,
        "findings": [asdict(one) for one in findings],
        "lag_s": {f"p{share:g}": _edge(quantile(last, share / 100)) for share in (50, 95, 99, 100)},
        "outcomes": {kind: dict(each) for kind, each in sorted(clients.outcomes.items())},
        "open_at_rest": run.open_at_rest,
        "samples": [asdict(replace(one, lags={})) for one in samples],
    }
    (OUT / "soak.json").write_text(json.dumps(kept, indent=1))
    draw(samples, warm_up_s, OUT / "soak.png")


def _edge(seconds: float) -> float | None:
    """JSON has no infinity: null means above the last edge."""
    return seconds if math.isfinite(seconds) else None


def main() -> None:
    """Soak, print the findings, and return the verdict as the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        findings = asyncio.run(soak(arguments.seconds, arguments.rate, Path(folder), console))
    kept = json.loads((OUT / "soak.json").read_text())
    for finding in findings:
        console.print(f"[{'green]held  ' if finding.held else 'red]failed'}[/] {finding.name}: {finding.said}")
    lags = ", ".join(f"{name} {'more' if s is None else f'{s * 1000:g} ms'}" for name, s in kept["lag_s"].items())
    console.print(f"event loop's lag, at most: {lags}")
    console.print(f"{OUT / 'soak.json'}, {OUT / 'soak.png'}")
    sys.exit(0 if all(finding.held for finding in findings) else 1)


if __name__ == "__main__":
    main()
