"""Set up a gateway to be measured: `python -m bench.gateway.prepare`, with its settings in the environment.

Publishes a certified calibrator for the simulated upstreams, creates a key and prints it. A separate command, so a
gateway of another checkout is set up by that checkout's code, in its own formats.
"""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

from app.access.keys import Scope
from app.calibrators.store import ArtifactStore
from app.core.artifact import Artifact
from app.core.heads import Blend, Head
from app.core.scope import Scope as QuestionScope
from app.settings import Settings, read_settings
from app.upstream.parts import identity_of, open_parts
from app.wiring.gateway import key_file

SHIPPED = Path(__file__).parents[2] / "calibrators" / "demo"


# What each purchase is expected to bring, in every state: a probe, then a search, then one passage, then five.
VALUES = {"k0": 0.95, "search": 0.75, "k1": 0.75, "k5": 0.5}


def on_paths(shipped: Artifact) -> Artifact:
    """The shipped ladder, where the reader's confidence alone chooses the path.

    Every head computes its trees and its linear part, as in production, but counts only the log-probability of the
    answer that it describes; the value of a purchase is constant.
    """
    assert shipped.ladder is not None
    assert shipped.scope is not None
    assert shipped.chat is not None
    values = {
        state: {name: _blend(head, bias=math.log(VALUES[name] / (1.0 - VALUES[name]))) for name, head in each.items()}
        for state, each in shipped.ladder.values.items()
    }
    begin = values[""]
    values[""] = begin | {"search": replace(begin["search"], bias=-1.0)}
    heads = {
        state: {k: _blend(head, signal=f"k{k}.seq_logprob", bias=0.1 * k) for k, head in each.items()}
        for state, each in shipped.heads.items()
    }
    return replace(
        shipped,
        name="bench",
        heads=heads,
        ladder=replace(shipped.ladder, t=0.0, values=values),
        # With its prices as in production; what an answer from passages brings is constant.
        chat=replace(shipped.chat, t=0.0),
        abstention=replace(shipped.abstention, tau=0.0),
        scope=_everything(shipped.scope),
    )


def _blend(head: Head, *, signal: str = "", bias: float = 0.0) -> Blend:
    """The same work with another result: the bias, plus log-odds of 3.6 + 8 seq_logprob where there is a signal."""
    assert isinstance(head, Blend)
    weights = tuple(
        8.0 * scale if name == signal else 0.0 for name, scale in zip(head.features, head.scales, strict=True)
    )
    shift = sum(weight * mean / scale for weight, mean, scale in zip(weights, head.means, head.scales, strict=True))
    share = 1.0 if signal in head.features else 0.0
    return replace(
        head,
        weights=weights,
        absent=(0.0,) * len(weights),
        intercept=shift + 3.6,
        bias=bias,
        linear_share=share,
        tree_share=0.0,
    )


def _everything(scope: QuestionScope) -> QuestionScope:
    """The scope test, passed by every question."""
    return replace(scope, floors=dict.fromkeys(scope.floors, -1.0), nearness_alone=-1.0)


async def publish(settings: Settings) -> None:
    """Publish a calibrator that matches the configured upstreams, and make it the current one."""
    async with open_parts(settings) as parts:
        identity = await identity_of(parts.reader, parts.embedder, settings)
    shipped = ArtifactStore(SHIPPED)
    version = shipped.current()
    assert version is not None
    demo, store = shipped.load(version), ArtifactStore(settings.calibration.where)
    artifact = replace(on_paths(demo), identity=identity)
    store.publish(artifact, shipped.load_stats(demo))
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
