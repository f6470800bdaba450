"""The servers behind the gateway: HTTP, child processes, circuit breakers and retries.

The packages below it implement the ports `Reader`, `Embedder` and `VectorStore`. `calibrators` and the layers above it
may import it; in practice only `wiring` and `cli` do.
"""
