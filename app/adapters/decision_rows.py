"""A finished decision as a row of the log. Total: whatever a model or a caller wrote, the row can be stored."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

import orjson

from app.decision.record import DecisionRecord, Shadow, Usage

Texts = Literal["full", "hash"]

_LARGEST = 2**63 - 1


def decision_row(at: float, record: DecisionRecord, texts: Texts) -> dict[str, Any]:
    """Every column of `decisions` but `seq`, as the driver takes it; with `hash` the texts leave only their SHA-256."""
    kept = texts == "full"
    thresholds, timings, failure = record.thresholds, record.timings, record.failure
    question = storable(record.question)
    answer = None if record.answer is None else storable(record.answer)
    return {
        "id": record.id,
        "created_at": at,
        "key": record.key,
        "question": question if kept else None,
        "question_sha256": _sha256(question),
        "answer": answer if kept else None,
        "answer_sha256": None if answer is None else _sha256(answer),
        "collection": storable(record.collection),
        "policy": record.policy.value,
        "retrieval": record.retrieval.value,
        "abstain": record.abstain,
        "filtered": record.filtered,
        "action": record.action.value,
        "k": record.k,
        "reason": record.reason.value,
        "confidence": record.confidence,
        "p_closed_book": record.p_closed_book,
        "signals": as_json(record.signals),
        "read_signals": as_json(record.read_signals),
        "tau0": thresholds.tau0 if thresholds else None,
        "tau1": thresholds.tau1 if thresholds else None,
        "tau_abstain": record.tau_abstain,
        "calibrator": record.calibrator,
        "certified": record.certified,
        "schedule": record.schedule,
        "propensities": None if record.propensities is None else as_json(record.propensities),
        "explored": record.explored,
        "solicited": record.solicited,
        "shadowed": record.shadowed,
        "passages": as_json([storable(citation.id) for citation in record.citations]),
        "retrieval_calls": record.retrieval_calls,
        "failed_part": failure[0] if failure else None,
        "failure_kind": failure[1] if failure else None,
        **_tokens("probe", record.probe_usage),
        **_tokens("read", record.read_usage),
        **_tokens("wasted", record.wasted_usage),
        "probe_ms": timings.probe,
        "embed_ms": timings.embed,
        "search_ms": timings.search,
        "read_ms": timings.read,
        "total_ms": timings.total,
        "tags": as_json(storable_tags(record.tags)),
    }


def shadow_row(at: float, shadow: Shadow, texts: Texts) -> dict[str, Any]:
    """Every column of `shadows` but `seq`; with `hash` the answers are left out, and nothing can be judged by them."""
    return {
        "decision_id": shadow.id,
        "at": at,
        "identity": asdict(shadow.identity),
        "outcomes": {
            str(k): asdict(outcome) | {"answer": storable(outcome.answer) if texts == "full" else None}
            for k, outcome in shadow.outcomes.items()
        },
    }


def as_json(value: object) -> str:
    """As the database keeps what is no plain value."""
    return orjson.dumps(value, default=dict).decode()


def storable(text: str) -> str:
    """The text without what a database refuses: lone surrogates, and NUL, which PostgreSQL does not take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors="replace").decode()
    return text.replace("\0", "\ufffd")


def storable_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The same for labels."""
    return {storable(name): storable(value) for name, value in tags.items()}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _tokens(stage: str, usage: Usage | None) -> dict[str, int | None]:
    """Counts come from a server's reply: one that no integer column holds is cut to the largest that it does."""
    return {
        f"{stage}_prompt_tokens": min(usage.prompt_tokens, _LARGEST) if usage else None,
        f"{stage}_completion_tokens": min(usage.completion_tokens, _LARGEST) if usage else None,
    }
