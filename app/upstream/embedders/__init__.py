"""Models that turn text into vectors: one in this process, one behind an OpenAI-compatible API."""
