"""The decision receipt: the reply of `/answer`."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.api.explain import scope_out, step_out
from app.api.request import Style
from app.core.available import Passage, Usage
from app.core.effective_policy import Ladder, OneShot
from app.core.policy import Policy, Reason
from app.core.question import Question
from app.core.record import DecisionRecord
from app.core.sentences import SUPPORTED, UNSURE, Mark


class CitationOut(BaseModel):
    """A passage that was read; `index` is its number in the prompt."""

    index: int
    id: str
    title: str
    text: str
    score: float


class SentenceOut(BaseModel):
    """One sentence of a long answer, beside the passages that were read."""

    text: str
    support: float | None = Field(
        None,
        description="Share of its words that `passage` holds, without those of the question. Null if no passage was "
        "read, and if the sentence only repeats the question.",
    )
    passage: int | None = Field(None, description="The passage that supports it most, by its `index` in `citations`.")
    logprob: float | None = Field(
        None, description="Mean log-probability of its tokens. Null if the reader did not report them."
    )
    mark: Mark = Field(
        description=f"`supported`: `support` is at least {SUPPORTED}. `uncertain`: it is not, and the geometric mean "
        f"of the token probabilities is below {UNSURE}. `unsupported`: all others. Not calibrated."
    )


class StandaloneOut(BaseModel):
    """The question that was searched for, of a conversation."""

    question: str
    how: str = Field(description="How it was made of the last message: `as_asked`, `rewritten`, ….")


class ShortAnswerOut(BaseModel):
    """The answer that was decided on, before a long one was written."""

    text: str
    confidence: float | None = Field(None, description="P(the short answer is right), as in a short receipt.")


class CalibratorOut(BaseModel):
    """Which calibrator was used, and whether exactly its certified policy decided."""

    version: str | None
    certified: bool
    rests_on: str | None = Field(
        None, description="What was certified, and on how many groups and labels, of which questions, by which refit."
    )


# FastAPI leaves nulls out of examples. A default keeps them valid; in the schema of a reply the field is required.
class ThresholdsOut(BaseModel):
    """What probabilities are compared with; null where it does not apply."""

    t: float | None = Field(
        None, description="`ladder`: the price of accuracy. A purchase costs t times its relative cost."
    )
    tau0: float | None = Field(None, description="`graded`, `binary`: from here on the closed-book answer is given.")
    tau1: float | None = Field(
        None, description="From tau1 to tau0 the smallest k above 0 is read, below it the largest."
    )
    tau_abstain: float | None = Field(None, description="An answer with a lower confidence is withheld.")


class OptionOut(BaseModel):
    """One action that was weighed."""

    action: str = Field(description="`search`, `read 1` or `stop 0`.")
    value: float = Field(description="Expected probability of a right answer in the end.")
    price: float = Field(description="What it costs, on the same scale. The largest value minus price is chosen.")


class StepOut(BaseModel):
    """One step of the decision."""

    state: str = Field(description="What was available: `search+k0` is the passages and the closed-book answer.")
    options: list[OptionOut] = Field(description="What was weighed; empty where there was no choice.")
    action: str = Field(description="What was done: `search`, `read 1`, `stop 1`; `stop` ends without an answer.")
    why: Reason | None = Field(None, description="Why, as far as it was known at this step.")
    sentence: str = Field(description="The step in words, with the evidence that moved it most.")


class ScopeOut(BaseModel):
    """Whether the question is like those that the calibrator was fitted on."""

    in_scope: bool = Field(description="True also where no scope test applies: then `covers` is null.")
    covers: str | None = Field(None, description="The questions that the calibrator and its certificate cover.")
    alarm: str | None = Field(None, description="Why the question is not in scope.")


class DecisionOut(BaseModel):
    """How the number of passages was chosen."""

    p_closed_book: float | None = Field(description="Calibrated P(closed-book answer is right); null if unknown.")
    steps: list[StepOut] = Field(description="Every step, in order.")
    scope: ScopeOut
    evidence: dict[str, float] = Field(description="All evidence by name: `search.cosine`, `k0.margin`, `k0.support`.")
    thresholds: ThresholdsOut
    policy: Policy
    reason: Reason = Field(
        description="Why this number of passages was read, or why the answer is withheld. `bypassed`: gating does not "
        "pay at the moment."
    )
    calibrator: CalibratorOut
    short_answer: ShortAnswerOut | None = Field(
        None,
        description="With `style: full`: the short answer, which the decision, its confidence and its certificate are "
        "about. Null otherwise.",
    )


class UsageOut(BaseModel):
    """Tokens, passages and searches of the answer; a stage that did not run is null."""

    rewrite: Usage | None = Field(description="The tokens of the rewrite of a conversation's last message.")
    probe: Usage | None
    read: Usage | None = Field(description="The tokens of all answers from passages.")
    write: Usage | None = Field(description="The tokens of the text that was written once k was chosen.")
    searches: int = Field(description="Searches made.")
    passages: int = Field(description="Passages read, over all prompts.")


class TimingsOut(BaseModel):
    """Milliseconds of each stage; a stage that did not run is null."""

    rewrite: float | None
    probe: float | None
    embed: float | None
    search: float | None
    read: float | None
    write: float | None
    total: float = Field(
        description="From the arrival of the question, including the queue and the time between stages."
    )


class Receipt(BaseModel):
    """The decision receipt: the answer, and how it was decided."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "5b0c6f0e6d1f4c2a9d3e7a10",
                    "mode": "answer",
                    "style": "short",
                    "answer": "Kingston.",
                    "sentences": [],
                    "action": "k1",
                    "k": 1,
                    "abstained": False,
                    "truncated": False,
                    "confidence": 0.87,
                    "citations": [
                        {
                            "index": 1,
                            "id": "9f2a6c0d11e4b7a3",
                            "title": "Jamaica: geography",
                            "text": "The capital of Jamaica is Kingston. …",
                            "score": 0.71,
                        }
                    ],
                    "ignored": [],
                    "standalone": None,
                    "decision": {
                        "p_closed_book": 0.44,
                        "steps": [
                            {
                                "state": "search+k0",
                                "options": [
                                    {"action": "stop 0", "value": 0.44, "price": 0.0},
                                    {"action": "read 1", "value": 0.83, "price": 0.03},
                                ],
                                "action": "read 1",
                                "why": None,
                                "sentence": "Read one passage: expected 0.83 at a price of 0.03, against 0.44 now; "
                                "raised most by the similarity of the best passage (0.71), lowered most by no passage "
                                "that supports the closed-book answer (0.00).",
                            },
                            {
                                "state": "search+k0+k1",
                                "options": [
                                    {"action": "stop 0", "value": 0.21, "price": 0.0},
                                    {"action": "stop 1", "value": 0.87, "price": 0.0},
                                    {"action": "read 5", "value": 0.89, "price": 0.1},
                                ],
                                "action": "stop 1",
                                "why": "confident",
                                "sentence": "Stop with the answer from one passage: it is right with probability 0.87, "
                                "against 0.89 at a price of 0.10 to read five passages.",
                            },
                        ],
                        "scope": {"in_scope": True, "covers": "questions about countries", "alarm": None},
                        "evidence": {"search.cosine": 0.71, "k0.margin": 2.9, "k0.support_max": 0.0, "k1.margin": 6.1},
                        "thresholds": {"t": 0.1, "tau0": None, "tau1": None, "tau_abstain": 0.35},
                        "policy": "ladder",
                        "reason": "confident",
                        "calibrator": {
                            "version": "2026-11-16-0a1b2c3d",
                            "certified": True,
                            "rests_on": "accuracy at most 0.02 below always-k5: 650 groups with 650 labels; questions "
                            "in scope that the corpus can answer, each group once; refit 1",
                        },
                        "short_answer": None,
                    },
                    "usage": {
                        "rewrite": None,
                        "probe": {"prompt_tokens": 47, "completion_tokens": 9},
                        "read": {"prompt_tokens": 124, "completion_tokens": 8},
                        "write": None,
                        "searches": 1,
                        "passages": 1,
                    },
                    "timings_ms": {
                        "rewrite": None,
                        "probe": 212.0,
                        "embed": 14.2,
                        "search": 0.8,
                        "read": 391.5,
                        "write": None,
                        "total": 620.3,
                    },
                    "feedback_wanted": False,
                }
            ]
        }
    )

    id: str
    mode: Literal["answer", "chat"] = Field(
        description="`answer`: one question. `chat`: the caller's own messages, with passages added."
    )
    style: Style
    answer: str | None = Field(description="Null if it is withheld.")
    sentences: list[SentenceOut] = Field(description="With `style: full`: the answer by its sentences. Else empty.")
    action: str = Field(description="What was done: `k` and the number of passages read, or `abstain`.")
    k: int = Field(description="Number of passages that the answer was requested from, also if it is withheld.")
    abstained: bool = Field(description="Whether the answer is withheld.")
    truncated: bool = Field(description="Whether the limit on its length cut the answer off.")
    confidence: float | None = Field(
        description="P(this answer is right); null without a matching calibrator, out of scope, and for text that was "
        "written after the decision."
    )
    citations: list[CitationOut]
    ignored: list[str] = Field(description="Fields of the request that were not honoured.")
    standalone: StandaloneOut | None = Field(None, description="In a conversation: the question behind it.")
    decision: DecisionOut
    usage: UsageOut
    timings_ms: TimingsOut
    feedback_wanted: bool = Field(
        description="This answer was drawn at random: please send `/feedback`, if possible with reference answers."
    )


def receipt(record: DecisionRecord) -> dict[str, Any]:
    """Render a record as a receipt for orjson, without validating our own output."""
    reply, policy, available, timings = record.reply, record.policy, record.available, record.timings
    question, thresholds = record.question, policy.thresholds
    full = reply.written if record.is_full else None
    return {
        "id": question.id,
        "mode": shown_mode(question),
        "style": "full" if full else "short",
        "answer": full.text if full else reply.text,
        "sentences": [
            {
                "text": one.text,
                "support": one.support,
                "passage": one.passage,
                "logprob": one.logprob,
                "mark": one.mark,
            }
            for one in (full.sentences if full else ())
        ],
        "action": record.action,
        "k": reply.k,
        "abstained": reply.withheld,
        "truncated": full.truncated if full else reply.truncated,
        "confidence": None if full else reply.confidence,
        "citations": cited(record.citations),
        "ignored": question.ignored,
        "standalone": _standalone(question),
        "decision": {
            "p_closed_book": record.p_closed_book,
            "steps": [step_out(step, available.evidence) for step in record.steps],
            "scope": scope_out(policy, available, in_scope=reply.in_scope),
            "evidence": available.evidence,
            "thresholds": {
                "t": policy.kind.t if isinstance(policy.kind, Ladder | OneShot) else None,
                "tau0": thresholds.tau0 if thresholds else None,
                "tau1": thresholds.tau1 if thresholds else None,
                "tau_abstain": policy.tau,
            },
            "policy": question.options.policy.value,
            "reason": reply.reason.value,
            "calibrator": {
                "version": policy.version,
                "certified": reply.certified,
                "rests_on": policy.rests_on if reply.certified else None,
            },
            "short_answer": {"text": reply.text, "confidence": reply.confidence} if full else None,
        },
        "usage": {
            "rewrite": record.rewrite_usage,
            "probe": record.probe_usage,
            "read": record.read_usage,
            "write": record.write_usage,
            "searches": record.searches,
            "passages": record.passages_read,
        },
        "timings_ms": {
            "rewrite": _ms(timings.rewrite),
            "probe": _ms(timings.probe),
            "embed": _ms(timings.embed),
            "search": _ms(timings.search),
            "read": _ms(timings.read),
            "write": _ms(timings.write),
            "total": _ms(timings.total),
        },
        "feedback_wanted": record.solicited or policy.sampled.shadow,
    }


def shown_mode(question: Question) -> Literal["answer", "chat"]:
    """Whether a question is answered, or a chat is passed on with passages."""
    return "chat" if question.mode == "chat" else "answer"


def _standalone(question: Question) -> dict[str, str] | None:
    return None if question.standalone is None else {"question": question.text, "how": question.standalone.how}


def cited(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    """Passages with their numbers in the prompt."""
    return [
        {"index": index, "id": one.id, "title": one.title, "text": one.text, "score": one.score}
        for index, one in enumerate(passages, start=1)
    ]


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
