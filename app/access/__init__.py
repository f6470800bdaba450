"""Who may ask: keys, and what each allows.

`api`, `wiring` and `cli` import it.
"""
