"""Run commands in this process."""

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from app.cli import main
from app.cli.console import err, out


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    """A command sets the umask of its process."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run `fetchwise …` on a wide terminal, check its exit code, and return its stdout and stderr."""
    for console in (out, err):
        monkeypatch.setattr(console, "_width", 300)

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["fetchwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert int(ended.value.code or 0) == code, printed
        return printed.out, printed.err

    return run
