"""`fetchwise ask`: send one question to a running gateway and print its receipt for people."""

import json
from typing import Annotated, Any

import httpx
import typer

from app.cli.console import app, out
from app.core.policy import Policy, Retrieval
from app.economics.breakeven import passages
from app.errors import FetchwiseError, UpstreamUnavailable
from app.settings import read_settings

_WIDTH = 50
WHY = {
    "confident": "the answer is likely enough to be right",
    "borderline": "{passages} should be enough",
    "uncertain": "the model is unsure: {passages}",
    "retrieval_required": "the request or a rule requires passages",
    "retrieval_forbidden": "the request forbids passages",
    "no_signal": "evidence for a probability is missing: {passages}",
    "not_calibrated": "no calibrator matches the running system, so every question reads {passages}",
    "not_certified": "the calibrator is not certified, so its fallback is used",
    "retrieval_failed": "passages were needed, but the search failed",
    "no_passages": "passages were needed, but none were found",
    "bypassed": "gating does not pay at the moment",
    "low_confidence": "the confidence was too low to give the answer",
    "explored": "chosen at random to collect data",
    "out_of_scope": "the question is unlike those that the calibrator covers",
    "degraded": "reading more passages failed, so this is the last available answer",
}


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    policy: Annotated[Policy | None, typer.Option(help="How the number of passages is chosen.")] = None,
    retrieval: Annotated[Retrieval, typer.Option(help="Require passages, or forbid them.")] = Retrieval.AUTO,
    abstain: Annotated[bool, typer.Option(help="Withhold an answer whose confidence is too low.")] = True,  # noqa: FBT002
    collection: Annotated[str | None, typer.Option(help="Collection to search. Default: that of the gateway.")] = None,
    url: Annotated[
        str | None, typer.Option(help="URL of the gateway. Default: FETCHWISE_HOST and FETCHWISE_PORT.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer while it is written.")] = False,  # noqa: FBT002
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole receipt.")] = False,  # noqa: FBT002
) -> None:
    """Ask a running gateway one question. If it requires a key, set FETCHWISE_API_KEY."""
    settings = read_settings()
    base = (url or f"http://{settings.server.host}:{settings.server.port}").rstrip("/")
    body: dict[str, Any] = {"question": question, "retrieval": retrieval.value, "abstain": abstain}
    body |= {"policy": policy.value} if policy else {}
    body |= {"collection": collection} if collection else {}
    body |= {"stream": True} if stream else {}
    headers = (
        {"authorization": f"Bearer {settings.access.api_key.get_secret_value()}"} if settings.access.api_key else {}
    )
    timeout = settings.limits.request_timeout_s + 5
    try:
        with httpx.stream("POST", f"{base}/answer", json=body, headers=headers, timeout=timeout) as reply:
            receipt = _receipt(reply, base, live=stream and not as_json)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UpstreamUnavailable(
            "gateway", f"no gateway answers on {base} ({error}): run `fetchwise serve`, or set --url"
        ) from error
    if as_json:
        out.print_json(data=receipt, ensure_ascii=True)
    else:
        _show(receipt, answered=stream and receipt["answer"] is not None)


def _receipt(reply: httpx.Response, base: str, *, live: bool) -> dict[str, Any]:
    """The receipt of a reply. `live`: print the pieces of a streamed answer as they arrive."""
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        event = ""
        for line in reply.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                event = value
            elif field == "data" and event == "token" and live:
                out.print(json.loads(value)["text"], style="bold", markup=False, highlight=False, end="")
            elif field == "data" and event in {"final", "error"}:
                return _checked(value, base)
        raise FetchwiseError(f"the stream of {base} ended before the answer was complete: check --url, or ask again")
    return _checked(reply.read(), base, status=reply.status_code)


def _checked(said: str | bytes, base: str, *, status: int | None = None) -> dict[str, Any]:
    """The receipt; FetchwiseError if it is an error, or something else."""
    try:
        found: dict[str, Any] = json.loads(said)
        if "decision" in found:
            return found
        message = found["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise FetchwiseError(f"{base} is not a Fetchwise gateway ({status}): check --url") from None
    raise FetchwiseError(f"{status or 'error'}: {message} ({base}; --url names another gateway)")


def _show(receipt: dict[str, Any], *, answered: bool) -> None:
    decision = receipt["decision"]
    if answered:
        out.print()
    elif receipt["answer"] is None:
        out.print("[bold yellow]I don't know.[/]")
    else:
        out.print(receipt["answer"], style="bold", markup=False, highlight=False, soft_wrap=True)
    sure = f", {receipt['confidence']:.0%} sure" if receipt["confidence"] is not None else ""
    why = WHY[decision["reason"]].format(passages=passages(receipt["k"]))
    out.print(f"{receipt['action']}: {why}{sure}", style="dim", highlight=False)
    for number, step in enumerate(decision["steps"], start=1):
        out.print(f"  {number}. {step['sentence']}", markup=False, highlight=False, soft_wrap=True)
    scope = decision["scope"]
    if scope["covers"] is not None:
        where = "in scope" if scope["in_scope"] else f"not in scope: {scope['alarm']}"
        out.print(f"  {where} (covers {scope['covers']})", style="dim", markup=False, highlight=False, soft_wrap=True)
    if decision["p_closed_book"] is not None and decision["thresholds"]["tau0"] is not None:
        out.print(bar(decision["p_closed_book"], decision["thresholds"]), highlight=False)
    for passage in receipt["citations"]:
        line = f"  [{passage['index']}] {passage['title'] or passage['id']}"
        out.print(line, style="dim", markup=False, highlight=False)
    calibrator = decision["calibrator"]
    certified = "certified" if calibrator["certified"] else "not certified"
    version = f"calibrator {calibrator['version']}, {certified}" if calibrator["version"] else "no calibrator"
    made, read = receipt["usage"]["searches"], receipt["usage"]["passages"]
    spent = f"{made} {'search' if made == 1 else 'searches'} made, {passages(read)} read"
    out.print(f"{receipt['timings_ms']['total']:.0f} ms, {spent}, {version}", style="dim", highlight=False)


def bar(p: float, thresholds: dict[str, float | None]) -> str:
    """A line from 0 to 1: `|` marks the thresholds, `●` the probability that the model knows the answer."""
    cells = ["─"] * (_WIDTH + 1)
    for value in (thresholds["tau1"], thresholds["tau0"]):
        if value is not None and 0.0 < value <= 1.0:
            cells[round(value * _WIDTH)] = "|"
    cells[round(p * _WIDTH)] = "●"
    return f"0 {''.join(cells)} 1   p={p:.2f}"
