"""The tracer of walks counts each call of a package's functions once, with the modules of caller and callee."""

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench.walks.run import PLANNED, table
from bench.walks.traced import WALKS, Tracer

TOY = {
    "__init__": "",
    "top": """
from toy import low

class Top:
    def climb(self):
        return [low.step(number) for number in range(3)]

async def wait_twice():
    await low.pause()
    await low.pause()
    return sum(low.numbers())

Top().climb()
""",
    "low": """
import asyncio

def step(number):
    return inner(number)

def inner(number):
    class Local:
        kept = number
    return sorted([3, 1, 2], key=lambda value: -value)

def numbers():
    yield 1
    yield 2

async def pause():
    await asyncio.sleep(0)
""",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package of two modules."""
    (folder := tmp_path / "toy").mkdir()
    for name, source in TOY.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name == "toy" or name.startswith("toy.")]:
        del sys.modules[name]


def test_only_functions_and_lambdas_count(toy: Path) -> None:
    """Importing a module, a class body and a comprehension are not calls; a call through C code is."""
    top = import_module("toy.top")
    tracer = Tracer(toy)
    with tracer.installed(), tracer.walk():
        top.Top().climb()
    assert tracer.figures() == {"modules": {"low": 3 * (1 + 1 + 3), "top": 1}, "calls": 16, "transitions": 3}
    assert tracer.transitions == {("top", "low"): 3}


def test_coroutines_and_generators_count_once(toy: Path) -> None:
    """However often they are resumed."""
    top = import_module("toy.top")
    tracer = Tracer(toy)
    with tracer.installed(), tracer.walk():
        assert asyncio.run(top.wait_twice()) == 3
    assert tracer.calls == {"top": 1, "low": 3}
    assert tracer.transitions == {("top", "low"): 3}


def test_only_calls_of_the_walk_count(toy: Path) -> None:
    """Threads that the walk uses count; tasks from before and calls after it do not."""
    top = import_module("toy.top")
    tracer = Tracer(toy)

    async def run() -> None:
        before = asyncio.create_task(_again(top))
        with tracer.walk():
            await asyncio.gather(asyncio.to_thread(top.Top().climb), asyncio.create_task(top.wait_twice()), before)
        await top.wait_twice()

    with tracer.installed():
        asyncio.run(run())
    assert tracer.calls == {"top": 2, "low": 15 + 3}


def test_everywhere_counts_all_calls(toy: Path) -> None:
    """The threads of a pool are not linked to the walk that uses them."""
    top = import_module("toy.top")
    tracer = Tracer(toy, everywhere=True)
    with tracer.installed(), ThreadPoolExecutor(1) as pool:
        pool.submit(top.Top().climb).result()
    top.Top().climb()
    assert tracer.calls == {"top": 1, "low": 15}


def test_table_has_a_row_for_each_walk() -> None:
    """With the planned number, before and after."""
    assert list(WALKS) == list(PLANNED)
    before, after = ({"modules": dict.fromkeys("abc"[:n], 1), "calls": n * 1000, "transitions": n} for n in (3, 2))
    lines = table({"before": dict.fromkeys(WALKS, before), "after": dict.fromkeys(WALKS, after)}).splitlines()
    assert lines[2] == "| question | 26 | 3 | 2 | 3,000 | 2,000 | 3 | 2 |"
    assert len(lines) == 2 + len(WALKS)


async def _again(top: Any) -> None:
    await top.wait_twice()
