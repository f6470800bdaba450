"""Vector stores: Qdrant as a server, and embedded in this process.

`upstream.parts` and `cli` import it.
"""

from pathlib import Path

from app.ports import VectorStore
from app.settings import groups
from app.upstream.resilience import Resilience
from app.upstream.vectors.qdrant_edge import QdrantEdge


def open_vectors(settings: groups.Vectors, resilience: Resilience, *, data_dir: Path) -> VectorStore:
    """The embedded store, or a client of the server, which does not connect yet."""
    if settings.backend == "embedded":
        return QdrantEdge(data_dir / "vectors")
    # Imported here: the client takes over a second to import, and the embedded default does not need it.
    from app.upstream.vectors.qdrant import Qdrant  # noqa: PLC0415

    return Qdrant(
        settings.backend,
        settings.api_key.get_secret_value() if settings.api_key else None,
        link=resilience.link("vectors"),
        grpc=settings.grpc,
        timeout_s=settings.timeout_s,
    )
