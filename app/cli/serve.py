"""`fetchwise serve`: open the parts, seed the collection if told to, and listen."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from app.cli.console import app, err, log_to_stderr
from app.cli.corpus import fill
from app.cli.opening import opened_parts
from app.errors import ConfigurationError, UnknownCollection
from app.main import create_app
from app.parts import Parts
from app.settings import Settings


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; FETCHWISE_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for a free one; FETCHWISE_PORT.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data live; FETCHWISE_DATA_DIR.")] = None,
) -> None:
    """Run the gateway until Ctrl-C. Every setting is a FETCHWISE_* variable; the README has the table."""
    given = {"host": host, "port": port, "data_dir": data_dir}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    log_to_stderr(settings.log_level)
    # Bound before anything slow is loaded: a taken port is known at once.
    with contextlib.closing(_listen(settings.host, settings.port)) as listener:
        asyncio.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    async with opened_parts(settings) as parts:
        await _answer_until_told_to_stop(settings, parts, listener)


async def _answer_until_told_to_stop(settings: Settings, parts: Parts, listener: socket.socket) -> None:
    if settings.seed is not None:
        await _seed(settings, settings.seed, parts)
    application = create_app(settings, parts_opener=lambda _: contextlib.nullcontext(parts))
    config = uvicorn.Config(application, log_config=None, access_log=False, timeout_graceful_shutdown=10)
    host, port = listener.getsockname()[:2]
    err.print(
        f"[bold]Fetchwise[/] answers on http://{host}:{port}  (documentation: /docs, Ctrl-C stops)", soft_wrap=True
    )
    server = _Server(config)
    await server.serve(sockets=[listener])
    if not server.started:
        raise ConfigurationError("the gateway did not start: the lines above say why")


async def _seed(settings: Settings, seed: Path, parts: Parts) -> None:
    """Fill a collection that is not there yet, or that an earlier start did not get to the end of."""
    unfinished = settings.data_dir / f"seeding-{settings.collection}"
    try:
        await parts.vectors.count(settings.collection)
    except UnknownCollection:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
    if unfinished.exists():
        report = await fill([seed], settings.collection, parts.embedder, parts.vectors)
        err.print(f"{report.added} passages of {seed} are in {settings.collection}; {len(report.skipped)} skipped")
        unfinished.unlink()


class _Server(uvicorn.Server):
    """uvicorn raises a caught Ctrl-C anew once it has stopped, which would cut the closing of our parts short."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Turn SIGINT and SIGTERM into a request to stop, and into nothing else."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another with FETCHWISE_PORT or FETCHWISE_HOST"
        ) from error
    listener.set_inheritable(False)
    return listener
