"""Baselines know only the question."""

from dataclasses import replace

import numpy as np

from app.offline.evaluate.study import baselines, kind_of, query_text
from app.offline.refit.fit import folds
from tests.offline.world import World


def test_query_text_learns_words_out_of_fold() -> None:
    """A word that decides the label is found, in rows that the classifier has not seen."""
    rng = np.random.default_rng(0)
    labels = rng.random(200) < 0.5
    questions = [f"the {'capital' if label else 'cousin'} of place{i}" for i, label in enumerate(labels)]
    score = query_text(questions, labels, folds(labels, list(map(str, range(200)))))
    assert score is not None
    assert score[labels].min() > score[~labels].max()


def test_questions_without_words_have_no_text_signal() -> None:
    """Punctuation alone is no vocabulary, and no crash."""
    labels = np.arange(20) % 2 == 0
    assert query_text(["?"] * 20, labels, folds(labels, list(map(str, range(20))))) is None


def test_random_skipping_depends_on_the_id_alone() -> None:
    """The same questions in another order get the same numbers; without texts nothing else is offered."""
    table, _ = World().draw(50, seed=1)
    labels = table.correct[0]
    fold = folds(labels, list(map(str, range(50))))
    found = baselines(table, labels, fold)
    back = np.arange(50)[::-1]
    assert set(found) == {"random"}
    assert baselines(table.take(back), labels[back], fold[back])["random"].tolist() == found["random"][back].tolist()


def test_longer_questions_count_as_harder() -> None:
    """Question length is the number of words, negative, so that a higher value means more confidence."""
    table, _ = World().draw(50, seed=1)
    asked = replace(table, questions=["who"] * 25 + ["who was it"] * 25)
    found = baselines(asked, table.correct[0], folds(table.correct[0], list(map(str, range(50)))))
    assert sorted(set(found["question_length"].tolist())) == [-3.0, -1.0]


def test_signals_are_compared_as_what_they_are() -> None:
    """Prefix entropy and margin stand for TARG, the trigger and the question's own features are baselines."""
    names = ("seq_logprob", "seq_logprob@4", "margin@4", "neg_entropy@8", "trigger", "query_text", "fused")
    assert [kind_of(name) for name in names] == ["ours", "ours", "targ", "targ", "baseline", "baseline", "ours"]
