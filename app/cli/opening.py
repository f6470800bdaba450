"""Opening the parts from a command: a spinner while they load, and everything closed at the end."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from app.cli.console import err
from app.parts import Parts, open_parts
from app.settings import Settings


@asynccontextmanager
async def opened_parts(settings: Settings) -> AsyncIterator[Parts]:
    """The parts that the settings name, for as long as the command needs them."""
    async with AsyncExitStack() as stack:
        with err.status("starting the reader and the embedder…"):
            parts = await stack.enter_async_context(open_parts(settings))
        yield parts
