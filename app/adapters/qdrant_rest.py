"""Qdrant's search over REST: the one call that every answer with passages waits for.

The vendor's client takes milliseconds of the processor for it, most of them in models of requests and replies.
"""

from collections.abc import Sequence
from typing import Any

from app.adapters.http_client import HttpClient, Refused
from app.adapters.qdrant_errors import explanation
from app.adapters.qdrant_payload import PASSAGE_FIELDS, TERMS, read_payload, terms, unknown_collection
from app.errors import FetchwiseError, UpstreamBadReply
from app.ports import Filter, Passage


class QdrantSearch:
    """Searches the server at `url`, which names its port."""

    def __init__(self, url: str, api_key: str | None, *, timeout_s: float) -> None:
        headers = {"api-key": api_key} if api_key else {}
        self._http = HttpClient("vectors", url, headers=headers, secret=api_key, timeout_s=timeout_s)

    async def search(
        self, collection: str, vector: Sequence[float], *, limit: int, where: Filter | None
    ) -> list[Passage]:
        """Return at most `limit` passages, nearest first."""
        body: dict[str, Any] = {
            "query": {"nearest": list(vector)},
            "limit": limit,
            "with_payload": PASSAGE_FIELDS,
            "with_vector": False,
        }
        if where:
            body["filter"] = {"must": [{"key": TERMS, "match": {"value": term}} for term in terms(where)]}
        try:
            raw = await self._http.request("POST", f"/collections/{collection}/points/query", body)
        except Refused as refused:
            raise self._meaning(refused, collection) from refused
        return _passages(self._http.parsed(raw))

    async def close(self) -> None:
        """Close the connections; idempotent."""
        await self._http.close()

    def _meaning(self, refused: Refused, collection: str) -> FetchwiseError:
        said = explanation(refused.body)
        # A 404 without the name of the collection is some other server's.
        if refused.status == 404 and collection in said:
            return unknown_collection(collection)
        return self._http.meaning(refused, said)


def _passages(reply: Any) -> list[Passage]:  # noqa: ANN401 - whatever the server sent
    try:
        return [read_payload(point["payload"], _score(point["score"])) for point in reply["result"]["points"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UpstreamBadReply(
            "vectors", f"the vector store answered nonsense: {type(error).__name__}: {error}"
        ) from error


def _score(value: object) -> float:
    if type(value) is not float and type(value) is not int:
        raise TypeError(f"a score that is no number: {value!r}")
    return float(value)
