"""Several readers from the operator's view: what the start refuses, and what the doctor reports for each."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cli.doctor import _Checked, _reader
from app.errors import ConfigurationError, UpstreamUnavailable
from app.ports import Reader
from app.settings import Settings
from app.upstream.parts import resilience_of
from app.upstream.readers import open_reader
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
    resilience, data_dir = resilience_of(settings), settings.server.data_dir
    async with open_reader(settings.reader, resilience, data_dir=data_dir, at_once=settings.permits) as reader:
        yield reader


async def test_different_servers_are_refused_at_the_start() -> None:
    """The message says which server differs, and how."""
    async with two_servers(Dialect.LLAMA) as servers:
        with pytest.raises(ConfigurationError, match=r"reader 2 is not the same as reader 1: quantisation is 'Q8_0'"):
            async with opened(settings_for(*(server.url for server in servers))):
                pass


@pytest.mark.parametrize("urls", ["http://a:1,http://a:1", "http://a:1,embedded", "vllm,http://a:1", ","])
async def test_invalid_list_of_urls_is_refused(urls: str) -> None:
    """An embedded reader cannot be combined with a remote one, and no URL may appear twice."""
    with pytest.raises(ConfigurationError, match="FETCHWISE_READER"):
        async with opened(Settings.of(reader=urls, reader_model=MODEL)):
            pass


def test_spaces_and_extra_commas_are_ignored() -> None:
    """The list of URLs is parsed leniently."""
    assert Settings.of(reader=" http://a:1 ,http://b:1,").reader.urls == ("http://a:1", "http://b:1")


async def test_template_that_cannot_be_read_is_not_a_mismatch() -> None:
    """A server that fails to render its template is unidentified, not different."""
    async with reader_server(Dialect.VLLM) as server, opened(settings_for(server.url)) as reader:
        before = await reader.identify()
        server.template_status = 503
        with pytest.raises(UpstreamUnavailable):
            await reader.identify()
        server.template_status = None
        assert await reader.identify() == before


async def test_doctor_checks_each_reader(tmp_path: Path) -> None:
    """All readers answer, or the doctor names the address of the one that does not."""
    async with two_servers() as (one, other), fault_proxy(other.url) as proxy, AsyncExitStack() as stack:
        settings = settings_for(one.url, proxy.url, data_dir=tmp_path)
        found = await _reader(_Checked(settings, stack))
        assert all(f"{url}: {MODEL} (unquantised) answers" in found for url in (one.url, proxy.url))
        proxy.fault = status(503)
        with pytest.raises(UpstreamUnavailable, match=proxy.url):
            await _reader(_Checked(settings, stack))
