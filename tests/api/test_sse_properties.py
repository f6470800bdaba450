"""For every question and every answer, the events parse, come in order, and match the receipt."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from app.api.http.streaming import AnswerStream, ReceiptEvents
from app.core.available import Passage
from app.core.ladder import Read, Search, Step
from app.core.policy import Reason
from app.core.record import DecisionRecord
from app.errors import FetchwiseError, UpstreamUnavailable
from app.ports import Listener
from tests.fakes.gateway import events_of
from tests.fakes.records import a_record

from .running import Running

# Everything that can be sent as UTF-8: with line ends of all kinds, and what an event stream is made of.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    [
        "\n\nevent: final\ndata: {}\n\n",
        "a\rb",
        "a\r\n\r\nb",
        "\u2028\x85\x0b",
        "data: [DONE]",
        ": comment",
        "\ufeff",
        "\0",
    ]
)
# Of every answer the first word, so that one that was withheld can be looked for.
MARK = "zq9xv"
QUESTION = "What is said?"
ORDER = re.compile(r"s+p?t*s?[fe]")
SAME = ("answer", "action", "k", "confidence", "citations", "usage", "decision")


@dataclass(frozen=True)
class Scene:
    """A request, and for each k the reader's text, confidence and failure."""

    said: str
    sure: dict[int, float]
    fails_at: int | None
    asked: dict[str, Any]

    def set_up(self, running: Running) -> None:
        """Set up the fakes."""
        reader = running.gateway.reader
        for k, sure in self.sure.items():
            reader.says(QUESTION, f"{MARK} {self.said}", k=k, sure=sure)
        reader.fail_on_k = self.fails_at
        reader.fail_with = None if self.fails_at is None else UpstreamUnavailable("reader", "gone")


SCENES = st.builds(
    Scene,
    said=TEXT,
    sure=st.fixed_dictionaries({k: st.sampled_from([0.1, 0.3, 0.6, 0.9]) for k in (0, 1, 5)}),
    fails_at=st.sampled_from([None, None, None, 0, 1, 5]),
    asked=st.fixed_dictionaries(
        {
            "policy": st.sampled_from(["ladder", "graded", "binary", "always", "never"]),
            "retrieval": st.sampled_from(["auto", "required", "forbidden"]),
            "abstain": st.booleans(),
        },
        optional={"filter": st.sampled_from([{"lang": "en"}, {"lang": "nowhere"}]), "max_tokens": st.integers(1, 24)},
    ),
)


@given(scene=SCENES)
def test_a_stream_says_what_the_receipt_says(running: Running, scene: Scene) -> None:
    """Events are in order with exactly one end; the tokens are the answer, and a withheld answer is not sent."""
    scene.set_up(running)
    body = {"question": QUESTION} | scene.asked
    whole = running.send("POST", "/answer", json=body)
    stream = running.send("POST", "/answer", json=body | {"stream": True})
    if stream.status_code != 200:
        assert (stream.status_code, stream.json()) == (whole.status_code, whole.json())
        return
    events = events_of(stream)
    assert ORDER.fullmatch("".join(name[0] for name, _ in events)), events
    tokens = "".join(data["text"] for name, data in events if name == "token")
    end, last = events[-1]
    if end == "error":
        assert last == whole.json()
        return
    receipt = whole.json()
    assert {name: last[name] for name in SAME} == {name: receipt[name] for name in SAME}
    assert tokens.strip() == (receipt["answer"] or "")
    assert bool(receipt["citations"]) <= any(name == "passages" for name, _ in events)
    if receipt["action"] == "abstain":
        assert not any(name == "token" for name, _ in events)
        assert MARK not in stream.text


# What a listener may hear after the first step.
HEARD = st.lists(
    st.builds(lambda text: ("token", text), TEXT) | st.builds(lambda text: ("passages", text), TEXT), max_size=8
)
ENDS = st.none() | st.sampled_from([UpstreamUnavailable, KeyError])


@given(heard=HEARD, end=ENDS)
@example(heard=[("token", "\n\nevent: final\ndata: {}\n\n")], end=None)
def test_whatever_a_listener_hears_is_parsed_back(heard: list[tuple[str, str]], end: type[Exception] | None) -> None:
    """Events are in order with one end, and resources are released once."""
    released: list[None] = []
    stream = asyncio.run(_played(heard, end, lambda: released.append(None)))
    events = events_of(httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream))
    assert [name for name, _ in events[:2]] == ["step", "step"]
    assert [(name, _text(data)) for name, data in events[2:-1]] == _sent(heard)
    assert events[-1][0] == ("final" if end is None else "error")
    assert released == [None]


def _sent(heard: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The last passages before the first token, then the tokens."""
    tokens = [one for one in heard if one[0] == "token"]
    found = heard[: heard.index(tokens[0])] if tokens else []
    return found[-1:] + tokens


def _text(data: dict[str, Any]) -> Any:
    return data["passages"][0]["text"] if "passages" in data else data["text"]


async def _played(heard: list[tuple[str, str]], end: type[Exception] | None, release: Callable[[], None]) -> bytes:
    """The bytes of a stream whose work sends these events and ends like this."""

    async def work(listener: Listener) -> DecisionRecord:
        listener.step(Step("k0", Search(), 5, Reason.UNCERTAIN, 0.5), {})
        listener.step(Step("search+k0", Read(5), 5, Reason.UNCERTAIN, 0.5), {})
        for kind, text in heard:
            await asyncio.sleep(0)
            if kind == "token":
                listener.token(text)
            else:
                listener.found([Passage("p1", text, text)])
        if end is not None:
            raise end("reader", "gone\n\nevent: final\n\n")
        return a_record()

    def explain(error: FetchwiseError) -> JSONResponse:
        return JSONResponse({"error": str(error)})

    stream = AnswerStream(work, render=ReceiptEvents(), explain=explain, release=release)
    await stream.begun()
    said = b"".join([event async for event in stream.events()])
    await stream.close()
    await stream.close()
    return said
