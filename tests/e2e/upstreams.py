"""A reader and an embedder that answer at once, in their own process: `python -m tests.e2e.upstreams`.

Prints one JSON line with their addresses and serves until its standard input closes.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.processes import REPO
from tests.wire.embedding_server import embedding_server
from tests.wire.reader_server import MODEL, Dialect, reader_server


@contextmanager
def upstreams() -> Iterator[dict[str, str]]:
    """Settings of a gateway on these upstreams."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.upstreams"], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(20)


async def _serve() -> None:
    async with reader_server(Dialect.VLLM) as reader, embedding_server() as embedder:
        print(
            json.dumps(
                {
                    "reader": reader.url,
                    "reader_model": MODEL,
                    "embedder": embedder.url,
                    "embedder_model": "hashed-words",
                }
            ),
            flush=True,
        )
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
