"""What every part of an evaluation shares: one table, its folds, its draws, its signals and the baselines to beat.

Baselines are decision signals that know nothing of the reader's answer. First-token entropy and margin (the TARG gate)
and the retrieval trigger come with the table, as signals of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from app.core.labels import Rule, judge
from app.core.signals import NAMES
from app.errors import DataError
from app.offline.evaluate.frontier import areas, drawn_areas, yardsticks
from app.offline.refit.fit import FOLDS, Method, fit, folds, out_of_fold, predict_many
from app.offline.refit.metrics import Draws, quality
from app.offline.refit.splits import Units, position, units
from app.offline.table import Floats, Labels, Outcomes

FUSED = "fused"
TRIGGER = "trigger"
# A classifier of words learns little more from more questions than these, and takes its time.
_MOST_TEXTS = 20_000
_PREFIX_GATE = re.compile(r"(neg_entropy|margin)@\d+")


@dataclass(frozen=True, eq=False, slots=True)
class Study:
    """One outcome table under the diagnostic protocol."""

    outcomes: Outcomes
    units: Units
    draws: Draws
    right: Mapping[int, Floats]
    labels: Labels
    fold: NDArray[np.intp]

    @property
    def ks(self) -> tuple[int, int, int]:
        """The numbers of passages that a policy chooses among."""
        return self.outcomes.ks

    @property
    def weights(self) -> Floats:
        """Weights of rows under which every group weighs one."""
        return self.units.weights

    def judged(self, method: Method, names: tuple[str, ...], source: int, k: int) -> Floats | None:
        """Out-of-fold P(the answer with k passages is right) from the signals of the answer with `source` passages.

        None where the table has no such signal, or too few answers of either kind.
        """
        columns = self.outcomes.signals[source]
        labels = self.outcomes.correct[k]
        try:
            fold = self.fold if k == 0 else folds(labels, self.units.codes)
            return out_of_fold(method, names, columns, labels, fold)
        except (DataError, KeyError):
            return None


def study_of(outcomes: Outcomes, resamples: int) -> Study:
    """Lay folds and draws for a table; a table of which nothing can be learned is refused here."""
    grouping, labels = units(outcomes), outcomes.correct[0]
    right = {k: correct.astype(np.float64) for k, correct in outcomes.correct.items()}
    return Study(outcomes, grouping, Draws(grouping, resamples), right, labels, folds(labels, grouping.codes))


def relabelled(outcomes: Outcomes, rule: Rule) -> Outcomes:
    """The same table with every answer judged again from its text."""
    if not outcomes.gold or not all(any(texts) for texts in outcomes.answers.values()):
        raise DataError("the table has no answers to judge again: leave the labels as they are, or collect it anew")
    correct = {
        k: np.array([judge(text, gold, rule) for text, gold in zip(texts, outcomes.gold, strict=True)])
        for k, texts in outcomes.answers.items()
    }
    return replace(outcomes, correct=correct)


@dataclass(frozen=True, eq=False, slots=True)
class Assessed:
    """One decision signal: its figures, its out-of-fold probabilities, and its areas in every draw."""

    figures: dict[str, Any]
    p: Floats
    areas: Mapping[str, float]
    drawn: Mapping[str, Floats]


def assess_all(study: Study) -> tuple[dict[str, Assessed], dict[str, str]]:
    """Every closed-book signal, their fusion, and every baseline; and those left out, with the reason."""
    columns = {n: c for n, c in study.outcomes.signals[0].items() if np.isfinite(c).any()}
    present = tuple(name for name in NAMES if name in columns)
    columns |= baselines(study.outcomes, study.labels, study.fold)
    wanted: dict[str, tuple[Method, tuple[str, ...]]] = {name: ("logistic", (name,)) for name in columns}
    if len(present) > 1:
        wanted[FUSED] = ("fused", present)
    found, left_out = {}, {}
    for name, (method, names) in wanted.items():
        try:
            found[name] = _assess(study, name, method, names, columns)
        except DataError as error:
            left_out[name] = str(error)
    if not study.outcomes.questions:
        left_out |= dict.fromkeys(("question_length", "query_text"), "the table was loaded without questions")
    return found, left_out


def _assess(study: Study, name: str, method: Method, names: tuple[str, ...], columns: Mapping[str, Floats]) -> Assessed:
    p = out_of_fold(method, names, columns, study.labels, study.fold)
    figures: dict[str, Any] = {"kind": kind_of(name), "n": len(p), "missing": int((~np.isfinite(p)).sum())}
    calibrated = quality(p, study.labels, study.draws)
    figures |= {metric: found.value for metric, found in calibrated.items()}
    if method != "fused":
        raw = predict_many(fit("minmax", names, columns, study.labels), columns, len(p))
        uncalibrated = quality(raw, study.labels, study.draws)
        figures |= {f"{metric}_raw": uncalibrated[metric].value for metric in ("auroc", "ece", "brier")}
    else:
        figures |= dict.fromkeys(("auroc_raw", "ece_raw", "brier_raw"))
    figures["intervals"] = calibrated
    # The closed-book answer is one of three that the frontier needs; a further k is reported elsewhere.
    right = {k: study.right[k] for k in study.ks}
    exact, drawn = areas(p, right, study.weights), drawn_areas(p, right, study.draws)
    marks = yardsticks(right, study.weights)
    headroom = marks["oracle"] - marks["random"]
    figures["frontier"] = (
        exact
        | marks
        | {"normalised": (exact["binary"] - marks["random"]) / headroom if headroom > 1e-12 else None}
        | {"intervals": {axis: study.draws.centred(exact[axis], values) for axis, values in drawn.items()}}
    )
    return Assessed(figures, p, exact, drawn)


def main_signal(names: Mapping[str, Any]) -> str:
    """The signal that methods, sizes and deltas are about: the first of the three that the table has."""
    ours = [name for name in names if kind_of(name) == "ours" and name != FUSED]
    if not ours:
        raise DataError("no signal to evaluate: collect the table with log-probabilities switched on")
    return next((name for name in NAMES if name in ours), ours[0])


def kind_of(name: str) -> str:
    """What a signal is compared as: ours, a prefix gate in the manner of TARG, or a baseline."""
    if name in {"random", "question_length", "query_text", TRIGGER}:
        return "baseline"
    return "targ" if _PREFIX_GATE.fullmatch(name) else "ours"


def baselines(outcomes: Outcomes, labels: Labels, fold: NDArray[np.intp]) -> dict[str, Floats]:
    """Random skipping, question length and a query-text classifier; without texts, random alone."""
    found = {"random": np.array([position(identifier, "random skipping") for identifier in outcomes.ids])}
    if outcomes.questions:
        found["question_length"] = -np.array([len(q.split()) for q in outcomes.questions], dtype=np.float64)
        text = query_text(outcomes.questions, labels, fold)
        if text is not None:
            found["query_text"] = text
    return found


def query_text(questions: list[str], labels: Labels, fold: NDArray[np.intp]) -> Floats | None:
    """P(right) from the words of the question alone, out-of-fold; None where the questions have no words."""
    texts, score = np.array(questions, dtype=object), np.full(len(questions), np.nan)
    for number in range(FOLDS):
        seen, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        if len(seen) > _MOST_TEXTS:
            seen = seen[np.linspace(0, len(seen) - 1, _MOST_TEXTS).astype(np.intp)]
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        try:
            known = words.fit_transform(texts[seen])
        except ValueError:  # an empty vocabulary
            return None
        model = LogisticRegression(C=1.0, max_iter=1_000).fit(known, labels[seen])
        score[held] = model.predict_proba(words.transform(texts[held]))[:, 1]
    return score
