"""What every command shares: the application, the two consoles, and a progress bar with time left."""

import logging

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

app = typer.Typer(
    name="fetchwise",
    help="A RAG gateway that knows before it fetches. Start with `fetchwise serve`, then `fetchwise ask`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
out = Console()
err = Console(stderr=True)


def complain(message: str) -> None:
    """Say on stderr what went wrong."""
    err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)


def log_to_stderr(level: str) -> None:
    """Send the log to stderr, one line an event."""
    handler = RichHandler(console=err, show_path=False, markup=False, log_time_format="%H:%M:%S")
    logging.basicConfig(level=level.upper(), format="%(message)s", handlers=[handler], force=True)
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
