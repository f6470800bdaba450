"""What commands share: the application, the two consoles, a progress bar with time left, and opening the parts."""

import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from app.settings import Settings
from app.telemetry.log_lines import GatheredLines, JsonLines, TextLines
from app.wiring.parts import Parts, open_parts

app = typer.Typer(
    name="fetchwise",
    help="A RAG gateway that knows before it fetches. Start with `fetchwise serve`, then `fetchwise ask`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
out = Console()
err = Console(stderr=True)


def complain(message: str) -> None:
    """Say on stderr what went wrong, below what the log says about it."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)


def log_to_stderr(level: str, log_format: str = "text", *, log_questions: bool = False) -> None:
    """Send the log to stderr, one line an event: in colour to a person, plain to a file, or as JSON."""
    handler: logging.Handler
    if log_format == "json":
        handler = GatheredLines(sys.stderr.buffer)
        handler.setFormatter(JsonLines(log_questions=log_questions))
    elif err.is_terminal:
        handler = RichHandler(console=err, show_path=False, markup=False, log_time_format="%H:%M:%S")
        handler.setFormatter(TextLines(log_questions=log_questions))
    else:
        handler = GatheredLines(sys.stderr.buffer)
        pattern = "%(asctime)s %(levelname)-8s %(message)s"
        handler.setFormatter(TextLines(pattern, log_questions=log_questions))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Looked up anew for every line, and shown on none.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # Chatty about every request they make.
    for noisy in ("httpx", "httpcore", "sentence_transformers", "transformers", "gguf"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def progress() -> Progress:
    """A bar that says how much is done and how long the rest will take."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=err,
    )


def print_rows(*rows: Sequence[str]) -> None:
    """Print rows as wide as they are: a terminal may break a line, but nothing is cut that other commands take."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Show what is being waited for: a spinner on a terminal, one line elsewhere."""
    if err.is_terminal:
        with err.status(message):
            yield
    else:
        err.print(message, highlight=False, soft_wrap=True)
        yield


@asynccontextmanager
async def opened_parts(settings: Settings) -> AsyncIterator[Parts]:
    """The parts that the settings name, with a spinner while they load; closed at the end."""
    async with AsyncExitStack() as stack:
        with waiting("starting the reader and the embedder…"):
            parts = await stack.enter_async_context(open_parts(settings))
        yield parts
