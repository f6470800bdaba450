"""Training data from the decision log, in two kinds that must not be mixed.

*Full rows* are decisions with a shadow run and reference answers: the answer at every k is labelled, and together they
are an outcome table like any other. They were sampled at random, so they may be used to fit, choose, certify and test.

*Single-action rows* are labelled decisions whose action was partly random. Only one answer is known, and it is used for
the fits on train and for nothing else, weighted by 1 / propensity. Every other decision is excluded, and counted by its
reason.

Turns of chats are a population of their own: the questions behind them differ, and a verdict is about the text that was
written, not about a short answer. Their shadow runs are full rows like any other; their verdicts are only reported.

Evidence weighs words by the statistics of the calibrator that was served. Rows with other word counts are excluded:
their numbers mean something else.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from app.calibrators.store import ArtifactStore
from app.certify.plan import train_share
from app.core.artifact import Artifact, Identity
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.evidence import NEARNESS
from app.core.labels import judge
from app.core.policy import Reason, Retrieval, action_of
from app.errors import ArtifactError, DataError
from app.offline.builder import TableBuilder
from app.offline.lines import Head, not_a_number, read_identity
from app.offline.refit.refit import MIN_GROUPS, LoggedRows
from app.offline.refit.splits import position
from app.offline.single_actions import SingleAction, shares, size_note, turns_note, weigh
from app.offline.table import Outcomes, normalise_group
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
T = TypeVar("T")
_DAMAGED = "the log is damaged; delete that decision, or choose a --since after it"


class Excluded(StrEnum):
    """Why a labelled decision cannot be used, in words for the operator."""

    NO_CHANCE = "not random: the gate alone chose the action"
    VOLUNTEERED = "verdicts that nobody asked for: their senders chose which answers to judge"
    WITHHELD = "withheld without a shadow run: no answer to label"
    NO_TEXT = "texts not stored (FETCHWISE_LOG_TEXTS=hash)"
    OTHER_SYSTEM = "answered by another system (model, prompts, collection …)"
    NO_CALIBRATOR = "decided by a calibrator whose file is missing, so the system is unknown"
    WRITTEN = "verdicts on written texts, which are not about the short answer"
    NARROWED = "restricted by the caller: a filter, or retrieval required or forbidden"
    DIVERTED = "not executed as decided: the search failed or found nothing"
    HELD_OUT = "single-action rows of validation and test questions"
    KNOWN_WHOLE = "single-action rows of questions with a full row"
    OTHER_WORDS = "evidence computed with other word counts of the corpus"
    DISPUTED = "full rows whose reference answers contradict others for the same question"


@dataclass(frozen=True, eq=False, slots=True)
class FromLog:
    """The outcome table of the full rows, and the single-action rows with the report on both."""

    outcomes: Outcomes
    rows: LoggedRows


def read_log(
    logged_decisions: LoggedDecisions,
    *,
    identity_of: Callable[[str], Identity | None],
    stats_of: Callable[[str], CorpusStats | None] = lambda _version: NO_STATS,
    clip: float = CLIP,
    source: str = "decision log",
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> FromLog:
    """Sort the decisions of a log.

    `identity_of` returns the system that a calibrator version was fitted on, `stats_of` its corpus statistics.
    If a log has several systems, the one of the last shadow run is used. `on_progress` gets done and total.
    """
    if not clip >= 1.0:
        raise DataError(f"clip is {clip:g}: a weight is at least 1, so choose 1 or more, e.g. {CLIP:g}")
    latest = logged_decisions.latest_identity()
    if latest is None:
        raise DataError(f"{source}: has no shadow run, so no question has an answer at every k: {_REMEDY}")
    sorter = _Sorter(latest, identity_of, stats_of, clip, source)
    first, last = logged_decisions.span()
    for number, logged in enumerate(logged_decisions.read()):
        sorter.add(logged)
        if number % _PROGRESS_EVERY == 0:
            on_progress(logged.seq - first + 1, last - first + 1)
    on_progress(last - first + 1, last - first + 1)
    return sorter.finish(logged_decisions.shadowed(labelled=True), logged_decisions.shadowed(labelled=False))


def identities(*folders: Path | str) -> Callable[[str], Identity | None]:
    """Look up calibrator versions in these folders; None if no readable file has the version."""
    return _looked_up(folders, lambda _, artifact: artifact.identity)


def statistics(*folders: Path | str) -> Callable[[str], CorpusStats | None]:
    """Look up the word counts of calibrator versions in these folders; None if no readable file has them."""
    return _looked_up(folders, lambda store, artifact: store.load_stats(artifact))


def _looked_up(
    folders: Sequence[Path | str], read: Callable[[ArtifactStore, Artifact], T | None]
) -> Callable[[str], T | None]:
    @cache
    def find(version: str) -> T | None:
        for store in map(ArtifactStore, folders):
            try:
                return read(store, store.load(version))
            except ArtifactError:
                continue  # try the next folder; rows without a calibrator are counted
        return None

    return find


class _Sorter:
    """Takes labelled decisions one at a time."""

    def __init__(
        self,
        shadowed: Mapping[str, Any],
        identity_of: Callable[[str], Identity | None],
        stats_of: Callable[[str], CorpusStats | None],
        clip: float,
        source: str,
    ) -> None:
        try:
            self._identity = read_identity(dict(shadowed))
        except ValueError as error:
            raise DataError(
                f"{source}: its last shadow run was logged by another version of Fetchwise ({error}): {_REMEDY}"
            ) from error
        self._shadowed, self._clip, self._source = shadowed, clip, source
        self._identity_of, self._stats_of = identity_of, stats_of
        self._table = TableBuilder(texts=False, head=Head(self._identity))
        self._single: list[SingleAction] = []
        # The word counts that the evidence of each row was computed with, None if unknown.
        self._full_stats: list[CorpusStats | None] = []
        self._single_stats: list[CorpusStats | None] = []
        self._excluded: Counter[Excluded] = Counter()
        # Verdicts on what chats wrote, by how its k was chosen.
        self._turns: dict[str, dict[int, list[bool]]] = {"chosen": {}, "explored": {}}
        self._references: dict[str, Sequence[str]] = {}
        self._disputed: set[str] = set()

    def add(self, logged: LoggedDecision) -> None:
        """Make it a full row or a single-action row, or exclude it."""
        if logged.question is None:
            self._excluded[Excluded.NO_TEXT] += 1
            return
        if logged.mode == "chat" and logged.correct is not None and (logged.solicited or logged.shadowed):
            how = "explored" if logged.reason == Reason.EXPLORED.value else "chosen"
            self._turns[how].setdefault(logged.k, []).append(logged.correct)
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
        row: dict[str, Any] = {"id": logged.id, "group": group, "question": logged.question, "at": at} | cells
        if logged.full_evidence:
            row["evidence"] = _lasting(logged.full_evidence)
        self._table.add(row, f"{self._source}:{logged.id}")
        self._full_stats.append(self._counted_with(logged))

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
        self._excluded[Excluded.DISPUTED] = int((~agreed).sum())
        stats = next((one for one in reversed(self._full_stats) if one is not None), NO_STATS)
        alike = np.array([_same_words(one, stats) for one in self._full_stats])
        outcomes = replace(outcomes.take(np.flatnonzero(agreed & alike)), stats=stats)
        unknown = [
            row for row in zip(self._single, self._single_stats, strict=True) if row[0].group not in self._references
        ]
        share = train_share(len(set(outcomes.groups)))
        fitting = [row for row in unknown if position(row[0].group) < share]
        single = [row for row, counted in fitting if _same_words(counted, stats)]
        self._excluded[Excluded.KNOWN_WHOLE] = len(self._single) - len(unknown)
        self._excluded[Excluded.HELD_OUT] = len(unknown) - len(fitting)
        self._excluded[Excluded.OTHER_WORDS] = int((agreed & ~alike).sum()) + len(fitting) - len(single)
        self._excluded = +self._excluded
        weighted, sizes = weigh(single, self._clip)
        report = {
            "full_rows": len(outcomes),
            "full_questions": groups,
            "single_action_rows": len(single),
            "clip": self._clip,
            "worth": {f"{state}:k{k}": asdict(one) for (state, k), one in sizes.items()},
            "excluded": {why.name.lower(): count for why, count in self._excluded.most_common()},
            "turns": {how: shares(by_k) for how, by_k in self._turns.items()},
            "shadow_runs": {"labelled": asdict(labelled), "unlabelled": asdict(unlabelled)},
        }
        notes = (
            f"log: {len(outcomes)} full rows on {groups} questions, {outcomes.first} to {outcomes.last}; thresholds, "
            "certificates and the test use only these",
            size_note(sizes, self._clip),
            *(turns_note(how, shares(by_k)) for how, by_k in self._turns.items()),
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
        if not logged.solicited and not logged.shadowed:
            return Excluded.VOLUNTEERED
        if logged.mode != "answer":
            return Excluded.WRITTEN
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
        evidence, place = _lasting(logged.evidence), f"{self._source}:{logged.id}"
        if (wrong := not_a_number(evidence)) is not None:
            raise DataError(f"{place}: the evidence {wrong} is not a number: {_DAMAGED}")
        chances = logged.propensities
        chance = chances.get(action_of(logged.k), 0.0)
        if not 0.0 < chance <= 1.0 or abs(sum(chances.values()) - 1.0) > 1e-6:
            raise DataError(f"{place}: k={logged.k} was read, but its propensities are {dict(chances)}: {_DAMAGED}")
        self._single.append(SingleAction(group, logged.k, chance, logged.correct, evidence))
        self._single_stats.append(self._counted_with(logged))
        return None

    def _counted_with(self, logged: LoggedDecision) -> CorpusStats | None:
        return NO_STATS if logged.calibrator is None else self._stats_of(logged.calibrator)


def _lasting(evidence: Mapping[str, float]) -> dict[str, float]:
    """Evidence without what depends on the questions that the served calibrator was fitted on."""
    return {name: value for name, value in evidence.items() if name != NEARNESS}


def _same_words(one: CorpusStats | None, other: CorpusStats) -> bool:
    return one is not None and (one is other or (one.passages == other.passages and one.counts == other.counts))


def _agree(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists of reference answers can both be right: an answer of one is right by the other."""
    return one == other or any(judge(answer, other) for answer in one) or any(judge(answer, one) for answer in other)


def _counted(excluded: Counter[Excluded], before: str) -> str:
    return before + "; ".join(f"{count} {why}" for why, count in excluded.most_common()) if excluded else ""


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
