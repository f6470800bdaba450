"""The servers behind the gateway: HTTP, child processes, circuit breakers and retries.

The packages below it implement the ports `Reader`, `Embedder` and `VectorStore`. Only
`wiring` and `cli` import it.
"""
