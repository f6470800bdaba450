"""Who may ask: keys with their scopes, and the limits of each key.

`api`, `wiring` and `cli` import it.
"""
