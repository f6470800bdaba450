"""What all commands share: the application, the consoles for stdout and stderr, and a progress bar."""

import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from app.settings import Settings
from app.telemetry.log_lines import GatheredLines, JsonLines, TextLines, printable
from app.upstream.parts import Parts, open_parts

app = typer.Typer(
    name="fetchwise",
    help="A RAG gateway that knows before it fetches. Start with `fetchwise serve`, then `fetchwise ask`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class SafeConsole(Console):
    """Escapes control characters in every text: answers, titles and names could change what a terminal shows."""

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 rich's own
        """The text, ready to print."""
        return super().render_str("\n".join(map(printable, text.expandtabs().split("\n"))), **options)


out = SafeConsole()
err = SafeConsole(stderr=True)


def print_error(message: str) -> None:
    """Print an error to stderr, after the lines that are still in the log's buffer."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)


def log_to_stderr(level: str, log_format: str = "text", *, log_questions: bool = False) -> None:
    """Write the log to stderr, one line for each event: coloured on a terminal, plain in a file, or as JSON."""
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
    # Python looks these up for every line, and no line shows them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # They log every request.
    for noisy in ("httpx", "httpcore", "sentence_transformers", "transformers", "gguf", "mcp"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def progress() -> Progress:
    """A progress bar with the time left."""
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
    """Print rows without cutting any cell: ids and versions are arguments of other commands."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo(printable("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()))


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Show what the command waits for: a spinner on a terminal, else one line."""
    if err.is_terminal:
        with err.status(message):
            yield
    else:
        err.print(message, highlight=False, soft_wrap=True)
        yield


@asynccontextmanager
async def opened_parts(settings: Settings) -> AsyncIterator[Parts]:
    """Open the parts that the settings name, and show a spinner while they load."""
    async with AsyncExitStack() as stack:
        with waiting("starting the reader and the embedder…"):
            parts = await stack.enter_async_context(open_parts(settings))
        yield parts
