"""From files to passages in a vector store: formats, chunks, ingestion.

Only `cli` imports it.
"""
