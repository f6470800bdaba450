"""Trace one walk through the `app` package that Python imports: `python bench/walks/traced.py question out.json`.

`run.py` starts this file with the PYTHONPATH of the checkout to measure. It therefore uses only what all checkouts
share: the fakes of the tests, the HTTP API, the `fetchwise` command and the committed demo.
"""

import asyncio
import inspect
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ASKED = "What is the capital of France?"
# Longer than a gateway caches its figures.
STALE_S = 1.1


class Tracer:
    """Counts the calls of a package's functions, in every thread, while a walk is open.

    A call is counted once, however often a generator or coroutine is resumed. Module bodies, class bodies and
    comprehensions are not calls. A transition is a call whose nearest caller in the package is in another module.
    With `everywhere` all calls count, without it only those that the code inside the walk causes: not those of tasks
    and threads that existed before.
    """

    def __init__(self, root: Path, *, everywhere: bool = False) -> None:
        self.calls: Counter[str] = Counter()
        self.transitions: Counter[tuple[str, str]] = Counter()
        self._root = f"{root}{os.sep}"
        self._counts: ContextVar[bool] = ContextVar("counts", default=everywhere)
        self._modules: dict[CodeType, str | None] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Trace this thread and the threads that start inside this context."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def walk(self) -> Iterator[None]:
        """Count the calls that the code inside this context causes."""
        token = self._counts.set(True)
        try:
            yield
        finally:
            self._counts.reset(token)

    def figures(self) -> dict[str, Any]:
        """The counts, ready for JSON."""
        return {
            "modules": dict(sorted(self.calls.items())),
            "calls": self.calls.total(),
            "transitions": self.transitions.total(),
        }

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (module := self._module(frame.f_code)) is None:
            return
        # At the start of a function the argument of RESUME is 0, after a yield or an await it is another number.
        if not self._counts.get() or frame.f_code.co_code[frame.f_lasti + 1] & 3:
            return
        self.calls[module] += 1
        caller = frame.f_back
        while caller is not None and (before := self._module(caller.f_code)) is None:
            caller = caller.f_back
        if caller is not None and before is not None and before != module:
            self.transitions[before, module] += 1

    def _module(self, code: CodeType) -> str | None:
        try:
            return self._modules[code]
        except KeyError:
            self._modules[code] = name = self._named(code)
            return name

    def _named(self, code: CodeType) -> str | None:
        is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in _COMPREHENSIONS
        if not is_function or not code.co_filename.startswith(self._root):
            return None
        return code.co_filename.removeprefix(self._root).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


def question(root: Path, folder: Path) -> Tracer:
    """`POST /answer`: a probe that is unsure, a search, and an answer from five passages."""
    from tests.fakes.gateway import fake_gateway  # noqa: PLC0415

    tracer = Tracer(root)

    async def walk() -> None:
        async with fake_gateway(folder, artifact={}) as gateway:
            gateway.reader.says(ASKED, "Paris", k=0, sure=0.3)
            await gateway.client.post("/answer", json={"question": ASKED})
            with tracer.walk():
                reply = await gateway.client.post("/answer", json={"question": ASKED})
            assert (reply.json()["k"], gateway.reader.calls) == (5, 4), reply.text

    with tracer.installed():
        asyncio.run(walk())
    return tracer


def dashboard(root: Path, folder: Path, *, refresh: bool = True) -> Tracer:
    """`GET /dashboard/data` and `GET /metrics`, after some questions, with figures that are due again.

    If a background task computes the figures, `refresh` computes them in the walk, as earlier checkouts do in the
    request. Otherwise only reading them would count, and the two would not be comparable.
    """
    from tests.fakes.gateway import fake_gateway  # noqa: PLC0415

    tracer = Tracer(root)

    async def walk() -> None:
        async with fake_gateway(folder, artifact={}) as gateway:
            for _ in range(3):
                await gateway.client.post("/answer", json={"question": ASKED})

            async def look() -> None:
                await asyncio.sleep(STALE_S)
                snapshots = getattr(gateway.app.state.gateway, "snapshots", None)
                if refresh and snapshots is not None:
                    await snapshots.ping()
                    # First: `refresh` only estimates what is due, and nothing is due yet.
                    await snapshots.estimate()
                    await snapshots.refresh()
                for path in ("/dashboard/data", "/metrics"):
                    (await gateway.client.get(path)).raise_for_status()

            await look()
            with tracer.walk():
                await look()

    with tracer.installed():
        asyncio.run(walk())
    return tracer


def refit(root: Path, folder: Path) -> Tracer:
    """`fetchwise refit` of the demo's outcome table, up to the published calibrator."""
    options = ["--outcomes", "demo/outcomes.jsonl.gz", "--risk-target", "0.3"]
    return _command(root, lambda run: ["refit", *options, "--out", str(folder / run)])


def ingest(root: Path, folder: Path) -> Tracer:
    """`fetchwise ingest` of a Markdown file, into the embedded vectors."""
    os.environ["FETCHWISE_DATA_DIR"] = str(folder)

    def arguments(run: str) -> list[str]:
        sentences = (f"Sentence {number} of the {run} has words of its own." for number in range(100))
        (path := folder / f"{run}.md").write_text(f"# Notes\n\n{' '.join(sentences)}\n")
        return ["ingest", str(path)]

    return _command(root, arguments)


def _command(root: Path, arguments: Callable[[str], list[str]]) -> Tracer:
    """Run a command twice, and trace the second run, when everything is imported."""
    from app.cli import main as fetchwise  # noqa: PLC0415

    tracer = Tracer(root, everywhere=True)

    def run(name: str) -> None:
        sys.argv = ["fetchwise", *arguments(name)]
        try:
            fetchwise()
        except SystemExit as end:
            if end.code:
                raise

    run("warm-up")
    with tracer.installed():
        run("traced")
    return tracer


WALKS: dict[str, Callable[[Path, Path], Tracer]] = {
    "question": question,
    "refit": refit,
    "ingest": ingest,
    "dashboard": dashboard,
    "dashboard, requests alone": partial(dashboard, refresh=False),
}


def main(name: str, out: str) -> None:
    """Trace one walk and write the counts."""
    import app  # noqa: PLC0415

    root = Path(app.__path__[0])
    with tempfile.TemporaryDirectory() as folder:
        tracer = WALKS[name](root, Path(folder))
    Path(out).write_text(json.dumps(tracer.figures()))


if __name__ == "__main__":
    main(*sys.argv[1:])
