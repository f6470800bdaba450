"""One table with its folds and bootstrap draws, and how well its signals predict that a closed-book answer is right.

Baselines are decision signals that do not look at the reader's answer. First-token entropy and margin (the TARG gate)
and the retrieval trigger are columns of the table.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from app.core.evidence import belongs
from app.core.labels import Rule, is_right
from app.core.signals import NAMES
from app.errors import DataError
from app.offline.evaluate.frontier import areas, drawn_areas, random_and_oracle
from app.offline.refit.fit import FOLDS, FUSIONS, METHODS, Method, fit, folds, out_of_fold, predict_many
from app.offline.refit.heads import fit_head
from app.offline.refit.metrics import Draws, ece, losses, quality
from app.offline.refit.splits import Units, position, units
from app.offline.table import Floats, Labels, Outcomes

FUSED = "fused"
TRIGGER = "trigger"
# A text classifier gains little from more questions than these, and becomes slow.
_MAX_TEXTS = 20_000
SIZES = (50, 100, 200, 400, 800, 1_600, 3_200)
REPEATS = 20
_HELD_OUT = 0.3
_SIZED: tuple[Method, ...] = ("logistic", "isotonic")
_PREFIX_GATE = re.compile(r"(neg_entropy|margin)@\d+")


@dataclass(frozen=True, eq=False, slots=True)
class Study:
    """One outcome table under the diagnostic protocol."""

    # The questions that the corpus can answer: the paper's tables are about these.
    outcomes: Outcomes
    # With those that it cannot answer.
    whole: Outcomes
    units: Units
    draws: Draws
    right: Mapping[int, Floats]
    labels: Labels
    fold: NDArray[np.intp]

    @property
    def ks(self) -> tuple[int, int, int]:
        """The numbers of passages that the graded policy chooses among: none, few, many."""
        return self.outcomes.graded_ks

    @property
    def outside(self) -> dict[str, Any]:
        """Questions that the corpus cannot answer: how many, and the share that each k refuses."""
        rows = self.whole.out_of_corpus
        right = sorted(self.whole.correct.items()) if rows.any() else ()
        return {"n": int(rows.sum()), "refused": {f"k{k}": float(column[rows].mean()) for k, column in right}}

    @property
    def weights(self) -> Floats:
        """Weights of rows; each group has the same weight."""
        return self.units.weights

    @property
    def group_weights(self) -> Floats:
        """The same for a fit, in which a group counts as one row."""
        return self.weights * self.units.count

    def predict(self, method: Method, names: tuple[str, ...], source: int, k: int) -> Floats | None:
        """Out-of-fold P(the answer from k passages is right) from the signals of the answer from `source` passages.

        None if the table has no such signal, or too few right or wrong answers.
        """
        columns = self.outcomes.signals[source]
        labels = self.outcomes.correct[k]
        try:
            fold = self.fold if k == 0 else folds(labels, self.outcomes.groups)
            return out_of_fold(method, names, columns, labels, fold, weights=self.group_weights)
        except (DataError, KeyError):
            return None

    def blend(self, source: int, k: int) -> Floats | None:
        """The same by a blended head on all evidence of the answer from `source` passages, without the passages."""
        labels, state = self.outcomes.correct[k], f"k{source}"
        columns = {n: c for n, c in self.outcomes.evidence.items() if belongs(n, state) and np.isfinite(c).any()}
        if not columns or labels.all() or not labels.any():
            return None
        try:
            fold = self.fold if k == 0 else folds(labels, self.outcomes.groups)
            target = labels.astype(np.float64)
            return fit_head(columns, target, self.weights, fold, state=state, k=k).out_of_fold
        except DataError:
            return None


def make_study(outcomes: Outcomes, resamples: int, rule: Rule | None = None) -> Study:
    """Make folds and draws for a table, labelled again if there is a rule.

    Raises a DataError if it has too few right or wrong answers.
    """
    outcomes.require_labels("the table")
    whole = relabelled(outcomes, rule) if rule else outcomes
    outcomes = whole.take(np.flatnonzero(~whole.out_of_corpus)) if whole.out_of_corpus.any() else whole
    grouping, labels = units(outcomes), outcomes.correct[0]
    right = {k: correct.astype(np.float64) for k, correct in outcomes.correct.items()}
    return Study(outcomes, whole, grouping, Draws(grouping, resamples), right, labels, folds(labels, outcomes.groups))


def relabelled(outcomes: Outcomes, rule: Rule) -> Outcomes:
    """The same table with every answer labelled again from its text."""
    if not outcomes.gold or not all(any(texts) for texts in outcomes.answers.values()):
        raise DataError("the table has no answers to label again: leave out --rule, or collect the table again")
    correct = {
        k: np.array(
            [
                is_right(text, gold, rule, out_of_corpus=outside)
                for text, gold, outside in zip(texts, outcomes.gold, outcomes.out_of_corpus.tolist(), strict=True)
            ]
        )
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
    """Every closed-book signal, their fusion and every baseline; and the reason for each that is left out."""
    columns = {n: c for n, c in study.outcomes.signals[0].items() if np.isfinite(c).any()}
    present = tuple(name for name in NAMES if name in columns)
    columns |= baselines(study.outcomes, study.labels, study.fold)
    wanted: dict[str, tuple[Method, tuple[str, ...]]] = {name: ("logistic", (name,)) for name in columns}
    if len(present) > 1:
        wanted[FUSED] = ("fused", present)
    found, unassessed = {}, {}
    for name, (method, names) in wanted.items():
        try:
            found[name] = _assess(study, name, method, names, columns)
        except DataError as error:
            unassessed[name] = str(error)
    if not study.outcomes.questions:
        unassessed |= dict.fromkeys(("question_length", "query_text"), "the table was loaded without questions")
    return found, unassessed


def _assess(study: Study, name: str, method: Method, names: tuple[str, ...], columns: Mapping[str, Floats]) -> Assessed:
    p = out_of_fold(method, names, columns, study.labels, study.fold, weights=study.group_weights)
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
    # The frontier uses the three k of a policy; larger ones are reported elsewhere.
    right = {k: study.right[k] for k in study.ks}
    exact, drawn = areas(p, right, study.weights), drawn_areas(p, right, study.draws)
    marks = random_and_oracle(right, study.weights)
    headroom = marks["oracle"] - marks["random"]
    figures["frontier"] = (
        exact
        | marks
        | {"normalised": (exact["binary"] - marks["random"]) / headroom if headroom > 1e-12 else None}
        | {"intervals": {axis: study.draws.centred(exact[axis], values) for axis, values in drawn.items()}}
    )
    return Assessed(figures, p, exact, drawn)


def methods(study: Study, main: str, present: tuple[str, ...]) -> dict[str, Any]:
    """AUROC, ECE, Brier and NLL of every method, out-of-fold on the main signal, or on all of them for a fusion."""
    found: dict[str, Any] = {"signal": main}
    for method in METHODS:
        names = present if method in FUSIONS else (main,)
        if method in FUSIONS and len(present) < 2:
            continue
        try:
            columns = study.outcomes.signals[0]
            p = out_of_fold(method, names, columns, study.labels, study.fold, weights=study.group_weights)
        except DataError:
            continue  # a fold without right or without wrong answers
        found[method] = quality(p, study.labels, study.draws)
    return found


def sizes(study: Study, main: str) -> dict[str, Any]:
    """ECE and Brier score on 30 % of the groups after fitting on a number of the others.

    Mean and standard deviation over twenty random draws of both.
    """
    code, count = study.units.codes, study.units.count
    rng = np.random.default_rng(0)
    drawn = [rng.permutation(count)[code] for _ in range(REPEATS)]
    pool = int(count * (1.0 - _HELD_OUT))
    table = []
    for size in (*(size for size in SIZES if size < pool), pool):
        for method in _SIZED:
            parts = ((np.flatnonzero(place < size), np.flatnonzero(place >= pool)) for place in drawn)
            scores = [_scores(study, (method, main), rows, held) for rows, held in parts]
            known = np.array([score for score in scores if score is not None])
            if len(known):
                ece_, brier = _spread(known[:, 0]), _spread(known[:, 1])
                table.append({"groups": size, "method": method, "ece": ece_, "brier": brier})
    return {"signal": main, "held_out_groups": count - pool, "repeats": REPEATS, "rows": table}


def _scores(
    study: Study, source: tuple[Method, str], rows: NDArray[np.intp], held: NDArray[np.intp]
) -> tuple[float, float] | None:
    method, main = source
    column = study.outcomes.signals[0][main]
    try:
        fitted = fit(method, (main,), {main: column[rows]}, study.labels[rows], study.group_weights[rows])
    except DataError:
        return None  # all answers of this draw are right, or all are wrong
    p, labels = predict_many(fitted, {main: column[held]}, len(held)), study.labels[held]
    weights = study.weights[held] * np.isfinite(p)
    brier = np.where(np.isfinite(p), losses(p, labels)["brier"], 0.0)
    return ece(p, labels, study.weights[held]), float(weights @ brier / weights.sum())


def _spread(values: Floats) -> dict[str, float]:
    return {"mean": float(values.mean()), "deviation": float(values.std())}


def main_signal(names: Mapping[str, Any]) -> str:
    """The signal that methods, sizes and deltas use: the first of the three standard ones that the table has."""
    ours = [name for name in names if kind_of(name) == "ours" and name != FUSED]
    if not ours:
        raise DataError("no signal to evaluate: collect the table with log-probabilities switched on")
    return next((name for name in NAMES if name in ours), ours[0])


def kind_of(name: str) -> str:
    """The kind of a signal: ours, a first-token gate like TARG, or a baseline."""
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
    """P(right) from the words of the question alone, out-of-fold; None if the questions have no words."""
    texts, score = np.array(questions, dtype=object), np.full(len(questions), np.nan)
    for number in range(FOLDS):
        seen, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        if len(seen) > _MAX_TEXTS:
            seen = seen[np.linspace(0, len(seen) - 1, _MAX_TEXTS).astype(np.intp)]
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        try:
            known = words.fit_transform(texts[seen])
        except ValueError:  # an empty vocabulary
            return None
        model = LogisticRegression(C=1.0, max_iter=1_000).fit(known, labels[seen])
        score[held] = model.predict_proba(words.transform(texts[held]))[:, 1]
    return score
