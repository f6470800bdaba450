"""Finished decisions for tests: a question that read one passage; keyword arguments replace fields by flat name."""

from dataclasses import replace
from typing import Any

from app.core.artifact import Thresholds
from app.core.available import Answer, Available, Passage, Usage
from app.core.corpus_stats import NO_STATS
from app.core.effective_policy import EffectivePolicy, Failure, Graded, Sampled
from app.core.ladder import Read, Reply, Search, Step, Stop
from app.core.policy import DEFAULT_KS, AskOptions, Reason
from app.core.question import Question
from app.core.record import DecisionRecord, Timings
from app.errors import UpstreamError

_QUESTION = {"id", "collection", "tags", "key"}
_ASK = {"policy", "retrieval", "abstain", "filtered"}
_REPLY = {"k", "reason", "confidence", "certified", "truncated", "in_scope"}


def a_record(**changes: Any) -> DecisionRecord:
    """A question that the graded gate sent to one passage; `answer=None` withholds the answer."""
    flat: dict[str, Any] = {
        "k": 1,
        "answer": "She",
        "reason": Reason.BORDERLINE,
        "confidence": 0.75,
        "p_closed_book": 0.625,
        "timings": Timings(total=620.0, probe=200.0, embed=15.0, search=5.0, read=400.0),
        "citations": (Passage("p1", "She", "It was she.", 0.5),),
        "probe_usage": Usage(40, 8),
        "read_usage": Usage(120, 9),
        "searches": 1,
    } | changes
    k, text = flat["k"], flat["answer"]
    question = Question("0123", flat.get("question", "Who?"), "demo", 24, AskOptions(**_only(flat, _ASK)))
    available = Available.at_first(question.text, NO_STATS)
    if flat["probe_usage"] is not None:
        available = available.answered(Answer(0, "He", flat.get("signals", {}), flat["probe_usage"]))
    if flat["citations"]:
        available = available.found(flat["citations"])
    if k > 0 and flat["read_usage"] is not None:
        read = flat.get("read_signals", {})
        available = available.answered(
            Answer(k, text or "She", read, flat["read_usage"], len(flat["citations"]), flat.get("truncated", False))
        )
    policy = EffectivePolicy(
        ks=DEFAULT_KS,
        kind=flat.get("kind", Graded(Thresholds(0.75, 0.5), 1, 5)),
        minimum=0,
        maximum=DEFAULT_KS[-1],
        tau=flat.get("tau_abstain"),
        version=flat.get("calibrator"),
        thresholds=flat.get("thresholds"),
        sampled=flat.get("sampled")
        or Sampled(
            share=flat.get("share", 0.0),
            explore=0.5 if flat.get("explored") else None,
            shadow=flat.get("shadowed", False),
            solicit=flat.get("solicited", False),
        ),
        failure=_failure(flat.get("failure")),
    )
    wanted = flat.get("wanted", k)
    taken: list[tuple[str, Search | Read | Stop]] = [("", Read(0)), ("k0", Stop(k))]
    if k > 0:
        taken[1:] = [("k0", Search()), ("search+k0", Read(k)), (f"search+k0+k{k}", Stop(k))]
    steps = tuple(Step(state, action, wanted, flat["reason"], flat["p_closed_book"]) for state, action in taken)
    reply = Reply(k, text, None, Reason.BORDERLINE, withheld=text is None, certified=False)
    return DecisionRecord(
        replace(question, **_only(flat, _QUESTION)),
        policy,
        steps,
        available,
        replace(reply, **_only(flat, _REPLY)),
        flat["timings"],
        flat["searches"],
    )


def _only(flat: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in flat.items() if name in names}


def _failure(failure: tuple[str, str] | None) -> Failure | None:
    if failure is None:
        return None
    every: list[type[UpstreamError]] = [UpstreamError, *UpstreamError.__subclasses__()]
    kinds = {error.kind: error for error in every}
    return Failure(kinds[failure[1]](failure[0], "it failed"), maximum=0)


def a_skip(**changes: Any) -> DecisionRecord:
    """A question that the gate answered closed-book."""
    skipped: dict[str, Any] = {
        "k": 0,
        "reason": Reason.CONFIDENT,
        "timings": Timings(total=205.0, probe=200.0),
        "citations": (),
        "read_usage": None,
        "searches": 0,
    }
    return a_record(**(skipped | changes))
