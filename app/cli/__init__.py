"""The command line: one module for each family of commands. No package imports it."""

import os
import sys

from app.cli.console import app, print_error
from app.errors import FetchwiseError

# Each module registers its commands on `app` when it is imported.
from app.cli import ask, calibrators, collect, corpus, doctor, keys, log, refit, serve, tables  # noqa: F401  isort: skip


def main() -> None:
    """Run one command. An expected error prints one sentence and exits with code 1, without a traceback."""
    # What is stored is for its owner alone: questions, answers, passages. Calibrators set their own mode.
    os.umask(0o077)
    try:
        app()
    except FetchwiseError as error:
        print_error(str(error))
        sys.exit(1)
