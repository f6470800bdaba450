"""`fetchwise refit`, `evaluate`, `report`: from an outcome table to a certified calibrator."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer
from rich.table import Table

from app.calibrators.store import ArtifactStore, parse
from app.cli.console import AsJson, app, err, out, progress
from app.cli.log import opened_log, seconds
from app.core.artifact import Artifact
from app.core.cost import Objective
from app.core.policy import Policy
from app.errors import ConfigurationError
from app.settings import Settings, read_settings
from app.storage.reading import LoggedDecisions

if TYPE_CHECKING:
    from app.offline.from_log import FromLog

# numpy, scikit-learn and matplotlib are optional and slow to import, so each command imports what it needs.

Outcomes = Annotated[
    Path, typer.Option("--outcomes", exists=True, dir_okay=False, help="Outcome table, .jsonl or .jsonl.gz.")
]
ArtifactFile = Annotated[
    Path | None,
    typer.Option("--artifact", exists=True, dir_okay=False, help="Apply the thresholds of this calibrator file."),
]


@app.command()
def refit(
    out_dir: Annotated[str, typer.Option("--out", help="Folder or URL to publish to, e.g. calibrators/NAME.")],
    outcomes: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Outcome table, .jsonl or .jsonl.gz; or use --from-log."),
    ] = None,
    from_log: Annotated[  # noqa: FBT002
        bool, typer.Option("--from-log", help="Use the decision log instead of a table.")
    ] = False,
    log: Annotated[
        str | None, typer.Option(help="Path or SQLAlchemy URL of the log; by default FETCHWISE_DECISION_LOG.")
    ] = None,
    since: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="SPAN", help="Only the latest part of the log, e.g. 30d, 12h or 15m."),
    ] = None,
    population: Annotated[
        Literal["answer", "chat"],
        typer.Option(help="With --from-log: questions of answer mode, or those behind the turns of chats."),
    ] = "answer",
    clip: Annotated[
        float, typer.Option(help="Largest weight of a logged answer; its weight is 1 / the probability of its action.")
    ] = 20.0,
    policy: Annotated[
        Literal["ladder", "graded"], typer.Option(help="The policy to certify; the others are fitted for comparison.")
    ] = "ladder",
    goal: Annotated[
        Literal["save", "gain"],
        typer.Option(help="save: the cheapest ladder within epsilon. gain: the most accurate within the budget."),
    ] = "save",
    budget: Annotated[
        float, typer.Option(min=0.0, help="For gain: largest cost on train, as a share of always reading the most.")
    ] = 0.58,
    objective: Annotated[
        Objective, typer.Option(help="What to minimise; money needs a price, e.g. FETCHWISE_TARIFF_PASSAGE.")
    ] = Objective.TOKENS,
    reference: Annotated[
        str, typer.Option(help="What accuracy is compared with: the `largest` k, another, e.g. k1, or `every` one.")
    ] = "largest",
    epsilon: Annotated[float, typer.Option(help="How much lower than the reference the accuracy may be.")] = 0.02,
    delta: Annotated[float, typer.Option(help="Probability with which any certificate of the folder is wrong.")] = 0.1,
    risk_target: Annotated[float, typer.Option(help="Largest share of wrong answers among those given.")] = 0.2,
    risk_delta: Annotated[
        float, typer.Option(help="Probability with which any risk target of the folder is missed.")
    ] = 0.1,
    per: Annotated[
        Literal["group", "request"],
        typer.Option(help="What counts once: a group of questions, or a request, however often its group was asked."),
    ] = "group",
    labels: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="JSON lines of {id, ks, correct} that add or replace labels."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Serve it even if it is worse than the one served now.")] = False,  # noqa: FBT002
) -> None:
    """Fit the calibrators on train, certify thresholds on validation, report on test, and publish.

    The certificate guarantees, with probability at least 1 - delta, that accuracy is at least that of the reference
    minus epsilon. If nothing can be certified, the reference serves, and the notes say why and how many labels are
    needed. All refits into one folder share delta: the first may spend half of it, the second a sixth, and so on.

    With --from-log the rows are questions about FETCHWISE_COLLECTION that a gateway answered. FETCHWISE_SHADOW_SHARE
    makes an idle gateway ask some of them at every k; those with reference answers (POST /feedback with `references`)
    are used to fit, certify and test. FETCHWISE_EXPLORE_SHARE makes it answer some at a random k; those with feedback
    are used to fit, weighted by the probability of that k. Other feedback is left out: it says nothing about the
    answers that the gate did not choose.
    """
    if from_log == (outcomes is not None):
        raise ConfigurationError("name the rows to fit on: --outcomes TABLE, or --from-log")
    if not from_log and (log is not None or since is not None or population == "chat"):
        raise ConfigurationError("--log, --since and --population need --from-log")
    with _refit_extra():
        from app.offline.builder import load  # noqa: PLC0415
        from app.offline.labelling import apply_labels  # noqa: PLC0415
        from app.offline.refit.holdout import publish  # noqa: PLC0415
        from app.offline.refit.options import Options  # noqa: PLC0415
        from app.offline.refit.refit import digest_of  # noqa: PLC0415
        from app.offline.refit.refit import refit as run  # noqa: PLC0415
    settings = read_settings()
    rows = None
    if outcomes is not None:
        with err.status("reading the table…"):
            table, source = load(outcomes, texts=False), outcomes.name
    else:
        chat = population == "chat"
        logged = _read_log(settings, log, since=since, clip=clip, out_dir=out_dir, chat=chat)
        table, rows, source = logged.outcomes, logged.rows, "decision log, chats" if chat else "decision log"
    if labels is not None:
        table = apply_labels(table, labels)
    options = Options(
        name=Path(urlsplit(out_dir).path).name,
        source=source,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        policy=Policy.LADDER if policy == "ladder" else Policy.GRADED,
        goal=goal,
        budget=budget,
        objective=objective,
        reference=reference,
        epsilon=epsilon,
        delta=delta,
        risk_target=risk_target,
        risk_delta=risk_delta,
        per=per,
        tariff=settings.economics.tariff,
    )
    options = replace(options, refit=ArtifactStore(out_dir).refit_number(digest_of(table, options, rows)))
    with err.status("fitting…") as status:
        artifact, summary = run(table, options, logged=rows, on_step=lambda step: status.update(f"{step}…"))
        published = publish(artifact, summary.stats, out_dir, test=summary.test, force=force)
    for note in (*table.notes, *summary.notes):
        out.print(f"- {note}", markup=False, highlight=False)
    out.print(f"published {published.path}", highlight=False, soft_wrap=True)
    out.print(f"{'now' if published.current else 'NOT'} served: {published.why}", highlight=False)


def _read_log(
    settings: Settings, log: str | None, *, since: float | None, clip: float, out_dir: str, chat: bool
) -> "FromLog":
    """Read the decision log of the settings, or the given one, and the calibrators that it mentions."""
    from app.offline.from_log import identities, read_log, statistics  # noqa: PLC0415

    start = 0.0 if since is None else time.time() - since
    with opened_log(log or settings.decision_log_at) as store, progress() as bar:
        task = bar.add_task("reading the log", total=None)
        return read_log(
            LoggedDecisions(store.database, collection=settings.vectors.collection, since=start, chat=chat),
            identity_of=identities(out_dir, settings.calibration.where),
            stats_of=statistics(out_dir, settings.calibration.where),
            clip=clip,
            source=f"decision log, collection {settings.vectors.collection}",
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


@app.command()
def evaluate(
    outcomes: Outcomes,
    as_json: AsJson = False,  # noqa: FBT002
    resamples: Annotated[int, typer.Option(min=100, help="Bootstrap resamples for each interval.")] = 1000,
    rule: Annotated[
        Literal["tokens", "compat"] | None, typer.Option(help="Label the answers again by this rule.")
    ] = None,
    artifact: ArtifactFile = None,
) -> None:
    """Compute the paper's tables from an outcome table: calibration, frontiers, selective risk, harm, cost."""
    with _refit_extra():
        from app.offline.builder import load  # noqa: PLC0415
        from app.offline.evaluate.evaluate import evaluate as run  # noqa: PLC0415
    with err.status("evaluating…") as status:
        result = run(
            load(outcomes),
            resamples=resamples,
            rule=rule,
            artifact=_parsed(artifact),
            on_progress=lambda step: status.update(f"{step}…"),
        )
    if as_json:
        typer.echo(json.dumps(result, indent=1, allow_nan=False))
    else:
        _summarise(result)


def _summarise(result: dict[str, Any]) -> None:
    """Print the main figures; --json has all of them."""
    right = ", ".join(f"{k} {value:.3f}" for k, value in result["accuracy"].items())
    out.print(f"{result['n']} questions, {result['groups']} groups; accuracy {right}", highlight=False)
    table = Table("signal", "AUROC", "ECE raw", "ECE", "Brier", "binary", "full", "call", "passage", "normalised")
    for name, signal in result["signals"].items():
        areas = signal["frontier"]
        figures = [signal[key] for key in ("auroc", "ece_raw", "ece", "brier")]
        figures += [areas[key] for key in ("binary", "full", "call", "passage", "normalised")]
        table.add_row(name, *("–" if figure is None else f"{figure:.3f}" for figure in figures))
    out.print(table)
    out.print("out-of-fold; binary to normalised: area under accuracy by budget, higher is better", style="dim")


@app.command()
def report(
    outcomes: Outcomes,
    out_file: Annotated[Path, typer.Option("--out", help="HTML file to write.")],
    artifact: ArtifactFile = None,
) -> None:
    """Write a self-contained HTML page with tables and plots of an outcome table, and of a calibrator on it."""
    with _refit_extra():
        from app.offline.builder import load  # noqa: PLC0415
        from app.offline.report.report import report as render  # noqa: PLC0415
    out_file.parent.mkdir(parents=True, exist_ok=True)
    with err.status("drawing…"):
        page = render(load(outcomes), artifact=_parsed(artifact))
    out_file.write_text(page)
    out.print(f"wrote {out_file}", highlight=False)


def _parsed(artifact: Path | None) -> Artifact | None:
    return parse(artifact.read_bytes(), name=str(artifact)) if artifact else None


@contextmanager
def _refit_extra() -> Iterator[None]:
    """Name the extra to install if an import fails."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"this command needs {error.name}: run pip install 'fetchwise[refit]'") from error
    except OSError as error:
        raise ConfigurationError(f"LightGBM cannot be loaded ({error}): run apt-get install libgomp1") from error
