"""The command line: one module a command, or a few that belong together."""

import sys

from app.cli.console import app, complain
from app.errors import FetchwiseError

# Each module registers its commands on `app` when it is imported.
from app.cli import ask, calibrators, corpus, doctor, keys, log, refit, serve  # noqa: F401  isort: skip


def main() -> None:
    """Run one command; what goes wrong on purpose is one sentence and exit code 1, never a trace."""
    try:
        app()
    except FetchwiseError as error:
        complain(str(error))
        sys.exit(1)
