"""Bare pass-throughs that make the calls of a gated answer and decide nothing: one with aiohttp, one with httpx.

Written in the usual way: one shared client, a pydantic model, no keys, no metrics, no log.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
from fastapi import FastAPI, Request
from pydantic import BaseModel

from bench.gateway.replies import COLLECTION, EMBEDDER, MODEL

# The ladder searches for its largest k at once.
LARGEST = 5
UPSTREAM = os.environ.get("BENCH_UPSTREAM", "")
Post = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class Ask(BaseModel):
    """A question and the number of passages to read."""

    question: str
    k: int


class Answer(BaseModel):
    """The answer and its passages."""

    answer: str
    k: int
    passages: list[dict[str, Any]]


@asynccontextmanager
async def over_aiohttp(app: FastAPI) -> AsyncIterator[None]:
    """One aiohttp session for all requests."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256)) as session:

        async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            async with session.post(UPSTREAM + path, json=body) as response:
                response.raise_for_status()
                return await response.json()

        app.state.post = post
        yield


@asynccontextmanager
async def over_httpx(app: FastAPI) -> AsyncIterator[None]:
    """One httpx client for all requests."""
    async with httpx.AsyncClient() as client:

        async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            response = await client.post(UPSTREAM + path, json=body)
            return response.raise_for_status().json()

        app.state.post = post
        yield


async def answer(asked: Ask, request: Request) -> Answer:
    """Embed and ask without passages; for k > 0, search and ask with one passage; for k > 1, ask with k."""
    post: Post = request.app.state.post
    embedded = await post("/v1/embeddings", {"model": EMBEDDER, "input": [asked.question], "encoding_format": "float"})
    answer = await generate(post, f"Answer the question in a few words.\n\nQuestion: {asked.question}")
    if asked.k == 0:
        return Answer(answer=answer, k=0, passages=[])
    passages = await found(post, embedded)
    lines = numbered(passages)
    for k in sorted({1, asked.k}):
        context = "\n".join(lines[:k])
        answer = await generate(
            post, f"{context}\n\nAnswer in a few words from the passages above.\n\n{asked.question}"
        )
    return Answer(answer=answer, k=asked.k, passages=passages[: asked.k])


async def chat(asked: Request) -> dict[str, Any]:
    """Embed the last message, search, ask it without passages, and pass the request on with five."""
    post: Post = asked.app.state.post
    body = await asked.json()
    question = body["messages"][-1]["content"]
    embedded = await post("/v1/embeddings", {"model": EMBEDDER, "input": [question], "encoding_format": "float"})
    passages = await found(post, embedded)
    await generate(post, f"Answer the question in a few words.\n\nQuestion: {question}")
    context = "\n".join(numbered(passages))
    last = {"role": "user", "content": f"Passages:\n---\n{context}\n---\n\n{question}"}
    reply = await post("/v1/chat/completions", body | {"model": MODEL, "messages": [*body["messages"][:-1], last]})
    return reply | {"passages": passages, "k": LARGEST}


async def found(post: Post, embedded: dict[str, Any]) -> list[dict[str, Any]]:
    """The passages next to a vector."""
    query = {"query": embedded["data"][0]["embedding"], "limit": LARGEST, "with_payload": True}
    reply = await post(f"/collections/{COLLECTION}/points/query", query)
    return [point["payload"] for point in reply["result"]["points"]]


def numbered(passages: list[dict[str, Any]]) -> list[str]:
    """The lines of a prompt."""
    return [f"[{i}] {passage['title']}: {passage['text']}" for i, passage in enumerate(passages, start=1)]


async def generate(post: Post, content: str) -> str:
    """The reader's answer, with the log-probabilities that a gate needs."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 48,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 20,
        "stop": ["\n"],
    }
    reply = await post("/v1/chat/completions", body)
    return reply["choices"][0]["message"]["content"]


with_aiohttp = FastAPI(lifespan=over_aiohttp)
with_httpx = FastAPI(lifespan=over_httpx)
for one in (with_aiohttp, with_httpx):
    one.post("/answer")(answer)
    one.post("/v1/chat/completions")(chat)
