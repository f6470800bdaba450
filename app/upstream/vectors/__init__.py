"""Vector stores: Qdrant as a server, and embedded in this process."""
