"""Finished decisions for tests: one that read a passage, of which any field can be changed by name."""

from dataclasses import replace
from typing import Any

from app.decision.passage import Passage
from app.decision.policy import Policy, Reason, Retrieval
from app.decision.record import DecisionRecord, Timings, Usage


def a_record(**changes: Any) -> DecisionRecord:
    """A question that the graded gate sent to one passage."""
    record = DecisionRecord(
        id="0123",
        question="Who?",
        collection="demo",
        policy=Policy.GRADED,
        retrieval=Retrieval.AUTO,
        abstain=True,
        filtered=False,
        answer="She",
        k=1,
        reason=Reason.BORDERLINE,
        confidence=0.75,
        p_closed_book=0.625,
        signals={},
        read_signals={},
        thresholds=None,
        tau_abstain=None,
        calibrator=None,
        certified=False,
        timings=Timings(total=620.0, probe=200.0, embed=15.0, search=5.0, read=400.0),
        citations=(Passage("p1", "She", "It was she.", 0.5),),
        probe_usage=Usage(40, 8),
        read_usage=Usage(120, 9),
        retrieval_calls=1,
    )
    return replace(record, **changes)


def a_skip(**changes: Any) -> DecisionRecord:
    """A question that the gate answered closed-book."""
    skipped: dict[str, Any] = {
        "k": 0,
        "reason": Reason.CONFIDENT,
        "timings": Timings(total=205.0, probe=200.0),
        "citations": (),
        "read_usage": None,
        "retrieval_calls": 0,
    }
    return a_record(**(skipped | changes))
