"""Keys for tests, written to the file that a gateway reads; everything not given is unlimited."""

from pathlib import Path
from typing import Any

from app.access.keys import Key, Scope
from app.wiring.gateway import key_file


def make_key(path: Path | str, name: str = "someone", **chosen: Any) -> tuple[Key, str]:
    """A key with the scopes answer and feedback, and its secret; keyword arguments replace fields."""
    usual: dict[str, Any] = {
        "scopes": [Scope.ANSWER, Scope.FEEDBACK],
        "collections": [],
        "filter": {},
        "per_minute": None,
        "max_concurrent": None,
    }
    return key_file(path).create(name, **(usual | chosen))


def bearer(presented: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"authorization": f"Bearer {presented}"}
