"""`fetchwise calibrators`: list and compare versions, serve another one, and roll back."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from app.calibrators.listing import CalibratorVersion, list_calibrators
from app.calibrators.store import ArtifactStore, serialise
from app.cli.console import AsJson, app, err, out, print_rows
from app.core.artifact import Abstention, Artifact, ChatFit, LadderFit, PolicyFit, mismatches
from app.core.heads import Head
from app.core.policy import action_of
from app.errors import ArtifactError
from app.settings import read_settings

_EVERY = 10_000
# Long, and derived from the rest.
_DETAILS = ("quantiles", "report")
_ACCURATE = "accuracy is at least that of {reference} minus {epsilon:g}"
_RIGHT = "at most {epsilon:g} of the given answers are wrong"

calibrators = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, inspect and compare calibrators, serve another version, and roll back to the one before.",
    epilog="Run `fetchwise calibrators list`, then `promote VERSION`; `rollback` undoes it. Running gateways follow "
    "within seconds. `fetchwise refit` makes versions; a version never changes.",
)
app.add_typer(calibrators, name="calibrators")

Folder = Annotated[
    str | None, typer.Option("--folder", help="Folder or URL of the calibrators; by default FETCHWISE_CALIBRATORS.")
]
VersionToShow = Annotated[str | None, typer.Argument(help="The version, as `list` prints it. Default: CURRENT.")]


def _store(folder: str | None) -> ArtifactStore:
    return ArtifactStore(folder or read_settings().calibration.where)


def _named(store: ArtifactStore, version: str | None) -> Artifact:
    chosen = version or store.current()
    if chosen is None:
        raise ArtifactError(f"there is no CURRENT in {store.where}: name a version, or run `fetchwise refit` first")
    return store.load(chosen)


@calibrators.command("list")
def list_versions(folder: Folder = None, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Show every version: which is CURRENT, whether it is certified, what it serves, or why it cannot be read.

    `--json` has the same shape as `GET /calibrators` of a running gateway, which also names the version it serves.
    """
    store = _store(folder)
    found = list_calibrators(store, _EVERY)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    since = {change.version: change.at for change in reversed(found.changes)}
    print_rows(
        ("", "version", "created", "certified", "serves", "τ abstain", "since"),
        *(("→" if one.current else "", *_row(one, since.get(one.version, ""))) for one in found.versions),
    )
    for one in found.versions:
        if one.problem:
            out.print(f"{one.version} cannot be served: {one.problem}", markup=False, highlight=False)
    if found.current is None:
        out.print(found.problem or "no version is served: run `fetchwise calibrators promote VERSION`", highlight=False)


def _row(one: CalibratorVersion, since: str) -> list[str]:
    if one.policies is None or one.abstention is None:
        return [one.version, "", "unreadable", "", "", _minute(since)]
    return [
        one.version,
        _minute(one.created or ""),
        "yes" if one.certified else "no",
        _served(one),
        f"{one.abstention.tau:.3f}{'' if one.abstention.certificate else ' (not certified)'}",
        _minute(since),
    ]


def _minute(at: str) -> str:
    return at[:16].replace("T", " ")


def _served(one: CalibratorVersion) -> str:
    """The policy that serves by default, in a few characters."""
    graded = (one.policies or {}).get("graded")
    if one.ladder is not None:
        return f"ladder ({one.ladder.goal}), t = {one.ladder.t:.3f}"
    return "–" if graded is None else f"graded, τ0 = {graded.thresholds.tau0:.3f}, τ1 = {graded.thresholds.tau1:.3f}"


@calibrators.command()
def show(version: VersionToShow = None, folder: Folder = None, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Show what a calibrator was fitted on, its policies and its guarantees; `--json` prints the whole file."""
    artifact = _named(_store(folder), version)
    if as_json:
        typer.echo(serialise(artifact).decode(), nl=False)
        return
    table = Table(show_header=False, title=f"calibrator {artifact.version}")
    window = artifact.data_window
    rows = f"{window.rows} rows ({window.groups} groups) of {window.source}"
    table.add_row("created", f"{artifact.created}, from {rows}; refit {window.refit} of its folder")
    for name, value in (asdict(artifact.identity) if artifact.identity else {"identity": "none"}).items():
        table.add_row(name, str(value))
    for name, priced in (("ladder", artifact.ladder), ("chat", artifact.chat)):
        if priced is not None:
            aim = f"t = {priced.t:.3f}, goal {priced.goal}, cost in {priced.objective}"
            table.add_row(name, f"{aim}; {_guarantee(priced, _ACCURATE)}")
    for name, fit in sorted(artifact.policies.items()):
        thresholds = f"τ0 = {fit.thresholds.tau0:.3f}, τ1 = {fit.thresholds.tau1:.3f}, minimises {fit.objective}"
        table.add_row(name, f"{thresholds}; {_guarantee(fit, _ACCURATE)}")
    abstention = artifact.abstention
    table.add_row("abstain", f"τ = {abstention.tau:.3f}; {_guarantee(abstention, _RIGHT)}")
    table.add_row("fallback", f"{artifact.fallback_k} passages if the policy is not certified")
    states = "; ".join(f"{state}: {', '.join(map(action_of, heads))}" for state, heads in artifact.heads.items())
    table.add_row("heads", states)
    table.add_row("scope", artifact.scope.covers if artifact.scope else "not tested")
    table.add_row("corpus statistics", artifact.stats or "none")
    out.print(table)


def _guarantee(fit: PolicyFit | LadderFit | ChatFit | Abstention, promise: str) -> str:
    certificate = fit.certificate
    if certificate is None:
        return f"not certified: {fit.uncertified_reason}"
    promised = promise.format(reference=certificate.reference, epsilon=certificate.epsilon)
    rests = f"{certificate.n} groups, {certificate.labels} labelled rows, tested at {certificate.spent:.2g}"
    return f"with probability {1 - certificate.delta:g}, {promised} ({rests}; {certificate.population})"


@calibrators.command()
def diff(
    before: Annotated[str, typer.Argument(help="The version to compare with.")],
    after: VersionToShow = None,
    folder: Folder = None,
    details: Annotated[bool, typer.Option(help="Also compare quantiles and the report.")] = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Show the differences between two calibrators, value by value; the exit code is 0 in any case."""
    store = _store(folder)
    one, other = _named(store, before), _named(store, after)
    left, right = _flat(_values(one)), _flat(_values(other))
    changed = {
        path: (left.get(path), right.get(path))
        for path in sorted(left.keys() | right.keys())
        if left.get(path) != right.get(path) and (details or not path.startswith(_DETAILS))
    }
    if as_json:
        typer.echo(json.dumps({path: {"before": a, "after": b} for path, (a, b) in changed.items()}, indent=1))
        return
    if not changed:
        out.print(f"{one.version} and {other.version} are the same", highlight=False)
        return
    table = Table("", one.version, other.version)
    for path, (a, b) in changed.items():
        table.add_row(path, _short(a), _short(b))
    out.print(table)


def _values(artifact: Artifact) -> dict[str, Any]:
    """Everything in an artifact, with each head as one line."""
    values = asdict(artifact) | {"heads": _in_a_line(artifact.heads)}
    if artifact.ladder is not None:
        values["ladder"]["values"] = _in_a_line(artifact.ladder.values)
    return values


def _in_a_line(heads: Mapping[str, Mapping[Any, Head]]) -> dict[str, dict[Any, str]]:
    """Each head as its method and a digest of its thousands of numbers."""
    return {
        state: {
            name: f"{head.method} {hashlib.sha256(repr(head).encode()).hexdigest()[:8]}" for name, head in by.items()
        }
        for state, by in heads.items()
    }


def _flat(value: Any, path: str = "") -> dict[str, Any]:  # noqa: ANN401 what JSON holds
    """Every value by its dotted path; a list is one value."""
    if not isinstance(value, dict):
        return {path: list(value) if isinstance(value, tuple) else value}
    return {
        at: leaf
        for key, each in value.items()
        for at, leaf in _flat(each, f"{path}.{key}" if path else str(key)).items()
    }


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None else str(value)


@calibrators.command()
def promote(
    version: Annotated[str, typer.Argument(help="The version to serve, as `list` prints it.")], folder: Folder = None
) -> None:
    """Make a version CURRENT: running gateways load it within seconds, without a restart.

    A file that is damaged, has another schema or has no identity is refused. A gateway does not serve a version that
    was fitted on another system (model, prompts, collection …) than it runs.
    """
    store = _store(folder)
    artifact = store.load(version)
    if artifact.identity is None:
        raise ArtifactError(f"{version} was fitted on a table without an identity: no gateway can serve it")
    _warn_of_another_system(store, artifact)
    store.promote(version)
    out.print(f"CURRENT is {version}; undo with `fetchwise calibrators rollback`", highlight=False)


def _warn_of_another_system(store: ArtifactStore, artifact: Artifact) -> None:
    try:
        before = _named(store, None)
    except ArtifactError:
        # Nothing to compare with; promoting fixes that.
        return
    if before.identity is not None and artifact.identity is not None:
        differing = mismatches(artifact.identity, before.identity)
        if differing:
            err.print(
                f"note: fitted on another system than {before.version} ({len(differing)} differences, see `fetchwise "
                f"calibrators diff {before.version} {artifact.version}`): only a gateway of that system serves it",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


@calibrators.command()
def rollback(folder: Folder = None) -> None:
    """Make the previous version CURRENT; run it again for the one before that.

    The file CURRENT has a line for each change, newest first. To go forward, `promote` a version by name.
    """
    store = _store(folder)
    out.print(f"CURRENT is {store.rollback()}", highlight=False)
