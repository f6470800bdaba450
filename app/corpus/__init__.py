"""From files to passages in a vector store: formats, chunks, ingestion.

`wiring` and `cli` import it.
"""
