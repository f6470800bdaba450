"""What a failure of Qdrant means to us, whether its own client met it over REST or gRPC, or we did."""

import httpx
import orjson
from grpc import StatusCode  # type: ignore[import-untyped]
from grpc.aio import AioRpcError  # type: ignore[import-untyped]
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from app.adapters.qdrant_payload import unknown_collection
from app.errors import FetchwiseError, UpstreamBadReply, UpstreamTimeout, UpstreamUnavailable


def translate(error: Exception, collection: str | None) -> FetchwiseError:  # noqa: PLR0911 - one a meaning
    """Say what a failure of the vendor's client, of its transport or of a reply means to us."""
    match error:
        case ResponseHandlingException(source=Exception() as source):
            return translate(source, collection)
        case TimeoutError() | httpx.TimeoutException():
            return UpstreamTimeout("vectors", "the vector store did not answer in time")
        case UnexpectedResponse():
            return _of_status(error, collection)
        case AioRpcError():
            return _of_code(error, collection)
        # The vendor's client raises it for one reason: the server limits our rate.
        case QdrantException():
            return UpstreamUnavailable("vectors", f"the vector store takes no more requests for now: {error}")
        case httpx.TransportError():
            return UpstreamUnavailable("vectors", f"the vector store cannot be reached: {error}")
        # So says the vendor's in-memory client.
        case ValueError() if collection and str(error) == f"Collection {collection} not found":
            return unknown_collection(collection)
        # What remains is the parsing of a reply, which raises whatever the reply made it stumble on.
        case _:
            return UpstreamBadReply("vectors", f"the vector store answered nonsense: {type(error).__name__}: {error}")


def explanation(body: bytes) -> str:
    """What the server says is wrong; empty where this is no error of Qdrant's."""
    try:
        return str(orjson.loads(body)["status"]["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def _of_status(error: UnexpectedResponse, collection: str | None) -> FetchwiseError:
    said = explanation(error.content)
    message = f"the vector store answered {error.status_code} {said or error.reason_phrase}"
    match error.status_code:
        # A 404 without the name of the collection is some other server's.
        case 404 if collection and collection in said:
            return unknown_collection(collection)
        case 408 | 504:
            return UpstreamTimeout("vectors", message)
        case 401 | 403:
            return UpstreamUnavailable("vectors", f"{message}: set FETCHWISE_VECTORS_API_KEY")
        case int(status) if status == 429 or status >= 500:
            return UpstreamUnavailable("vectors", message)
        case _:
            return UpstreamBadReply("vectors", message)


def _of_code(error: AioRpcError, collection: str | None) -> FetchwiseError:
    said = error.details() or ""
    message = f"the vector store answered {error.code().name} {said}"
    match error.code():
        case StatusCode.NOT_FOUND if collection and collection in said:
            return unknown_collection(collection)
        case StatusCode.DEADLINE_EXCEEDED:
            return UpstreamTimeout("vectors", message)
        case StatusCode.UNAUTHENTICATED | StatusCode.PERMISSION_DENIED:
            return UpstreamUnavailable("vectors", f"{message}: set FETCHWISE_VECTORS_API_KEY")
        case (
            StatusCode.UNAVAILABLE
            | StatusCode.RESOURCE_EXHAUSTED
            | StatusCode.INTERNAL
            | StatusCode.ABORTED
            | StatusCode.CANCELLED
        ):
            return UpstreamUnavailable("vectors", message)
        case _:
            return UpstreamBadReply("vectors", message)
