"""Every decision, computed alike by the gateway and the refit job. Pure: no I/O, clock or randomness.

Imports only `app.errors`; every other package may import it.
"""
