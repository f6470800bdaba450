"""A refit's food from the decision log, in two kinds that must not be mixed up.

*Full rows* are decisions with a shadow run and reference answers: the answer of every action is judged by the label
rule, and together they are an outcome table like any other. Dice drew them, so they may fit, choose, certify and test.
*Single-action rows* are judged decisions in which chance had a part: the one outcome that was seen joins the fits of
train, weighed by its propensity, and nothing else. Everything else in the log is left out, and counted by its reason:
what a deterministic gate saw is what it chose to see.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from app.calibrators.store import ArtifactStore
from app.core.artifact import Identity
from app.core.labels import judge
from app.core.policy import Reason, Retrieval, action_of
from app.errors import ArtifactError, DataError
from app.offline.refit.refit import MIN_GROUPS, LoggedRows
from app.offline.refit.single import CLIP, SingleAction, Worth, weigh
from app.offline.refit.splits import TRAIN_SHARE, position
from app.offline.table import Outcomes, TableBuilder, normalise_group, not_a_number, read_identity
from app.storage.reading import Lesson, Lessons, Sample

# Decisions that were carried out as decided; any other reason read something else than its propensity speaks of.
_CARRIED_OUT = frozenset({Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN, Reason.EXPLORED})
# Beyond so many standard errors the labelled shadow runs are no random part of all shadow runs.
_SELECTED = 3.0
_PROGRESS_EVERY = 500


class Left(StrEnum):
    """Why a judged decision was left out; the words are for people."""

    NO_CHANCE = "no chance at work: the gate alone chose what was seen"
    WITHHELD = "withheld, without a shadow run: nothing to judge"
    NO_TEXT = "the texts were not kept (FETCHWISE_LOG_TEXTS=hash)"
    OTHER_SYSTEM = "answered by another system (model, prompts, collection …)"
    NO_CALIBRATOR = "decided by a calibrator whose file is gone, so the system is not known"
    NARROWED = "narrowed by the caller: a filter, or retrieval required or forbidden"
    DIVERTED = "not carried out as decided: the search failed, or found nothing"
    HELD_OUT = "single-action rows of validation and test questions"
    KNOWN_WHOLE = "single-action rows of questions that have a full row"
    DISPUTED = "full rows whose reference answers contradict another verdict on the same question"


@dataclass(frozen=True, eq=False, slots=True)
class FromLog:
    """The outcome table of the full rows, and the single-action rows beside it, with an account of both."""

    outcomes: Outcomes
    rows: LoggedRows


def read_log(
    lessons: Lessons,
    *,
    identity_of: Callable[[str], Identity | None],
    clip: float = CLIP,
    source: str = "decision log",
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> FromLog:
    """Sort out a log; `identity_of` says what system a calibrator's version was fitted on.

    Of several systems in one log the one that was shadowed last is taken. `on_progress` hears done and total.
    """
    if not clip >= 1.0:
        raise DataError(f"clip is {clip:g}: a weight is at least 1, so choose a number from 1 on, like {CLIP:g}")
    latest = lessons.latest_identity()
    if latest is None:
        raise DataError(f"{source}: it holds no shadow run, so no question has an outcome for every action: {_REMEDY}")
    sorting = _Sorting(latest, identity_of, clip, source)
    first, last = lessons.span()
    reading = lessons.read()
    while some := list(islice(reading, _PROGRESS_EVERY)):
        for lesson in some:
            sorting.take(lesson)
        on_progress(some[-1].seq - first + 1, last - first + 1)
    on_progress(last - first + 1, last - first + 1)
    return sorting.finish(lessons.shadowed(labelled=True), lessons.shadowed(labelled=False))


_REMEDY = (
    "let FETCHWISE_SHADOW_SHARE=0.05 ask some questions at every k, send POST /feedback with `references` for them, "
    "and try again; or label questions yourself with `fetchwise collect`"
)


def identities(*folders: Path) -> Callable[[str], Identity | None]:
    """Look a calibrator's version up in these folders; None where no readable file has it."""

    @cache
    def identity_of(version: str) -> Identity | None:
        for folder in folders:
            try:
                return ArtifactStore(folder).load(version).identity
            except ArtifactError:
                continue  # perhaps in the next folder; rows whose calibrator is in none are counted
        return None

    return identity_of


class _Sorting:
    """Takes judged decisions one at a time."""

    def __init__(
        self, shadowed: Mapping[str, Any], identity_of: Callable[[str], Identity | None], clip: float, source: str
    ) -> None:
        try:
            self._identity = read_identity(dict(shadowed))
        except ValueError as error:
            raise DataError(
                f"{source}: its last shadow run was logged by another version of Fetchwise ({error}): {_REMEDY}"
            ) from error
        self._shadowed, self._identity_of, self._source = shadowed, identity_of, source
        self._table = TableBuilder(source, texts=False, identity=self._identity)
        self._clip = clip
        self._single: list[SingleAction] = []
        self._left: Counter[Left] = Counter()
        self._references: dict[str, Sequence[str]] = {}
        self._disputed: set[str] = set()

    def take(self, lesson: Lesson) -> None:
        """Make a full row of it, or a single-action row, or leave it out."""
        if lesson.question is None:
            self._left[Left.NO_TEXT] += 1
            return
        whole = self._whole(lesson)
        if not isinstance(whole, dict):
            why = self._take_single(lesson, lesson.question)
            if why is not None:
                self._left[whole or why] += 1
            return
        group = normalise_group(lesson.question)
        known = self._references.setdefault(group, lesson.references)
        if not _agree(known, lesson.references):
            self._disputed.add(group)
        at = datetime.fromtimestamp(lesson.created_at, tz=UTC).isoformat(timespec="seconds")
        self._table.number = lesson.id
        self._table.add({"id": lesson.id, "group": group, "question": lesson.question, "at": at} | whole)

    def finish(self, labelled: Sample, unlabelled: Sample) -> FromLog:
        """The table, the rows beside it, and an account of everything."""
        groups = len(self._references.keys() - self._disputed)
        if groups < MIN_GROUPS:
            raise DataError(
                f"{self._source}: {groups} questions have a shadow run and reference answers, too few to fit, certify "
                f"and test on: {MIN_GROUPS} are needed, better 1,000. {unlabelled.count} shadow runs wait for "
                f"references; {_REMEDY}" + _counted(self._left, "; left out: ")
            )
        outcomes = self._table.finish()
        agreed = np.array([group not in self._disputed for group in outcomes.groups])
        if not agreed.all():
            self._left[Left.DISPUTED] = int((~agreed).sum())
            outcomes = outcomes.take(np.flatnonzero(agreed))
        single = [row for row in self._single if row.group not in self._references]
        weighted, worth = weigh(single, self._clip)
        if len(single) < len(self._single):
            self._left[Left.KNOWN_WHOLE] = len(self._single) - len(single)
        account = {
            "full_rows": len(outcomes),
            "full_questions": groups,
            "single_action_rows": len(single),
            "clip": self._clip,
            "worth": {f"k{k}": asdict(one) for k, one in worth.items()},
            "left_out": {why.name.lower(): count for why, count in self._left.most_common()},
            "shadow_runs": {"labelled": asdict(labelled), "unlabelled": asdict(unlabelled)},
        }
        notes = (
            f"log: {len(outcomes)} full rows on {groups} questions, {outcomes.first} to {outcomes.last}; thresholds, "
            "certificates and the test rest on these alone",
            _worth_note(len(single), worth, self._clip),
            *([_counted(self._left, "log: left out: ")] if self._left else []),
            *_selection_note(labelled, unlabelled),
        )
        return FromLog(outcomes, LoggedRows(weighted, {"log": account}, notes))

    def _whole(self, lesson: Lesson) -> dict[str, Any] | Left | None:
        """The judged cells of a shadow run, or why it is of no use; None without a run or without references."""
        if lesson.outcomes is None or not lesson.references:
            return None
        if lesson.identity != self._shadowed:
            return Left.OTHER_SYSTEM
        cells = {}
        for k, cell in lesson.outcomes.items():
            if cell.get("answer") is None:
                return Left.NO_TEXT
            cells[f"k{k}"] = {**cell, "correct": judge(cell["answer"], lesson.references)}
        return cells

    def _take_single(self, lesson: Lesson, question: str) -> Left | None:  # noqa: PLR0911 - a table, read downwards
        if lesson.correct is None:
            return Left.WITHHELD
        if lesson.propensities is None or lesson.calibrator is None:
            return Left.NO_CHANCE
        if lesson.filtered or lesson.retrieval != Retrieval.AUTO.value:
            return Left.NARROWED
        if Reason(lesson.reason) not in _CARRIED_OUT:
            return Left.DIVERTED
        system = self._identity_of(lesson.calibrator)
        if system is None:
            return Left.NO_CALIBRATOR
        if system != self._identity:
            return Left.OTHER_SYSTEM
        group = normalise_group(question)
        if position(group) >= TRAIN_SHARE:
            return Left.HELD_OUT
        signals = lesson.read_signals if lesson.k else lesson.signals
        if (wrong := not_a_number(signals)) is not None:
            raise DataError(f"{self._source}:{lesson.id}: the signal {wrong} is not a number: {_DAMAGED}")
        chance = self._chance(lesson, lesson.propensities)
        self._single.append(SingleAction(group, lesson.k, chance, lesson.correct, signals))
        return None

    def _chance(self, lesson: Lesson, chances: Mapping[str, float]) -> float:
        """How likely the action was that was taken."""
        chance = chances.get(action_of(lesson.k))
        if chance is None or not 0.0 < chance <= 1.0 or abs(sum(chances.values()) - 1.0) > 1e-6:
            raise DataError(
                f"{self._source}:{lesson.id}: k={lesson.k} was read, and the chances are {dict(chances)}, which cannot "
                f"be: {_DAMAGED}"
            )
        return chance


_DAMAGED = "the log is damaged; delete that decision, or choose a --since after it"


def _agree(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two sets of reference answers can both be right: one of either answers the other."""
    return one == other or any(judge(answer, other) for answer in one) or any(judge(answer, one) for answer in other)


def _counted(left: Counter[Left], before: str) -> str:
    return before + "; ".join(f"{count} {why.value}" for why, count in left.most_common()) if left else ""


def _worth_note(rows: int, worth: Mapping[int, Worth], clip: float) -> str:
    if not rows:
        return "log: no single-action row joined the fits (FETCHWISE_EXPLORE_SHARE lets chance have a part)"
    each = ", ".join(
        f"k={k} {one.rows} worth {one.effective:.0f}" + (f" ({one.clipped:.0%} clipped)" if one.clipped else "")
        for k, one in worth.items()
    )
    return f"log: {rows} single-action rows joined the fits of train, weights clipped at {clip:g}: {each}"


def _selection_note(labelled: Sample, unlabelled: Sample) -> list[str]:
    """Whether those who label choose what they label: a certificate speaks of labelled questions."""
    if not unlabelled.count:
        return []
    waiting = f"log: {unlabelled.count} shadow runs wait for reference answers"
    error = (labelled.variance / labelled.count + unlabelled.variance / unlabelled.count) ** 0.5
    if abs(labelled.mean - unlabelled.mean) <= _SELECTED * error:
        return [waiting]
    return [
        f"{waiting}; they differ from the labelled ones (mean p {unlabelled.mean:.3f} against {labelled.mean:.3f}), so "
        "the certificate is about questions that people choose to label: label some at random"
    ]
