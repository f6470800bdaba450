"""The request to `/answer`, and the options that every route takes."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.core.policy import Policy, Retrieval

Scalar = Annotated[str, Field(max_length=256)] | bool | int
# The longest short answer, and the default length of a full one.
SHORT_TOKENS, FULL_TOKENS = 512, 300
Style = Literal["short", "full"]
Tag = Annotated[str, Field(max_length=128)]


class AnswerOptions(BaseModel):
    """Options of a question, on every route."""

    model_config = ConfigDict(extra="forbid")

    policy: Policy | None = Field(default=None, description="How k is chosen. Default: the policy of the server.")
    retrieval: Retrieval = Field(
        default=Retrieval.AUTO, description="`required`: answer from passages. `forbidden`: answer without."
    )
    abstain: bool = Field(
        default=True, strict=True, description="Whether an answer with low confidence may be withheld."
    )
    collection: str | None = Field(default=None, min_length=1, max_length=64, description="Collection to search.")
    filter: dict[Annotated[str, Field(min_length=1, max_length=64)], Scalar] | None = Field(
        default=None, max_length=16, description="Search only passages whose payload has these values."
    )
    tags: dict[Annotated[str, Field(min_length=1, max_length=64)], Tag] = Field(
        default_factory=dict, max_length=16, description="Your own labels; `/audit` reports rates by them."
    )
    timeout_ms: int | None = Field(
        default=None,
        ge=1,
        le=600_000,
        strict=True,
        description="Time limit of the answer; the limit of the server applies if it is shorter. A search that takes "
        "longer counts as failed. If the reader takes longer, the last available answer is given, or 503.",
    )


# Control characters and surrogates, except line breaks and tabs, which people paste.
_BROKEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def readable(text: str, *, what: str = "the question") -> str:
    """The text without surrounding white space; ValueError if it is empty or contains control characters."""
    stripped = text.strip()
    if not stripped:
        raise ValueError(f"{what} is empty")
    if bad := _BROKEN.search(stripped):
        raise ValueError(f"{what} contains the control character U+{ord(bad[0]):04X}: remove it")
    return stripped


def cleaned(text: str) -> str:
    """The text without surrounding white space and control characters."""
    return _BROKEN.sub(" ", text).strip()


class AnswerRequest(AnswerOptions):
    """A question and its options."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"question": "What is the capital of Jamaica?"},
                {"question": "What is the currency of Laos?", "retrieval": "required", "abstain": False},
                {"question": "What is the capital of Nauru?", "timeout_ms": 5000},
            ]
        },
    )

    question: Annotated[str, AfterValidator(readable)] = Field(min_length=1, description="The question.")
    style: Style = Field(
        default="short",
        description="`full`: once the short answer is decided on, write it out with citations. The confidence and the "
        "certificate are those of the short answer.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        strict=True,
        description=f"Maximum length of the answer, in tokens. `short`: at most {SHORT_TOKENS}. `full`: of the text "
        f"that is written, {FULL_TOKENS} by default, and at most what the reader's context leaves.",
    )
    stream: bool = Field(
        default=False,
        strict=True,
        description="Stream events: a `step` for each decision, `passages`, `token`..., then `final` (the receipt) or "
        "`error`.",
    )
