"""Decision signals that know nothing of the reader's answer, to be beaten: each is a column like any other.

Prefix entropy and margin (the TARG gate) and the retrieval trigger come with the table, as signals of its own.
"""

import re

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from app.refit.fit import FOLDS, Labels
from app.refit.split import position
from app.refit.table import Outcomes

Floats = NDArray[np.float64]
TRIGGER = "trigger"
# A classifier of words learns little more from more questions than these, and takes its time.
_MOST_TEXTS = 20_000
_PREFIX_GATE = re.compile(r"(neg_entropy|margin)@\d+")


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
