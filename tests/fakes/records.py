"""Finished decisions for tests: a question that read one passage; keyword arguments replace fields by flat name."""

from dataclasses import replace
from typing import Any

from app.core.artifact import Thresholds
from app.core.available import Answer, Available, Passage, Usage
from app.core.effective_policy import EffectivePolicy, Failure, Graded, Sampled
from app.core.ladder import Read, Reply, Search, Step, Stop
from app.core.policy import DEFAULT_KS, AskOptions, Reason
from app.core.question import Question
from app.core.record import DecisionRecord, Timings
from app.errors import UpstreamError

_QUESTION = {"id", "collection", "tags", "key"}
_ASK = {"policy", "retrieval", "abstain", "filtered"}
_REPLY = {"k", "reason", "confidence", "certified"}


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
    answers = {}
    if flat["probe_usage"] is not None:
        answers[0] = Answer(0, "He", flat.get("signals", {}), flat["probe_usage"])
    if k > 0 and flat["read_usage"] is not None:
        read = flat.get("read_signals", {})
        answers[k] = Answer(k, text or "She", read, flat["read_usage"], len(flat["citations"]))
    question = Question("0123", flat.get("question", "Who?"), "demo", 24, AskOptions(**_only(flat, _ASK)))
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
    states: list[Search | Read | Stop] = [Read(0), Stop(k)] if k == 0 else [Read(0), Search(), Read(k), Stop(k)]
    steps = tuple(Step("", action, wanted, flat["reason"], flat["p_closed_book"]) for action in states)
    reply = Reply(k, text, None, Reason.BORDERLINE, withheld=text is None, certified=False)
    return DecisionRecord(
        replace(question, **_only(flat, _QUESTION)),
        policy,
        steps,
        Available(flat["citations"] or None, answers),
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
