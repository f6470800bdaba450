"""Training data from the decision log, in two kinds that must not be mixed.

*Full rows* are decisions with a shadow run and reference answers: the answer at every k is labelled, and together they
are an outcome table like any other. They were sampled at random, so they may be used to fit, choose, certify and test.

*Single-action rows* are labelled decisions whose action was partly random. Only one answer is known, and it is used for
the fits on train and for nothing else. A gate answers easy questions closed-book and reads many passages for hard ones,
so each row is weighted by 1 / propensity. Weights are clipped, or a few rare actions would dominate: that brings a
little bias back, and removes most of the variance. Every other decision is excluded, and counted by its reason.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from app.calibrators.store import ArtifactStore
from app.core.artifact import Identity
from app.core.labels import judge
from app.core.policy import Reason, Retrieval, action_of
from app.errors import ArtifactError, DataError
from app.offline.lines import Head, not_a_number, read_identity
from app.offline.refit.fit import Weighted
from app.offline.refit.refit import MIN_GROUPS, LoggedRows
from app.offline.refit.splits import TRAIN_SHARE, position
from app.offline.table import Floats, Outcomes, TableBuilder, columns, normalise_group
from app.storage.reading import LoggedDecision, LoggedDecisions, Sample

CLIP = 20.0
# Decisions that were executed as decided; with any other reason the propensities describe something else.
_EXECUTED = frozenset({Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN, Reason.EXPLORED})
# Labelled shadow runs that differ from the others by more standard errors are not a random sample.
_SELECTED = 3.0
_PROGRESS_EVERY = 500
_REMEDY = (
    "let FETCHWISE_SHADOW_SHARE=0.05 ask some questions at every k, send POST /feedback with `references` for them, "
    "and try again; or label questions yourself with `fetchwise collect`"
)
_DAMAGED = "the log is damaged; delete that decision, or choose a --since after it"


class Excluded(StrEnum):
    """Why a labelled decision cannot be used, in words for the operator."""

    NO_CHANCE = "not random: the gate alone chose the action"
    WITHHELD = "withheld without a shadow run: no answer to label"
    NO_TEXT = "texts not stored (FETCHWISE_LOG_TEXTS=hash)"
    OTHER_SYSTEM = "answered by another system (model, prompts, collection …)"
    NO_CALIBRATOR = "decided by a calibrator whose file is missing, so the system is unknown"
    NARROWED = "restricted by the caller: a filter, or retrieval required or forbidden"
    DIVERTED = "not executed as decided: the search failed or found nothing"
    HELD_OUT = "single-action rows of validation and test questions"
    KNOWN_WHOLE = "single-action rows of questions with a full row"
    DISPUTED = "full rows whose reference answers contradict others for the same question"


@dataclass(frozen=True, eq=False, slots=True)
class FromLog:
    """The outcome table of the full rows, and the single-action rows with the report on both."""

    outcomes: Outcomes
    rows: LoggedRows


@dataclass(frozen=True, slots=True)
class SingleAction:
    """One labelled answer, with its signals and the probability of its action."""

    group: str
    k: int
    chance: float
    right: bool
    signals: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The rows of one k, Kish's effective sample size of their weights, and the share of weights that was clipped."""

    rows: int
    effective: float
    clipped: float


def read_log(
    logged_decisions: LoggedDecisions,
    *,
    identity_of: Callable[[str], Identity | None],
    clip: float = CLIP,
    source: str = "decision log",
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> FromLog:
    """Sort the decisions of a log; `identity_of` returns the system that a calibrator version was fitted on.

    If a log has several systems, the one of the last shadow run is used. `on_progress` gets done and total.
    """
    if not clip >= 1.0:
        raise DataError(f"clip is {clip:g}: a weight is at least 1, so choose 1 or more, e.g. {CLIP:g}")
    latest = logged_decisions.latest_identity()
    if latest is None:
        raise DataError(f"{source}: has no shadow run, so no question has an answer at every k: {_REMEDY}")
    sorter = _Sorter(latest, identity_of, clip, source)
    first, last = logged_decisions.span()
    for number, logged in enumerate(logged_decisions.read()):
        sorter.add(logged)
        if number % _PROGRESS_EVERY == 0:
            on_progress(logged.seq - first + 1, last - first + 1)
    on_progress(last - first + 1, last - first + 1)
    return sorter.finish(logged_decisions.shadowed(labelled=True), logged_decisions.shadowed(labelled=False))


def identities(*folders: Path | str) -> Callable[[str], Identity | None]:
    """Look up calibrator versions in these folders; None if no readable file has the version."""

    @cache
    def identity_of(version: str) -> Identity | None:
        for folder in folders:
            try:
                return ArtifactStore(folder).load(version).identity
            except ArtifactError:
                continue  # try the next folder; rows without a calibrator are counted
        return None

    return identity_of


class _Sorter:
    """Takes labelled decisions one at a time."""

    def __init__(
        self, shadowed: Mapping[str, Any], identity_of: Callable[[str], Identity | None], clip: float, source: str
    ) -> None:
        try:
            self._identity = read_identity(dict(shadowed))
        except ValueError as error:
            raise DataError(
                f"{source}: its last shadow run was logged by another version of Fetchwise ({error}): {_REMEDY}"
            ) from error
        self._shadowed, self._identity_of, self._clip, self._source = shadowed, identity_of, clip, source
        self._table = TableBuilder(texts=False, head=Head(self._identity))
        self._single: list[SingleAction] = []
        self._excluded: Counter[Excluded] = Counter()
        self._references: dict[str, Sequence[str]] = {}
        self._disputed: set[str] = set()

    def add(self, logged: LoggedDecision) -> None:
        """Make it a full row or a single-action row, or exclude it."""
        if logged.question is None:
            self._excluded[Excluded.NO_TEXT] += 1
            return
        cells = self._cells(logged)
        if not isinstance(cells, dict):
            why = self._add_single(logged, logged.question)
            if why is not None:
                self._excluded[cells or why] += 1
            return
        group = normalise_group(logged.question)
        known = self._references.setdefault(group, logged.references)
        if not _agree(known, logged.references):
            self._disputed.add(group)
        at = datetime.fromtimestamp(logged.created_at, tz=UTC).isoformat(timespec="seconds")
        row = {"id": logged.id, "group": group, "question": logged.question, "at": at} | cells
        self._table.add(row, f"{self._source}:{logged.id}")

    def finish(self, labelled: Sample, unlabelled: Sample) -> FromLog:
        """The table and the single-action rows, with a report."""
        groups = len(self._references.keys() - self._disputed)
        if groups < MIN_GROUPS:
            raise DataError(
                f"{self._source}: {groups} questions have a shadow run and reference answers, too few to fit, certify "
                f"and test on: {MIN_GROUPS} are needed, better 1,000. {unlabelled.count} shadow runs have no "
                f"references yet; {_REMEDY}" + _counted(self._excluded, "; left out: ")
            )
        outcomes = self._table.finish(self._source)
        agreed = np.array([group not in self._disputed for group in outcomes.groups])
        if not agreed.all():
            self._excluded[Excluded.DISPUTED] = int((~agreed).sum())
            outcomes = outcomes.take(np.flatnonzero(agreed))
        single = [row for row in self._single if row.group not in self._references]
        weighted, sizes = weigh(single, self._clip)
        if len(single) < len(self._single):
            self._excluded[Excluded.KNOWN_WHOLE] = len(self._single) - len(single)
        report = {
            "full_rows": len(outcomes),
            "full_questions": groups,
            "single_action_rows": len(single),
            "clip": self._clip,
            "worth": {f"k{k}": asdict(one) for k, one in sizes.items()},
            "excluded": {why.name.lower(): count for why, count in self._excluded.most_common()},
            "shadow_runs": {"labelled": asdict(labelled), "unlabelled": asdict(unlabelled)},
        }
        notes = (
            f"log: {len(outcomes)} full rows on {groups} questions, {outcomes.first} to {outcomes.last}; thresholds, "
            "certificates and the test use only these",
            _size_note(sizes, self._clip),
            _counted(self._excluded, "log: left out: "),
            _selection_note(labelled, unlabelled),
        )
        return FromLog(outcomes, LoggedRows(weighted, {"log": report}, tuple(filter(None, notes))))

    def _cells(self, logged: LoggedDecision) -> dict[str, Any] | Excluded | None:
        """The labelled answers of a shadow run, or why it cannot be used; None without a run or references."""
        if logged.outcomes is None or not logged.references:
            return None
        if logged.identity != self._shadowed:
            return Excluded.OTHER_SYSTEM
        cells = {}
        for k, cell in logged.outcomes.items():
            if cell.get("answer") is None:
                return Excluded.NO_TEXT
            cells[f"k{k}"] = {**cell, "correct": judge(cell["answer"], logged.references)}
        return cells

    def _add_single(self, logged: LoggedDecision, question: str) -> Excluded | None:  # noqa: PLR0911 - a list of conditions
        if logged.correct is None:
            return Excluded.WITHHELD
        if logged.propensities is None or logged.calibrator is None:
            return Excluded.NO_CHANCE
        if logged.filtered or logged.retrieval != Retrieval.AUTO.value:
            return Excluded.NARROWED
        if Reason(logged.reason) not in _EXECUTED:
            return Excluded.DIVERTED
        system = self._identity_of(logged.calibrator)
        if system is None:
            return Excluded.NO_CALIBRATOR
        if system != self._identity:
            return Excluded.OTHER_SYSTEM
        group = normalise_group(question)
        if position(group) >= TRAIN_SHARE:
            return Excluded.HELD_OUT
        signals, place = logged.read_signals if logged.k else logged.signals, f"{self._source}:{logged.id}"
        if (wrong := not_a_number(signals)) is not None:
            raise DataError(f"{place}: the signal {wrong} is not a number: {_DAMAGED}")
        chances = logged.propensities
        chance = chances.get(action_of(logged.k), 0.0)
        if not 0.0 < chance <= 1.0 or abs(sum(chances.values()) - 1.0) > 1e-6:
            raise DataError(f"{place}: k={logged.k} was read, but its propensities are {dict(chances)}: {_DAMAGED}")
        self._single.append(SingleAction(group, logged.k, chance, logged.correct, signals))
        return None


def weigh(rows: Sequence[SingleAction], clip: float) -> tuple[dict[int, Weighted], dict[int, SampleSize]]:
    """Weight the rows, by k: a calibrator is fitted on the answers of its own k."""
    asked = Counter(row.group for row in rows)
    weighted, sizes = {}, {}
    for k in sorted({row.k for row in rows}):
        mine = [row for row in rows if row.k == k]
        chances = np.array([row.chance for row in mine])
        # The rows of a question share one weight, however often it was asked.
        weights = np.minimum(1.0 / chances, clip) / np.array([asked[row.group] for row in mine])
        effective = effective_size(weights)
        sizes[k] = SampleSize(len(mine), effective, float((1.0 / chances > clip).mean()))
        weighted[k] = Weighted(
            columns([row.signals for row in mine]),
            np.array([row.right for row in mine]),
            # Scaled to the effective sample size; the table's rows have weight one each.
            weights * (effective / weights.sum()),
        )
    return weighted, sizes


def effective_size(weights: Floats) -> float:
    """Kish's effective sample size: that many rows of equal weight would estimate a mean as well."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


def _agree(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists of reference answers can both be right: an answer of one is right by the other."""
    return one == other or any(judge(answer, other) for answer in one) or any(judge(answer, one) for answer in other)


def _counted(excluded: Counter[Excluded], before: str) -> str:
    return before + "; ".join(f"{count} {why}" for why, count in excluded.most_common()) if excluded else ""


def _size_note(sizes: Mapping[int, SampleSize], clip: float) -> str:
    if not sizes:
        return "log: no single-action rows to fit on (FETCHWISE_EXPLORE_SHARE makes some actions random)"
    each = ", ".join(
        f"k={k} {n.rows} rows, effective size {n.effective:.0f} ({n.clipped:.0%} clipped)" for k, n in sizes.items()
    )
    rows = sum(one.rows for one in sizes.values())
    return f"log: {rows} single-action rows are used for fitting on train, weights clipped at {clip:g}: {each}"


def _selection_note(labelled: Sample, unlabelled: Sample) -> str:
    """Warn if the labelled questions differ from the others: a certificate holds for labelled questions."""
    if not unlabelled.count:
        return ""
    note = f"log: {unlabelled.count} shadow runs have no reference answers yet"
    error = (labelled.variance / labelled.count + unlabelled.variance / unlabelled.count) ** 0.5
    if abs(labelled.mean - unlabelled.mean) > _SELECTED * error:
        note += f"; they differ from the labelled ones (mean p {unlabelled.mean:.3f} and {labelled.mean:.3f}), so the "
        note += "certificate only holds for questions like the labelled ones: label some at random"
    return note
