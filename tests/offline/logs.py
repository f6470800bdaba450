"""Decision logs whose truth is known: a gate answers the questions of a world, chance has a part or not, all is judged.

A question is a number s, uniform in [0, 1): which the served calibrator predicts as the probability of a right answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.core.artifact import Artifact, Identity, Thresholds
from app.core.available import Answer, Passage, Usage, evidence_of
from app.core.corpus_stats import NO_STATS
from app.core.effective_policy import Sampled, resolve
from app.core.feedback import Feedback
from app.core.heads import Heads
from app.core.policy import DEFAULT_KS, AskOptions
from app.core.question import Question
from app.core.record import DecisionRecord, FullRun, Outcome, Timings
from app.offline.from_log import FromLog, read_log
from app.offline.refit.heads import predict_many
from app.storage.decisions import SqlDecisionStore
from app.storage.reading import LoggedDecisions
from tests.fakes.artifacts import TAU0, TAU1, an_abstention, an_artifact, an_identity
from tests.fakes.walks import World, walk

Floats = NDArray[np.float64]
KS = DEFAULT_KS
GRID = (np.arange(2000) + 0.5) / 2000
# Serves k0 from s = 0.75 on, k1 from 0.5 on, and withholds nothing.
SERVED = an_artifact(abstention=an_abstention(certificate=None))
ASK = AskOptions()


@dataclass(frozen=True)
class Hidden:
    """P(right) at each k, by s."""

    chance: Mapping[int, Callable[[Floats], Floats]]

    def error(self, heads: Heads, k: int, among: Floats = GRID) -> float:
        """How far the probability of an answer at k is from the truth, on average over questions."""
        p = predict_many(heads[state_at(k)][k], evidence_at(among), len(among))
        return float(np.abs(p - self.chance[k](among)).mean())

    def served(self, heads: Heads, thresholds: Thresholds) -> tuple[float, float]:
        """A policy's true accuracy minus that of the best fixed k, and the share of five passages that it reads."""
        p = predict_many(heads["k0"][0], evidence_at(GRID), len(GRID))
        k = np.where(p >= thresholds.tau0, 0, np.where(p >= thresholds.tau1, 1, 5))
        accuracy = float(np.mean(np.select([k == one for one in KS], [self.chance[one](GRID) for one in KS])))
        return accuracy - max(float(self.chance[one](GRID).mean()) for one in KS), float(k.mean()) / 5.0


def state_at(k: int) -> str:
    """The state in which the graded policy gives an answer at k."""
    return "k0" if k == 0 else f"search+k0+k{k}"


def evidence_at(s: Floats) -> dict[str, Floats]:
    """What is known of questions at s; the search says nothing about them."""
    return {f"k{k}.seq_logprob": s - 1.0 for k in KS} | {"search.cosine": np.zeros(len(s))}


def step(at: float, below: float, above: float) -> Callable[[Floats], Floats]:
    """One chance below a point, another from it on."""
    return lambda s: np.where(s >= at, above, below)


def decision(identifier: str, question: str, s: float, *, share: float, u: float) -> DecisionRecord:
    """How the gateway decides about a question at s, if it explores a share of them and asks for every verdict."""
    sampled = Sampled(share, u / share if u < share else None, solicit=True)
    done = walk(resolve(ASK, SERVED, ks=KS, sampled=sampled), World({k: {"seq_logprob": s - 1.0} for k in KS}))
    searches = int(done.reply.k > 0)
    asked = Question(identifier, question, "demo", 24, ASK)
    reply = replace(done.reply, text="right")
    return DecisionRecord(asked, done.policy, done.steps, done.available, reply, Timings(total=620.0), searches)


def a_run(identifier: str, s: float, right: Mapping[int, bool], identity: Identity | None = None) -> FullRun:
    """A shadow run whose answers are right or wrong as given."""
    outcomes = {
        k: Outcome("right" if right[k] else "wrong", {"seq_logprob": s - 1.0}, 40 + 100 * k, 4, k, 20.0 + k) for k in KS
    }
    passages = [Passage(str(rank), "", "") for rank in range(KS[-1])]
    answers = [Answer(k, f"answer at {k}", {"seq_logprob": s - 1.0}, Usage(10, 2)) for k in KS]
    evidence = evidence_of("", NO_STATS, None, passages, answers)
    return FullRun(identifier, identity or an_identity(), outcomes, evidence)


def write_log(
    path: Path, world: Hidden, n: int, seed: int, *, explore_share: float = 0.0, shadow_share: float = 0.0
) -> None:
    """Answer n questions, shadow some of them, and let someone judge every one by reference answers."""
    rng = np.random.default_rng(seed)
    s = rng.random(n)
    right = {k: rng.random(n) < world.chance[k](s) for k in KS}
    rolls, shadowed = rng.random(n), rng.random(n) < shadow_share
    entries: list[tuple[float, DecisionRecord | FullRun]] = []
    given: list[tuple[float, Feedback]] = []
    for i in range(n):
        name, at = f"{seed}-{i}", 1_700_000_000.0 + i
        question = f"What is thing {i} of list {seed}?"
        record = decision(name, question, float(s[i]), share=explore_share, u=float(rolls[i]))
        text = "right" if right[record.reply.k][i] else "wrong"
        entries.append((at, replace(record, reply=replace(record.reply, text=text))))
        if shadowed[i]:
            entries.append((at, a_run(name, float(s[i]), {k: bool(right[k][i]) for k in KS})))
        given.append((at + 60.0, Feedback(name, references=("right",))))
    store = SqlDecisionStore.open(str(path))
    store.write(entries, given)
    store.close()


def read(
    path: Path, *, clip: float = 20.0, since: float = 0.0, artifact: Artifact = SERVED, chat: bool = False
) -> FromLog:
    """What a refit makes of a log; one calibrator is known by its version."""
    store = SqlDecisionStore.open(str(path))
    try:
        logged_decisions = LoggedDecisions(store.database, collection="demo", since=since, chat=chat)
        known = {artifact.version: artifact.identity}
        return read_log(logged_decisions, identity_of=known.get, clip=clip)
    finally:
        store.close()


__all__ = ["GRID", "KS", "SERVED", "TAU0", "TAU1", "Hidden", "a_run", "decision", "read", "step", "write_log"]
