"""What every route shares: errors, keys, permits, middleware, event streams.

All of `api`, `wiring` and `cli` import it.
"""
