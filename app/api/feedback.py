"""`POST /feedback`: was the answer right? The verdict itself, or reference answers to judge it by."""

from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from app.api.gateway import TheGateway
from app.api.http.direct import DirectRoute
from app.api.http.errors import DENIALS, documented
from app.api.http.guard import FeedbackCaller
from app.api.receipt import Tag
from app.core.feedback import Feedback, Source
from app.core.labels import words
from app.errors import UnknownDecision

_ERRORS = documented(
    *(*DENIALS, 400, 413, 422, 500),
    own={
        404: "No answer with this id is known, or no decisions are kept here.",
        409: "There is nothing to judge: an abstention without references, or a text that is not kept.",
        503: "It could not be stored, and was not: `Retry-After` says when to try.",
    },
)


class FeedbackRequest(BaseModel):
    """A verdict on one answer: `correct`, or `references` to judge it by; one of the two."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"id": "5b0c6f0e6d1f4c2a9d3e7a10", "correct": True},
                {
                    "id": "5b0c6f0e6d1f4c2a9d3e7a10",
                    "references": ["Kingston"],
                    "comment": "checked by hand",
                    "tags": {"by": "night shift"},
                },
            ]
        },
    )

    id: str = Field(min_length=1, max_length=64, description="The receipt's `id`.")
    correct: bool | None = Field(default=None, strict=True, description="Whether the answer is right.")
    references: list[Annotated[str, Field(max_length=1000)]] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Right answers, any of which will do; the rule is the one that refitting labels by.",
    )
    comment: str | None = Field(default=None, max_length=2000, description="For whoever reads the log.")
    tags: dict[Annotated[str, Field(min_length=1, max_length=64)], Tag] = Field(
        default_factory=dict, max_length=16, description="Labels of your own, for audits."
    )

    @field_validator("references")
    @classmethod
    def _comparable(cls, references: list[str] | None) -> list[str] | None:
        empty = next((reference for reference in references or () if not words(reference)), None)
        if empty is not None:
            raise ValueError(f"{empty!r} has no word that an answer could match")
        return references

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.correct is None) == (self.references is None):
            raise ValueError("send either `correct` or `references`")
        return self


class FeedbackReceipt(BaseModel):
    """The verdict as it is kept; the same feedback again gets the same receipt."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "5b0c6f0e6d1f4c2a9d3e7a10",
                    "correct": True,
                    "source": "references",
                    "replaced": False,
                    "action": "k1",
                }
            ]
        }
    )

    id: str
    correct: bool | None = Field(description="Null for an abstention: nothing was given that could be right or wrong.")
    source: Source = Field(description="Who judged: the `caller`, or the label rule by the `references`.")
    replaced: bool = Field(description="Whether an earlier, different verdict stood; it stays in the log's history.")
    action: str = Field(description="What was done for the question.")


router = APIRouter(tags=["Questions"], route_class=DirectRoute)


@router.post("/feedback", responses=_ERRORS, summary="Say whether an answer was right")
async def feedback(body: FeedbackRequest, gateway: TheGateway, caller: FeedbackCaller) -> FeedbackReceipt:
    """Keep a verdict on an answer. It is on disk, with the decision that it is about, when the reply comes.

    Sending the same again changes nothing; sending another replaces the verdict and keeps the old one as history. An
    abstention gave no answer, so there is nothing to be right or wrong: 409. Its references are kept, with `correct`
    null: they say what a shadow run of the question should have answered. With keys, each can judge what was answered
    to itself; any other id is a 404.
    """
    if gateway.log is None:
        raise UnknownDecision("no decisions are kept here (FETCHWISE_DECISION_LOG=off), so none can be judged")
    judged = await gateway.log.give(
        Feedback(
            id=body.id,
            correct=body.correct,
            references=tuple(body.references or ()),
            comment=body.comment,
            tags=body.tags,
            key=caller.id,
        )
    )
    return FeedbackReceipt(
        id=judged.id, correct=judged.correct, source=judged.source, replaced=judged.replaced, action=judged.action
    )
