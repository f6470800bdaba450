"""Following a fitted policy on a table: the gateway, given the same evidence row by row, does the same."""

from dataclasses import replace

import numpy as np
import pytest

from app.core import evidence
from app.core.artifact import Artifact, Thresholds
from app.core.available import Answer, Available, Passage, Usage, state_of
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.cost import Objective
from app.core.effective_policy import EffectivePolicy, resolve
from app.core.ladder import Read, Reply, Search, Stop, conclude, next_step
from app.core.policy import AskOptions, Policy
from app.offline.refit.climb import AHEAD, states
from app.offline.refit.follow import Fitted, Given, serve
from app.offline.refit.refit import Summary, refit
from app.offline.table import Outcomes
from tests.offline.world import BY_TOKENS, World

OPTIONS = replace(BY_TOKENS, prices=(0.12,), epsilon=0.3, goal="save")
# Signals are missing here and there, and some questions are out of scope.
TABLE = World(support=2.0, outside=0.15, missing=0.1).draw(620, seed=8)[0]


@pytest.fixture(scope="module")
def fitted() -> tuple[Artifact, Summary]:
    return refit(TABLE, OPTIONS)


def row_of(table: Outcomes, row: int, stats: CorpusStats = NO_STATS) -> dict[str, float]:
    """All evidence of one row, without what is missing."""
    found = {name: float(column[row]) for name, column in table.evidence.items() if np.isfinite(column[row])}
    near = None if table.vectors is None else stats.nearness(table.vectors[row].tolist())
    return found | ({} if near is None else {evidence.NEARNESS: near})


def follow(policy: EffectivePolicy, whole: dict[str, float]) -> tuple[str, Reply]:
    """Walk one question, with the evidence of its row instead of upstream calls; the last state, and the reply."""
    passages: tuple[Passage, ...] | None = None
    answers: dict[int, Answer] = {}
    for _ in range(10):
        state = state_of(answers, searched=passages is not None)
        available = Available(passages, answers, evidence.known_in(state, whole))
        step = next_step(policy, available)
        match step.action:
            case Stop():
                return state, conclude(policy, available, step)
            case Search():
                passages = tuple(Passage(str(rank), "", "") for rank in range(policy.ks[-1]))
            case Read(k):
                answers = {**answers, k: Answer(k, f"answer at {k}", {}, Usage())}
    raise AssertionError("the walk does not end")


def assert_same(given: Given, row: int, reply: Reply, *, stats: str = "") -> None:
    if given.confidence[row] < 0.0:
        assert not reply.in_scope, stats
        assert reply.confidence is None
        return
    assert reply.in_scope
    assert reply.k == given.k[row]
    if np.isnan(given.confidence[row]):
        assert reply.confidence is None
    else:
        assert reply.confidence == pytest.approx(given.confidence[row], abs=1e-9)


def test_the_gateway_climbs_as_the_job_did(fitted: tuple[Artifact, Summary]) -> None:
    """The same k, the same confidence to 1e-9, and the same state at the end, for rows that were fitted on or not."""
    artifact, summary = fitted
    assert artifact.ladder is not None
    assert artifact.ladder.certificate is not None
    fresh = World(support=2.0, outside=0.15, missing=0.1).draw(150, seed=9)[0]
    stats = summary.stats
    policy = resolve(AskOptions(abstain=False), artifact, ks=artifact.ks, stats=stats)
    ended = set()
    for table, rows in ((fresh, range(150)), (TABLE, range(0, 400, 5))):
        given = Fitted.of(table, artifact.heads, artifact.scope, stats.centroids).ladder(artifact.ladder)
        assert given.climb is not None
        for row in rows:
            state, reply = follow(policy, row_of(table, row, stats))
            assert_same(given, row, reply)
            if reply.confidence is not None:
                assert state == states(artifact.ks)[given.climb.state[row]]
                ended.add(state)
    # Not vacuous: the ladder stops in several states, after each k.
    assert len(ended) >= 4


def test_the_gateway_chooses_for_chat_as_the_job_did(fitted: tuple[Artifact, Summary]) -> None:
    """The same k at once, without a confidence, for rows that were not fitted on; those out of scope get no passage."""
    artifact, summary = fitted
    assert artifact.chat is not None
    fresh = World(support=2.0, outside=0.15, missing=0.1).draw(300, seed=9)[0]
    stats, chosen = summary.stats, set()
    for t in (artifact.chat.t, 0.0):
        chat = replace(artifact.chat, t=t)
        ask, now = AskOptions(abstain=False), replace(artifact, chat=chat)
        policy = resolve(ask, now, ks=artifact.ks, stats=stats, chat=True, allow_uncertified=True)
        given = Fitted.of(fresh, artifact.heads, artifact.scope, stats.centroids).chat(chat)
        for row in range(len(fresh)):
            state, reply = follow(policy, row_of(fresh, row, stats))
            assert reply.confidence is None
            if given.confidence[row] < 0.0:
                assert (reply.in_scope, reply.k) == (False, 0)
            else:
                assert (state, reply.k) == (AHEAD, given.k[row])
                chosen.add(reply.k)
    assert chosen == {0, 1, 5}


def test_questions_out_of_scope_are_withheld_by_both(fitted: tuple[Artifact, Summary]) -> None:
    """An alarm offline is a reply without an answer online, and only then."""
    artifact, summary = fitted
    given = serve(TABLE, artifact, summary.stats.centroids)
    policy = resolve(AskOptions(), artifact, ks=artifact.ks, stats=summary.stats)
    withheld = [follow(policy, row_of(TABLE, row, summary.stats))[1].reason.value for row in range(620)]
    assert [reason == "out_of_scope" for reason in withheld] == (given.confidence < 0.0).tolist()
    assert 20 < withheld.count("out_of_scope") < 150


def test_the_gateway_grades_as_the_job_did(fitted: tuple[Artifact, Summary]) -> None:
    """The same for the paper's policy, whose confidence uses the passages as well."""
    artifact, summary = fitted
    thresholds = Thresholds(0.6, 0.3)
    artifact = replace(
        artifact, policies={"graded": replace(artifact.policies["graded"], thresholds=thresholds)}, ladder=None
    )
    fitted_on = Fitted.of(TABLE, artifact.heads, artifact.scope, summary.stats.centroids)
    given = fitted_on.graded(thresholds)
    ask = AskOptions(Policy.GRADED, abstain=False)
    policy = resolve(ask, artifact, ks=artifact.ks, stats=summary.stats, allow_uncertified=True)
    for row in range(0, 620, 6):
        # A probe that is enough is given before the search, so the scope test has not seen the passages.
        state, reply = follow(policy, row_of(TABLE, row, summary.stats))
        if state != "k0":
            assert_same(given, row, reply)
        elif given.confidence[row] >= 0.0:
            assert (reply.k, reply.confidence) == (given.k[row], pytest.approx(given.confidence[row], abs=1e-9))


@pytest.mark.parametrize("k", [1, 5])
def test_a_fixed_k_has_the_confidence_that_is_shown(fitted: tuple[Artifact, Summary], k: int) -> None:
    """Without a certificate the fallback is read, and its confidence is that of one read after a search."""
    artifact, summary = fitted
    assert artifact.ladder is not None
    bare = replace(artifact, ladder=replace(artifact.ladder, certificate=None), fallback_k=k)
    given = serve(TABLE, bare, summary.stats.centroids)
    assert (given.k == k).all()
    policy = resolve(AskOptions(abstain=False), bare, ks=bare.ks, stats=summary.stats)
    for row in range(0, 400, 20):
        if given.confidence[row] >= 0.0:
            assert_same(given, row, follow(policy, row_of(TABLE, row, summary.stats))[1])


def test_costs_change_nothing_about_what_is_given(fitted: tuple[Artifact, Summary]) -> None:
    """Another objective has other costs, and the same answers."""
    artifact, summary = fitted
    assert artifact.ladder is not None
    on = Fitted.of(TABLE, artifact.heads, artifact.scope, summary.stats.centroids)
    tokens, calls = on.ladder(artifact.ladder), on.ladder(artifact.ladder, Objective.CALLS)
    assert (tokens.k == calls.k).all()
    assert tokens.climb is not None
    assert calls.climb is not None
    assert (calls.climb.spent == calls.climb.searches).all()
    assert tokens.climb.spent.sum() > calls.climb.spent.sum()
