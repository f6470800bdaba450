"""Keys for tests: made in the file that a gateway reads, with whatever is not named left open."""

from pathlib import Path
from typing import Any

from app.access.keys import Key, Scope
from app.wiring.gateway import key_file


def make_key(path: Path | str, name: str = "someone", **chosen: Any) -> tuple[Key, str]:
    """A key that may answer and give feedback, of which anything can be changed by name; and what is presented."""
    usual: dict[str, Any] = {
        "scopes": [Scope.ANSWER, Scope.FEEDBACK],
        "collections": [],
        "filter": {},
        "per_minute": None,
        "max_concurrent": None,
    }
    return key_file(path).create(name, **(usual | chosen))


def bearer(presented: str) -> dict[str, str]:
    """The header that presents a key."""
    return {"authorization": f"Bearer {presented}"}
