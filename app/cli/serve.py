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

from app.adapters.key_file import KeyFile
from app.cli.console import app, err, log_to_stderr
from app.cli.corpus import fill
from app.cli.http_protocol import ServerConfig
from app.cli.opening import opened_parts
from app.cli.workers import check_workers, run_workers
from app.errors import ConfigurationError, DataError, UnknownCollection
from app.main import create_app
from app.parts import Parts, keys_required, open_decision_store
from app.processes import spare_the_collector
from app.settings import Settings


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; FETCHWISE_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for a free one; FETCHWISE_PORT.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data live; FETCHWISE_DATA_DIR.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that answer; FETCHWISE_WORKERS.")] = None,
) -> None:
    """Run the gateway until Ctrl-C. Every setting is a FETCHWISE_* variable; the README has the table."""
    given = {"host": host, "port": port, "data_dir": data_dir, "workers": workers}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    log_to_stderr(settings.log_level, settings.log_format, log_questions=settings.log_questions)
    check_workers(settings)
    check_keys(settings)
    # Bound before anything slow is loaded: a taken port is known at once.
    with contextlib.closing(_listen(settings.host, settings.port)) as listener:
        _try_decision_log(settings)
        # uvicorn would choose the faster loop by itself, were it to make the loop.
        with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
            runner.run(_serve(settings, listener))
        if settings.workers > 1:
            run_workers(settings, listener)


async def _serve(settings: Settings, listener: socket.socket) -> None:
    async with opened_parts(settings) as parts:
        if settings.seed is not None:
            await _seed(settings, settings.seed, parts)
        host, port = listener.getsockname()[:2]
        several = f" with {settings.workers} workers" if settings.workers > 1 else ""
        err.print(
            f"[bold]Fetchwise[/] answers on http://{host}:{port}{several}  (/dashboard, /docs; Ctrl-C stops)",
            soft_wrap=True,
        )
        # Workers open their own parts; these were opened to say in a sentence what is wrong, and to seed once.
        if settings.workers == 1:
            await _answer_until_told_to_stop(settings, parts, listener)


async def _answer_until_told_to_stop(settings: Settings, parts: Parts, listener: socket.socket) -> None:
    application = create_app(settings, parts_opener=lambda _: contextlib.nullcontext(parts))
    server = _Server(ServerConfig(application, settings))
    spare_the_collector()
    await server.serve(sockets=[listener])
    if not server.started:
        raise ConfigurationError("the gateway did not start: the lines above say why")


def check_keys(settings: Settings) -> None:
    """Refuse to be open to others without keys, unless the operator says in words that this is meant."""
    file = KeyFile(settings.keys_at)
    try:
        content = file.content()
        if content is not None:
            file.parsed(content)
            return
    except DataError as error:
        raise ConfigurationError(f"{error}: mend it, or make a new one with `fetchwise keys create`") from error
    if not keys_required(settings):
        return
    if settings.keys is not None:
        raise ConfigurationError(f"FETCHWISE_KEYS={settings.keys} is not there: `fetchwise keys create NAME` makes it")
    raise ConfigurationError(
        f"others can reach {settings.host}, and there are no keys: make one with `fetchwise keys create NAME`, or "
        "listen on 127.0.0.1, or say that it is meant: FETCHWISE_OPEN_TO_ANYONE='anyone may ask and see everything'"
    )


def _try_decision_log(settings: Settings) -> None:
    """Make or migrate it before anything slow is loaded; what is wrong with it is one sentence."""
    store = open_decision_store(settings)
    if store is not None:
        store.close()


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
