"""Models that turn text into vectors: one in this process, one behind an OpenAI-compatible API.

`upstream.parts` and `cli` import it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.errors import ConfigurationError
from app.ports import Embedder
from app.settings import groups
from app.upstream.embedders.openai import OpenAIEmbedder
from app.upstream.embedders.sentence_transformer import SentenceTransformerEmbedder
from app.upstream.resilience import Resilience


@asynccontextmanager
async def open_embedder(settings: groups.Embedder, resilience: Resilience) -> AsyncIterator[Embedder]:
    """Load the local model, or connect to the remote one."""
    embedder: SentenceTransformerEmbedder | OpenAIEmbedder
    if settings.backend.startswith(("http://", "https://")):
        if settings.model is None:
            raise ConfigurationError("a remote embedder needs FETCHWISE_EMBEDDER_MODEL")
        embedder = OpenAIEmbedder(
            settings.backend,
            settings.model,
            link=resilience.link("embedder"),
            api_key=settings.api_key.get_secret_value() if settings.api_key else None,
            query_prefix=settings.query_prefix,
            timeout_s=settings.timeout_s,
        )
    else:
        embedder = SentenceTransformerEmbedder(
            settings.backend, query_prefix=settings.query_prefix, threads=settings.threads
        )
    try:
        await embedder.start()
        yield embedder
    finally:
        await embedder.close()
