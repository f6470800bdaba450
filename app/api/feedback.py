"""`POST /feedback`: report whether an answer was right, or send reference answers to judge it by."""

from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from app.api.gateway import TheGateway
from app.api.http.direct import DirectRoute
from app.api.http.errors import DENIALS, documented
from app.api.http.guard import FeedbackCaller
from app.api.request import Tag
from app.core.feedback import MAX_REFERENCE_CHARS, Feedback, Source
from app.errors import UnknownDecision

_ERRORS = documented(
    *(*DENIALS, 400, 413, 422, 500),
    own={
        404: "No decision with this id is stored, or decisions are not stored.",
        409: "There is nothing to judge: the answer was withheld, without references, or its text is not stored.",
        503: "The feedback could not be stored; `Retry-After` says when to try again.",
    },
)


class FeedbackRequest(BaseModel):
    """Feedback on one answer: either `correct`, or `references` to judge it by."""

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
        description="Reference answers, together at most 4000 characters. The answer is right if it matches any of "
        "them by the label rule of `refit`.",
    )
    comment: str | None = Field(default=None, max_length=2000, description="Stored in the decision log.")
    tags: dict[Annotated[str, Field(min_length=1, max_length=64)], Tag] = Field(
        default_factory=dict, max_length=16, description="Labels of your own, for audits."
    )

    @field_validator("references")
    @classmethod
    def _comparable(cls, references: list[str] | None) -> list[str] | None:
        # Only what is cheap: references are compared once the decision is found.
        if sum(map(len, references or ())) > MAX_REFERENCE_CHARS:
            raise ValueError(f"together they have more than {MAX_REFERENCE_CHARS} characters")
        empty = next((one for one in references or () if not any(map(str.isalnum, one))), None)
        if empty is not None:
            raise ValueError(f"{empty!r} has no word that an answer could match")
        return references

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.correct is None) == (self.references is None):
            raise ValueError("send either `correct` or `references`, not both")
        return self


class FeedbackReceipt(BaseModel):
    """The feedback as it is stored. Sending the same feedback again gives the same receipt."""

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
    correct: bool | None = Field(description="Null if the answer was withheld.")
    source: Source = Field(description="Who judged: the `caller`, or the label rule with the `references`.")
    replaced: bool = Field(description="Whether it replaces different feedback; the log keeps both.")
    action: str = Field(description="The action of the decision.")


router = APIRouter(tags=["Questions"], route_class=DirectRoute)


@router.post("/feedback", responses=_ERRORS, summary="Say whether an answer was right")
async def feedback(body: FeedbackRequest, gateway: TheGateway, caller: FeedbackCaller) -> FeedbackReceipt:
    """Store feedback on an answer. When the reply arrives, the feedback and its decision are on disk.

    Sending the same feedback again changes nothing; different feedback replaces it, and the log keeps both. `correct`
    for a withheld answer is a 409. `references` for it are stored with `correct` null: they label a shadow run of the
    question. With keys, a key can only judge answers to its own questions; any other id is a 404.
    """
    if gateway.log is None:
        raise UnknownDecision("decisions are not stored (FETCHWISE_DECISION_LOG=off), so feedback is not possible")
    given = Feedback(
        id=body.id,
        correct=body.correct,
        references=tuple(body.references or ()),
        comment=body.comment,
        tags=body.tags,
        key=caller.id,
    )
    with caller.in_progress():
        judged = await gateway.log.give(given)
    return FeedbackReceipt(
        id=judged.id, correct=judged.correct, source=judged.source, replaced=judged.replaced, action=judged.action
    )
