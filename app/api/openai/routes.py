"""The OpenAI API: every client of it can ask questions, and gets the decision receipt in an additional field."""

from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.answer import check_length, question_of, streamed, whole
from app.api.gateway import Gateway, TheGateway
from app.api.http.direct import DirectRoute
from app.api.http.errors import DENIALS, OpenAIErrorOut, documented
from app.api.http.guard import AnswerCaller, Caller
from app.api.http.middleware import CLIENT_CLOSED
from app.api.openai.reply import (
    MODEL,
    MODES,
    POLICIES,
    ChatCompletion,
    Chunks,
    ModelOut,
    ModelsOut,
    completion,
    headers,
)
from app.api.openai.request import (
    ChatOptions,
    ChatRequest,
    last_asked,
    mode_of,
    not_honoured,
    refuse,
)
from app.api.request import AnswerOptions
from app.core.policy import Policy
from app.core.question import Question, Writing
from app.core.standalone import text_of
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
    """Answer a short question exactly as `/answer` does. Pass everything else on to the reader, with passages added."""
    chosen = body.fetchwise or ChatOptions()
    question = _question(body, chosen, gateway, caller)
    if body.stream:
        chunks = Chunks(question, body.model, with_usage=body.usage_wanted, abstention=chosen.abstention)
        return await streamed(question, gateway, caller, request, chunks)
    record = await whole(question, gateway, caller, request)
    if record is None:
        return Response(status_code=CLIENT_CLOSED)
    content = completion(record, body.model, chosen.abstention)
    return Response(content, media_type="application/json", headers=headers(record))


def _question(body: ChatRequest, chosen: ChatOptions, gateway: Gateway, caller: Caller) -> Question:
    """The question of a request, in the mode of its model or of its shape."""
    forced = body.model.removeprefix(f"{MODEL}-")
    policy = _policy(body.model, chosen)
    asked = last_asked(body.messages)
    set_question(asked, *map(text_of, body.messages))
    if (forced if forced in MODES else mode_of(body)) == "answer":
        if not asked:
            refuse(("messages",), "contain no question")
        ignored = not_honoured(body, longest=gateway.default_max_tokens)
        if ignored and (gateway.strict if chosen.strict is None else chosen.strict):
            refuse(ignored)
        check_length(asked, gateway)
        return question_of(asked, chosen, gateway, caller, max_tokens=None, policy=policy, ignored=ignored)
    writing = Writing("chat", body.passed_on, chosen.missing or gateway.missing)
    return question_of(asked, chosen, gateway, caller, max_tokens=None, policy=policy, writing=writing)


@models_router.get("/models", responses=_DENIED, summary="List the policies, as models")
async def models(_: AnswerCaller) -> ModelsOut:
    """List `fetchwise`, which chooses the mode, one model for each mode, and one for each policy."""
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
