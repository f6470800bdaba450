"""From files to a searchable collection: read documents, cut them into passages, embed and store what is new."""

from app.ingest.documents import Skipped
from app.ingest.ingest import Progress, Report, ingest

__all__ = ["Progress", "Report", "Skipped", "ingest"]
