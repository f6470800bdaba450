"""The settings as a Markdown table, for `docs/operate/settings.md`."""

from enum import Enum
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from app.settings import Settings


def settings_table() -> str:
    """One row a setting, in the order of the code: its variable, its default, and its help."""
    prefix = Settings.model_config["env_prefix"]
    rows = [
        f"| `{prefix}{name.upper()}` | {_default(field)} | {_escaped(field.description or '')} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "depends on the machine"
    value: Any = field.default
    match value:
        case None | "":
            return "–"
        case bool():
            return f"`{str(value).lower()}`"
        case Enum():
            return f"`{value.value}`"
        case tuple():
            return f"`{','.join(map(str, value))}`"
        case Path():
            return f"`{value.as_posix()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
