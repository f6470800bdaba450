"""The settings as a Markdown table, for `docs/operate/settings.md`."""

from enum import Enum
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from app.settings import Settings
from app.settings.groups import Group


def settings_table() -> str:
    """A table for each group, with a row for each setting: its variable, its default, and its help."""
    groups = Settings.of()
    return "\n\n".join(_table(name, type(getattr(groups, name))) for name in Settings.model_fields)


def _table(name: str, group: type[Group]) -> str:
    rows = [
        f"| `{field.alias}` | {_default(field)} | {_escaped(field.description or '')} |"
        for field in group.model_fields.values()
    ]
    return "\n".join(
        [
            f"## {name.capitalize()}",
            "",
            str(group.__doc__),
            "",
            "| variable | default | meaning |",
            "|---|---|---|",
            *rows,
        ]
    )


def _default(field: FieldInfo) -> str:
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
