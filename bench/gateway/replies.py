"""Replies of the simulated upstreams: of vLLM, of an embedding server and of Qdrant, as bytes.

A question names its path, `k0`, `k1` or `k5`, and the reader's confidence in its answers makes the ladder of
`prepare.py` take that path.
"""

import math
import random
import uuid
from typing import Any

import orjson

from app.core.signals import TOP

MODEL, EMBEDDER, COLLECTION = "simulated-reader", "simulated-embedder", "bench"
DIMENSION = 384
# `chat` is a conversation, passed on with five passages after a search and a probe.
PATHS = ("k0", "k1", "k5", "chat")
# The mean log-probability is this minus 1. The ladder stops at a closed-book answer from 0.69, and at one from a single
# passage from 0.55.
SURE = {"k0": 0.9, "k1": 0.6, "k5": 0.3, "chat": 0.3}
# Of the request that a chat passes on.
PARAMETERS = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 300}
_ANSWER = ("Saint", " Hel", "ier")
_END = "<|im_end|>"
_TEXT = """
The island lies between two coasts, and its harbour was built of granite by masons who came from the mainland in the
reign of a king whose name the parish records leave out, while ships carried cider, wool and letters to towns along the
channel where merchants kept accounts that survive to this day.
"""
_WORDS = _TEXT.split()


def http(body: bytes, status: str = "200 OK", content_type: str = "application/json") -> bytes:
    """A complete reply."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def question(path: str, number: int) -> str:
    """One of many questions that take this path."""
    return f"What is the chief town of island number {number}, by way of {path}?"


def conversation(number: int) -> list[dict[str, str]]:
    """A system prompt and three turns; the last is a question that stands alone."""
    said = (
        ("system", "You are the guide of a museum. Answer politely, in one or two sentences."),
        ("user", "Which islands does the museum show on its maps?"),
        ("assistant", "The maps on the first floor show every island of the channel, with its harbours."),
        ("user", question("chat", number)),
    )
    return [{"role": role, "content": content} for role, content in said]


def written() -> bytes:
    """A reply of forty words to a chat, without log-probabilities."""
    message = {"role": "assistant", "content": " ".join(_WORDS[:40])}
    usage = {"prompt_tokens": 800, "total_tokens": 850, "completion_tokens": 50}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return _json({"id": "chatcmpl-1", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage})


def chat(sure: float) -> bytes:
    """A short greedy answer with the log-probabilities of the 20 most likely alternatives to each token."""
    rng = random.Random(sure)
    tokens = [_token(text, sure - 1.0, rng) for text in _ANSWER] + [_token(_END, -0.002, rng)]
    message = {"role": "assistant", "content": "".join(_ANSWER), "refusal": None, "tool_calls": [], "reasoning": None}
    choice = {"index": 0, "message": message, "logprobs": {"content": tokens}, "finish_reason": "stop"}
    return _json(
        {
            "id": "chatcmpl-3f8e0c2b6a5d4d0f9a7be1c4d2f60718",
            "object": "chat.completion",
            "created": 1767225600,
            "model": MODEL,
            "choices": [choice | {"stop_reason": None, "token_ids": None}],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": {"prompt_tokens": 48, "total_tokens": 52, "completion_tokens": 4, "prompt_tokens_details": None},
            "prompt_logprobs": None,
            "kv_transfer_params": None,
        }
    )


def models() -> bytes:
    """The list of models."""
    return _json({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 8192}]})


def tokenized() -> bytes:
    """A reply that identifies the chat template."""
    return _json({"count": 4, "max_model_len": 8192, "tokens": [1, 9690, 198, 2]})


def embedding() -> bytes:
    """One vector of unit length."""
    rng = random.Random(384)
    vector = [rng.gauss(0.0, 1.0) for _ in range(DIMENSION)]
    length = math.hypot(*vector)
    entry = {"index": 0, "object": "embedding", "embedding": [x / length for x in vector]}
    return _json({"object": "list", "data": [entry], "model": EMBEDDER, "usage": {"prompt_tokens": 12}})


def found(limit: int) -> bytes:
    """This many passages of about a hundred words, best first."""
    return _qdrant({"points": [_point(rank) for rank in range(limit)]})


def collections() -> bytes:
    """The list of collections."""
    return _qdrant({"collections": [{"name": COLLECTION}]})


def collection() -> bytes:
    """Qdrant's description of a collection."""
    vectors = {"size": DIMENSION, "distance": "Cosine"}
    return _qdrant({"status": "green", "points_count": 1000, "config": {"params": {"vectors": vectors}}})


def count() -> bytes:
    """The number of passages."""
    return _qdrant({"count": 1000})


def not_found() -> bytes:
    """The reply for an unknown path."""
    return http(b'{"detail":"Not Found"}', "404 Not Found")


def _token(text: str, logprob: float, rng: random.Random) -> dict[str, Any]:
    """A token whose alternatives each have a third less probability than the one before."""
    left = 0.98 * (1.0 - math.exp(logprob))
    others = [math.log(left / 3.0 * (2.0 / 3.0) ** rank) for rank in range(TOP - 1)]
    names = [text, *(rng.choice(_WORDS) for _ in others)]
    ranked = sorted(zip(names, [logprob, *others], strict=True), key=lambda pair: -pair[1])
    top = [{"token": name, "logprob": value, "bytes": list(name.encode())} for name, value in ranked]
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": top}


def _point(rank: int) -> dict[str, Any]:
    rng = random.Random(rank)
    text = " ".join(rng.choice(_WORDS) for _ in range(100)).capitalize() + "."
    payload = {"id": f"passage-{rank}", "title": f"Island {rank}", "text": text, "fields": {"lang": "en"}}
    identifier = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    point = {"id": identifier, "version": 7, "score": 0.83 - 0.0271 * rank}
    return point | {"payload": payload | {"terms": ['["lang","en"]']}}


def _qdrant(result: dict[str, Any]) -> bytes:
    return _json({"result": result, "status": "ok", "time": 0.000912})


def _json(value: dict[str, Any]) -> bytes:
    return http(orjson.dumps(value))
