"""`POST /mcp`: the Model Context Protocol, so that agents can ask questions and search.

Every request stands alone. There are no sessions, so any worker and any replica behind a load balancer can answer it,
and every request needs its key. Replies are JSON, not streams.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Request, Response
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from starlette.types import Receive, Scope, Send

from app.answer.run import Run
from app.api.answer import asked, question_of, whole, with_permit
from app.api.gateway import Gateway
from app.api.http.direct import DirectRoute
from app.api.http.errors import MCP_PATH, explain
from app.api.http.guard import AnswerCaller, Caller
from app.api.openai.reply import withheld
from app.api.receipt import cited, receipt
from app.api.request import AnswerOptions, AnswerRequest, readable
from app.core.available import Passage
from app.correlation import set_question
from app.errors import BadRequest, FetchwiseError, NoPassages
from app.ports import SILENT

_CALLER = "fetchwise.caller"
_LEFT = CallToolResult(content=[TextContent(text="the client left")], is_error=True)

router = APIRouter(route_class=DirectRoute)


class SearchRequest(AnswerOptions):
    """What to search for."""

    query: Annotated[str, AfterValidator(partial(readable, what="it"))] = Field(description="What to search for.")
    limit: int = Field(default=5, ge=1, le=20, description="Most passages to return.")


# Not in the OpenAPI document: the protocol describes itself.
@router.post(MCP_PATH, include_in_schema=False)
async def mcp(request: Request, caller: AnswerCaller) -> Response:
    """Streamable HTTP without sessions. An error of a tool is a result of the tool, with `isError`."""
    request.scope[_CALLER] = caller
    return _Exchange()


class _Exchange(Response):
    """Lets the protocol's own server answer. It is made for each request, so that nothing outlives the request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        sessions = StreamableHTTPSessionManager(_SERVER, json_response=True, stateless=True)
        async with sessions.run():
            await sessions.handle_request(scope, receive, send)


async def _ask(arguments: Mapping[str, Any], gateway: Gateway, caller: Caller, request: Request) -> CallToolResult:
    question = asked(AnswerRequest.model_validate(arguments), gateway, caller)
    record = await whole(question, gateway, caller, request)
    if record is None:
        return _LEFT
    sources = "".join(f"\n[{one}] {passage.title or passage.id}" for one, passage in enumerate(record.citations, 1))
    shown = orjson.loads(orjson.dumps(receipt(record)))
    said = withheld(record, "content").get("content") or f"{shown['answer']}{sources}"
    return _result(said, shown)


async def _search(arguments: Mapping[str, Any], gateway: Gateway, caller: Caller, request: Request) -> CallToolResult:
    body = SearchRequest.model_validate(arguments)
    if len(body.query) > gateway.max_question_chars:
        raise BadRequest(f"query: it is longer than {gateway.max_question_chars} characters: shorten it")
    set_question(body.query)
    question = question_of(body.query, body, gateway, caller, max_tokens=None)
    run = Run(question, gateway.upstreams, SILENT)
    assert question.deadline is not None
    try:
        found = await with_permit(lambda: run.search(body.limit), question.deadline, gateway, caller, request)
    except NoPassages:
        found = ()
    if found is None:
        return _LEFT
    return _result("\n\n".join(map(_shown, found)) or "No passages were found.", {"passages": cited(found)})


def _shown(passage: Passage) -> str:
    return f"{passage.title or passage.id}\n{passage.text}"


def _result(text: str, data: dict[str, Any]) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], structured_content=data)


def _schema(model: type[BaseModel], *without: str) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {
        **schema,
        "properties": {name: field for name, field in schema["properties"].items() if name not in without},
    }


_READING = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_TOOLS = {
    "ask": (
        _ask,
        Tool(
            name="ask",
            description="Answer a question from the documents, or say that the answer is not known. The answer comes "
            "with its sources, and a receipt: how sure it is, what was read and why.",
            input_schema=_schema(AnswerRequest, "stream"),
            annotations=_READING,
        ),
    ),
    "search": (
        _search,
        Tool(
            name="search",
            description="Search the documents. Returns the most similar passages with their sources, best first.",
            # Of the options those that concern a search.
            input_schema=_schema(SearchRequest, "policy", "retrieval", "abstain", "tags"),
            annotations=_READING,
        ),
    ),
}


async def _list_tools(_context: object, _params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[tool for _, tool in _TOOLS.values()])


async def _call_tool(context: ServerRequestContext[Any, Request], params: CallToolRequestParams) -> CallToolResult:
    request = context.request
    assert request is not None
    try:
        if params.name not in _TOOLS:
            raise BadRequest(f"there is no tool {params.name[:64]!r}: choose one of {', '.join(_TOOLS)}")
        tool, _ = _TOOLS[params.name]
        return await tool(params.arguments or {}, request.app.state.gateway, request.scope[_CALLER], request)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        where, why = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        problem: FetchwiseError = BadRequest(f"{where}: {why}")
    except FetchwiseError as raised:
        problem = raised
    # As every error: counted, logged, and in the same words.
    error = orjson.loads(explain(problem, request.scope).body)["error"]
    return CallToolResult(
        content=[TextContent(text=error["message"])], structured_content={"error": error}, is_error=True
    )


_SERVER: Server[Any] = Server("fetchwise", on_list_tools=_list_tools, on_call_tool=_call_tool)
