"""Several readers as an operator meets them: what the start refuses, and what the doctor says of each."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cli.doctor import _Patient, _reader
from app.errors import ConfigurationError, UpstreamUnavailable
from app.ports import Reader
from app.settings import Settings
from app.wiring.parts import open_reader, resilience_of
from tests.wire.fault_proxy import fault_proxy, status
from tests.wire.reader_server import MODEL, Dialect, ReaderServer, reader_server


@asynccontextmanager
async def two_servers(second: Dialect = Dialect.VLLM) -> AsyncIterator[tuple[ReaderServer, ReaderServer]]:
    async with reader_server(Dialect.VLLM) as one, reader_server(second) as other:
        yield one, other


def settings_for(*urls: str, **more: Any) -> Settings:
    return Settings.of(reader=" , ".join(urls), reader_model=MODEL, **more)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Reader]:
    async with AsyncExitStack() as stack:
        yield await open_reader(settings, stack, resilience_of(settings))


async def test_servers_that_are_not_the_same_are_refused_at_the_start() -> None:
    """The message says which of them differs, and in what."""
    async with two_servers(Dialect.LLAMA) as servers:
        with pytest.raises(ConfigurationError, match=r"reader 2 is not the same as reader 1: quantisation is 'Q8_0'"):
            async with opened(settings_for(*(server.url for server in servers))):
                pass


@pytest.mark.parametrize("urls", ["http://a:1,http://a:1", "http://a:1,embedded", "vllm,http://a:1", ","])
async def test_what_is_not_a_list_of_urls_is_refused(urls: str) -> None:
    """Nothing is started beside a remote reader, and none is asked twice."""
    with pytest.raises(ConfigurationError, match="FETCHWISE_READER"):
        async with opened(Settings.of(reader=urls, reader_model=MODEL)):
            pass


def test_spaces_and_a_comma_too_many_do_no_harm() -> None:
    """The list is read as it is meant."""
    assert Settings.of(reader=" http://a:1 ,http://b:1,").reader.urls == ("http://a:1", "http://b:1")


async def test_a_template_that_cannot_be_told_for_now_is_not_another_template() -> None:
    """A server that fails to render it is not identified, rather than taken for another one."""
    async with reader_server(Dialect.VLLM) as server, opened(settings_for(server.url)) as reader:
        before = await reader.identify()
        server.template_status = 503
        with pytest.raises(UpstreamUnavailable):
            await reader.identify()
        server.template_status = None
        assert await reader.identify() == before


async def test_the_doctor_looks_at_each(tmp_path: Path) -> None:
    """All of them answer, or the one that does not is named by its address."""
    async with two_servers() as (one, other), fault_proxy(other.url) as proxy, AsyncExitStack() as stack:
        settings = settings_for(one.url, proxy.url, data_dir=tmp_path)
        found = await _reader(_Patient(settings, stack))
        assert all(f"{url}: {MODEL} (unquantised) answers" in found for url in (one.url, proxy.url))
        proxy.fault = status(503)
        with pytest.raises(UpstreamUnavailable, match=proxy.url):
            await _reader(_Patient(settings, stack))
