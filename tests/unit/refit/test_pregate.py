"""P(right) by the question alone, as it is fitted: scikit-learn's numbers, out-of-fold by groups, honest on noise."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from app.errors import DataError
from app.refit.embed import embed_questions
from app.refit.exits import fit_exits, foretell_exits, goes_on
from app.refit.fit import FOLDS, folds
from app.refit.metrics import auroc
from app.refit.pregate import embedded, fit_foresight, fit_scorer, foretell
from app.refit.split import units
from app.refit.table import Asked, Outcomes
from tests.fakes.embedder import FakeEmbedder
from tests.refit.world import IDENTITY, World


def topics(seed: int = 0) -> Outcomes:
    """A table sorted by topic: sixty questions of each of ten, of which every other one is known to the reader."""
    rng = np.random.default_rng(seed)
    table, _ = World().draw(600, seed)
    topic = np.arange(600) // 60
    correct = {k: rng.random(600) < np.where(topic % 2 == 0, 0.9, 0.1) for k in (0, 1, 5)}
    vectors = np.eye(10)[topic] + 0.1 * rng.normal(size=(600, 10))
    questions = [f"topic {number} question" for number in topic]
    return replace(table, correct=correct, asked=embedded(questions, vectors, embedder="e"))


def test_the_served_number_is_scikit_learns() -> None:
    """Scaled and fitted by scikit-learn, served by plain arithmetic: the same scores, and so the same probability."""
    table = topics()
    asked = table.asked
    assert asked is not None
    found = fit_scorer(asked, table.correct[0], units(table, salt="order"))
    x = asked.features
    scale = np.where(np.arange(x.shape[1]) < 10, (x - x.mean(0))[:, :10].std(), np.maximum(x.std(0), 1e-300))
    scale = np.where(x.std(0) > 1e-12, scale, 1.0)
    z = (x - x.mean(0)) / scale
    model = LogisticRegression(C=1.0 / found.penalty, tol=1e-8, max_iter=10_000).fit(z, table.correct[0])
    served = [found.scorer.intercept + float(row @ np.array(found.scorer.weights)) for row in x]
    assert served == pytest.approx(model.decision_function(z), abs=1e-5)


def test_many_at_once_is_one_by_one() -> None:
    """What the job computes on columns is what the gateway computes for a question, to 1e-9."""
    table = topics()
    foresight, _ = fit_foresight(table, print)
    assert foresight is not None
    assert table.asked is not None
    p0, p1 = foretell(foresight, table.asked)
    assert p1 is not None
    for row in range(0, 600, 37):
        vector = table.asked.features[row, :10].tolist()
        assert foresight.predict(f"topic {row // 60} question", vector) == pytest.approx((p0[row], p1[row]), abs=1e-9)


def test_folds_are_drawn_by_group_and_not_by_row() -> None:
    """On a table sorted by topic each fold knows every topic: in row order the held-out topics would be unknown."""
    table = topics()
    assert table.asked is not None
    found = fit_scorer(table.asked, table.correct[0], units(table, salt="order"))
    assert auroc(found.out_of_fold, table.correct[0], np.ones(600)) > 0.8
    assert found.gain > 3.0
    in_row_order = folds(table.correct[0], units(table).codes)
    assert {tuple(np.unique(np.arange(600)[in_row_order == f] // 60)) for f in range(FOLDS)} != {tuple(range(10))}


def test_out_of_fold_predictions_do_not_know_their_labels() -> None:
    """On labels that are noise, many features do not find a pattern, and the foresight is left out with a word."""
    rng = np.random.default_rng(3)
    table, _ = World().draw(300, seed=3)
    noise = {k: rng.random(300) < 0.5 for k in (0, 1, 5)}
    table = replace(table, correct=noise, asked=Asked("e", 50, (), rng.normal(size=(300, 50))))
    said: list[str] = []
    foresight, scored = fit_foresight(table, said.append)
    assert foresight is None
    assert scored == {}
    assert any(line.startswith("p0 by the question: left out") for line in said)


def test_a_p1_that_cannot_be_had_is_done_without() -> None:
    """Where one passage is always right p1 has nothing to learn; p0 still serves."""
    table = topics()
    always = replace(table, correct=table.correct | {1: np.ones(600, dtype=bool)})
    said: list[str] = []
    foresight, _ = fit_foresight(always, said.append)
    assert foresight is not None
    assert foresight.p1 is None
    assert table.asked is not None
    assert foretell(foresight, table.asked)[1] is None
    assert any("p1 by the question: left out" in line for line in said)


def test_a_table_that_was_not_embedded_has_no_foresight() -> None:
    """Asking for it is refused."""
    with pytest.raises(DataError, match="not embedded"):
        fit_foresight(World().draw(60, seed=0)[0], print)


async def test_questions_are_embedded_as_the_gateway_would() -> None:
    """Each distinct question once, with its text features after its vector; a few more times where it is timed."""
    questions = ["Who wrote Emma?", "Who wrote Dune in 1965?", "Who wrote Emma?"]
    table = replace(World().draw(3, seed=0)[0], questions=questions, identity=replace(IDENTITY, embedder="fake-256"))
    embedder, heard = FakeEmbedder(), list[int]()
    found = await embed_questions(table, embedder, embed_ms=7.0, on_progress=heard.append)
    assert found.asked is not None
    assert found.asked.features.shape == (3, 259)
    assert found.asked.features[0].tolist() == found.asked.features[2].tolist()
    assert found.asked.features[1, 256:].tolist() == pytest.approx([np.log(6), 1.0, 1.0])
    assert (found.asked.embedder, found.asked.dimension, found.asked.embed_ms) == ("fake-256", 256, 7.0)
    assert embedder.queries == questions[:2]
    assert heard == [2]
    ticks = iter(range(100))
    timed = await embed_questions(table, embedder, clock=lambda: float(next(ticks)))
    assert timed.asked is not None
    assert timed.asked.embed_ms == 1000.0
    few = found.take(np.array([1]))
    assert few.asked is not None
    assert few.asked.features.shape == (1, 259)


async def test_another_embedder_and_a_table_without_texts_are_refused() -> None:
    """What one embedder says means nothing to weights on another's numbers; and hashes cannot be embedded."""
    table = replace(World().draw(2, seed=0)[0], questions=["a", "b"])
    with pytest.raises(DataError, match="collected with the embedder 'embedder', and 'fake-256' runs"):
        await embed_questions(table, FakeEmbedder())
    with pytest.raises(DataError, match="holds no questions"):
        await embed_questions(replace(table, questions=[]), FakeEmbedder())


def test_exits_are_fitted_where_answers_go_on_and_tell_something() -> None:
    """A prefix that is the whole answer is no prefix; a length of noise is left out; columns are served numbers."""
    table, _ = World(first_token_noise=0.3).draw(900, seed=1)
    signals = dict(table.signals[0])
    ends = np.arange(900) % 3 == 0
    signals["seq_logprob@1"] = np.where(ends, signals["seq_logprob"], signals["seq_logprob@1"])
    signals["seq_logprob@2"] = np.random.default_rng(0).normal(size=900)
    table = replace(table, signals=table.signals | {0: signals})
    assert goes_on(signals, 1).tolist() == (~ends).tolist()
    assert not goes_on(signals, 4).any()
    said: list[str] = []
    exits, foretold = fit_exits(table, tuple(signals), ("logistic",), said.append)
    assert set(exits) == set(foretold) == {1}
    assert np.isnan(foretold[1]).tolist() == ends.tolist()
    assert said == ["exits at 2 tokens: left out, on train they tell no more than the base rate"]
    applied = foretell_exits(exits, table)[1]
    assert np.isnan(applied).tolist() == ends.tolist()
    row = int(np.flatnonzero(~ends)[5])
    assert applied[row] == pytest.approx(exits[1].predict({"seq_logprob@1": float(signals["seq_logprob@1"][row])}))
