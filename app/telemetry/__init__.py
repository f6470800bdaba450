"""What operators see: metrics, traces and log lines.

`api`, `wiring` and `cli` may import it.
"""
