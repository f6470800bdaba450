"""`fetchwise keys`: create, list, show and revoke API keys."""

import json
import re
from typing import Annotated

import typer
from pydantic import TypeAdapter
from rich.table import Table

from app.access.keys import PREFIX, Key, KeyFile, Scope
from app.cli.console import AsJson, app, err, out, print_rows
from app.core.available import Scalar
from app.settings import read_settings
from app.wiring.gateway import key_file

keys = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Create, list, show and revoke API keys.",
    epilog="Running gateways apply changes within seconds. Once there is a key, every request needs one: send "
    "`Authorization: Bearer fw_…` or `X-API-Key: fw_…`.",
)
app.add_typer(keys, name="keys")

File = Annotated[str | None, typer.Option("--file", help="File or URL of the keys. Default: FETCHWISE_KEYS.")]
Identifier = Annotated[str, typer.Argument(help="The key's id, as `list` prints it.")]
_LISTED = TypeAdapter(list[Key])
_HIDDEN = {"sha256"}


def _file(path: str | None) -> KeyFile:
    return key_file(path or read_settings().keys_at)


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="Who or what uses the key; shown in `list`.")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option(
            help="What it may do; repeatable. Default: `answer` and `feedback`. `operate` reads metrics and reports."
        ),
    ] = None,
    collection: Annotated[
        list[str] | None, typer.Option(help="A collection it may search; repeatable. Default: all.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="FIELD=VALUE",
            help="Search only passages whose payload has this value; repeatable. `7` is a number, `true` a boolean, "
            '`"7"` text.',
        ),
    ] = None,
    per_minute: Annotated[int, typer.Option(min=0, help="Maximum requests per minute; 0: no limit.")] = 600,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Maximum concurrent requests.")] = None,
    path: File = None,
) -> None:
    """Create a key and print it. Only its hash is stored, so it cannot be shown again.

    A key for one tenant, if every passage has a field `tenant`: `fetchwise keys create acme --filter tenant=acme
    --per-minute 60`. A key for Prometheus and the dashboard: `fetchwise keys create monitoring --scope operate`.
    """
    file = _file(path)
    made, presented = file.create(
        name,
        scopes=list(dict.fromkeys(scope or (Scope.ANSWER, Scope.FEEDBACK))),
        collections=list(dict.fromkeys(collection or ())),
        filter=dict(_condition(one) for one in filters or ()),
        per_minute=per_minute or None,
        max_concurrent=max_concurrent,
    )
    err.print(
        f"{made.name}: key {made.id} is in {file.where}. Copy it now, it cannot be shown again:",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    # Alone on stdout, so that it can be piped.
    typer.echo(presented)


def _condition(written: str) -> tuple[str, Scalar]:
    name, equals, value = written.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{written!r}: write --filter FIELD=VALUE")
    if re.fullmatch(r'-?\d+|true|false|".*"', value, re.DOTALL) is None:
        return name, value
    try:
        parsed: Scalar = json.loads(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value} is neither a number nor quoted text ({error})") from error
    return name, parsed


@keys.command("list")
def list_keys(path: File = None, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List every key, including revoked ones. Secrets are never shown."""
    file = _file(path)
    found = file.read() or []
    if as_json:
        typer.echo(_LISTED.dump_json(found, indent=1, exclude={"__all__": _HIDDEN}))
        return
    if not found:
        out.print(
            f"no keys in {file.where}: create one with `fetchwise keys create NAME`", highlight=False, soft_wrap=True
        )
        return
    columns = ("id", "name", "scopes", "collections", "filter", "per minute", "concurrent", "created", "revoked")
    print_rows(columns, *(tuple(_cells(one).values()) for one in found))


@keys.command()
def show(identifier: Identifier, path: File = None, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Show what a key allows."""
    file = _file(path)
    one = file.named(identifier, file.read() or [])
    if as_json:
        typer.echo(one.model_dump_json(indent=1, exclude=_HIDDEN))
        return
    table = Table(show_header=False, title=f"key {one.id}")
    for name, cell in _cells(one).items():
        table.add_row(name, cell)
    out.print(table, markup=False)


@keys.command()
def revoke(identifier: Identifier, path: File = None) -> None:
    """Revoke a key permanently. Every running gateway refuses it within seconds."""
    one = _file(path).revoke(identifier)
    out.print(f"{one.name}: key {one.id} was revoked at {one.revoked}", markup=False, highlight=False, soft_wrap=True)


def _cells(one: Key) -> dict[str, str]:
    return {
        "id": f"{PREFIX}_{one.id}_…",
        "name": one.name,
        "scopes": ", ".join(one.scopes),
        "collections": ", ".join(one.collections) or "all",
        "filter": " and ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in one.filter.items()),
        "per minute": "–" if one.per_minute is None else str(one.per_minute),
        "concurrent": "–" if one.max_concurrent is None else str(one.max_concurrent),
        "created": f"{one.created:%Y-%m-%d %H:%M}",
        "revoked": f"{one.revoked:%Y-%m-%d %H:%M}" if one.revoked else "",
    }
