"""Set up a gateway to be measured: `python -m bench.gateway.prepare`, with its settings in the environment.

Publishes a certified calibrator for the simulated upstreams, creates a key and prints it. A separate command, so a
gateway of another checkout is set up by that checkout's code, in its own formats.
"""

import asyncio

from app.access.keys import Scope
from app.calibrators.store import ArtifactStore
from app.settings import Settings, read_settings
from app.upstream.parts import identity_of, open_parts
from app.wiring.gateway import key_file
from tests.fakes.artifacts import an_artifact


async def publish(settings: Settings) -> None:
    """Publish a calibrator that matches the configured upstreams, and make it the current one."""
    async with open_parts(settings) as parts:
        identity = await identity_of(parts.reader, parts.embedder, settings)
    artifact, store = an_artifact(name="bench", identity=identity), ArtifactStore(settings.calibration.where)
    store.publish(artifact)
    store.promote(artifact.version)


def main() -> None:
    """Publish a calibrator and print the key."""
    settings = read_settings()
    asyncio.run(publish(settings))
    _, key = key_file(settings.keys_at).create(
        "bench", scopes=[Scope.ANSWER], collections=[], filter={}, per_minute=None, max_concurrent=None
    )
    print(key)


if __name__ == "__main__":
    main()
