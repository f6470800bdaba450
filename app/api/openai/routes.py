"""The OpenAI API: every client of it can ask questions, and gets the decision receipt in an additional field."""

from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.answer import question_of, streamed, whole
from app.api.gateway import TheGateway
from app.api.http.direct import DirectRoute
from app.api.http.errors import DENIALS, OpenAIErrorOut, documented
from app.api.http.guard import AnswerCaller
from app.api.http.middleware import CLIENT_CLOSED
from app.api.openai.reply import (
    POLICIES,
    ChatCompletion,
    Chunks,
    ModelOut,
    ModelsOut,
    completion,
    headers,
)
from app.api.openai.request import ChatRequest, conversation
from app.api.request import AnswerOptions
from app.core.policy import Policy
from app.correlation import set_question
from app.errors import ContradictoryRequest, UnknownModel

_DENIED = documented(*DENIALS, 500, model=OpenAIErrorOut)
_NO_MODEL = documented(model=OpenAIErrorOut, own={404: "No such model."})
ERRORS = _DENIED | documented(
    *(408, 413, 503),
    model=OpenAIErrorOut,
    own={
        400: "The request is not valid or asks for something that is not supported; `param` names the field.",
        404: "No such model or collection, or no passage was found and one is required.",
    },
)
_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The completion, with `stream` in chunks. `fetchwise` is the receipt as from `/answer`.",
        "content": {
            "text/event-stream": {
                "itemSchema": {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]},
                "example": 'data: {"id":"chatcmpl-...","object":"chat.completion.chunk","choices":[{"index":0,'
                '"delta":{"content":"Kingston"},"finish_reason":null}]}\n\n'
                'data: {"id":"chatcmpl-...","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},'
                '"finish_reason":"stop"}],"fetchwise":{"id":"..."}}\n\ndata: [DONE]\n\n',
            }
        },
    }
}

chat_router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=DirectRoute)
models_router = APIRouter(prefix="/v1", tags=["OpenAI"])


@chat_router.post(
    "/chat/completions",
    response_model=ChatCompletion,
    responses=ERRORS | _STREAMED,
    summary="Answer the last message of a chat, or abstain",
)
async def chat(body: ChatRequest, gateway: TheGateway, caller: AnswerCaller, request: Request) -> Response:
    """Answer a single message exactly as `/answer` does. A conversation reads the largest k: no calibrator fits it."""
    chosen = body.fetchwise or AnswerOptions()
    policy = _policy(body.model, chosen)
    text, earlier = conversation(
        body.messages, question_chars=gateway.max_question_chars, earlier_chars=gateway.max_earlier_chars
    )
    set_question(text, *(turn.text for turn in earlier))
    question = question_of(text, chosen, gateway, caller, max_tokens=body.longest, policy=policy, earlier=earlier)
    if body.stream:
        chunks = Chunks(question.id, body.model, with_usage=body.usage_wanted)
        return await streamed(question, gateway, caller, request, chunks)
    record = await whole(question, gateway, caller, request)
    if record is None:
        return Response(status_code=CLIENT_CLOSED)
    return Response(completion(record, body.model), media_type="application/json", headers=headers(record))


@models_router.get("/models", responses=_DENIED, summary="List the policies, as models")
async def models(_: AnswerCaller) -> ModelsOut:
    """List `fetchwise`, which uses the default policy of the server, and one model for each policy."""
    return ModelsOut(data=[ModelOut(id=name) for name in POLICIES])


@models_router.get("/models/{model}", responses=_DENIED | _NO_MODEL, summary="Show one model")
async def model(model: str, _: AnswerCaller) -> ModelOut:
    """Return the model, or 404."""
    _known(model)
    return ModelOut(id=model)


def _known(name: str) -> Policy | None:
    if name not in POLICIES:
        raise UnknownModel(f"there is no model {name[:64]!r}: choose one of {', '.join(POLICIES)}")
    return POLICIES[name]


def _policy(name: str, chosen: AnswerOptions) -> Policy | None:
    """The policy of the model; None for the default."""
    policy = _known(name)
    if policy is not None and chosen.policy not in {None, policy}:
        raise ContradictoryRequest(f"the model {name!r} contradicts the policy in `fetchwise`: remove one of them")
    return policy
