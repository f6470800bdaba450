"""Decisions on their way into the log: the one statement that runs for every answer, so it is kept cheap.

Rows go to the driver as they are, since SQLAlchemy would look at each of their forty values, and many at a time, since
the driver gives the interpreter's lock back and wants it again for every statement, while the event loop is after it.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection

from app.adapters.decision_tables import decisions

# So many that the rest of the cost no longer counts, and far below the number of values that a database takes.
_AT_ONCE = 100

_COLUMNS = [str(column.name) for column in decisions.columns if column.name != "seq"]
_IN_ORDER = itemgetter(*_COLUMNS)
_INTO = f"INSERT INTO decisions ({', '.join(_COLUMNS)}) VALUES "  # noqa: S608 our own columns
# A batch that is tried again may have been stored the first time, unheard.
_UNLESS_THERE = " ON CONFLICT (id) DO NOTHING"


def insert_decisions(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows as `decision_row` makes them; those that are there already are left alone."""
    place = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    row = f"({', '.join([place] * len(_COLUMNS))})"
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        statement = _INTO + ", ".join([row] * len(some)) + _UNLESS_THERE
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(map(_IN_ORDER, some))))
