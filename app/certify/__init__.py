"""Finite-sample mathematics: intervals, bets, and the tests built on them. No I/O.

Imports only `app.core` and `app.errors`; every package above `app.ports` may import it.
"""
