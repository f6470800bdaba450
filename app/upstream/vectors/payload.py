"""Converts passages to Qdrant points and back, alike for the embedded engine and a server.

A point's payload is `{id, title, text, fields, terms}`: `fields` is the passage's payload unchanged, and `terms` holds
one string per field, such as `["lang","en"]`, for filters to match.
"""

import json
import math
import re
import uuid
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from app.core.available import Passage
from app.core.question import Filter
from app.errors import DataError, UnknownCollection

TERMS = "terms"
# The fields of a passage; `terms` is only for filters.
PASSAGE_FIELDS = ("id", "title", "text", "fields")

_COLLECTION = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAMESPACE = uuid.UUID("6c1f4f7e-3b0a-5d53-9d0e-0f8a5a1c7f42")
_INT64 = range(-(2**63), 2**63)


def check_collection(name: str) -> str:
    """Return the name if it is valid; UnknownCollection if no collection could have it."""
    if not _COLLECTION.fullmatch(name):
        raise UnknownCollection(f"no collection {name!r}: a name is 1 to 64 of A-Z, a-z, 0-9, _ and -")
    return name


def unknown_collection(name: str) -> UnknownCollection:
    """The error for a collection that does not exist."""
    return UnknownCollection(f"no collection {name!r}: ingest into it first, or name one that exists")


def other_dimension(name: str, have: int, want: int) -> DataError:
    """The error for a collection with vectors of another length."""
    return DataError(
        f"collection {name!r} holds vectors of length {have}, not {want}: "
        "ingest into another collection, or use the embedder that it was created with"
    )


def point_id(passage_id: str) -> str:
    """Derive a stable point id: Qdrant accepts UUIDs and integers, passage ids are any string."""
    _check_unicode(passage_id, passage_id)
    return str(uuid.uuid5(_NAMESPACE, passage_id))


def write_payload(passage: Passage) -> dict[str, Any]:
    """Turn a passage into a point's payload; DataError if it would not survive the round trip."""
    _check_unicode(passage.id, passage.id, passage.title, passage.text)
    for key, value in passage.payload.items():
        _check_unicode(passage.id, key)
        if isinstance(value, str):
            _check_unicode(passage.id, value)
        elif value not in _INT64:
            raise DataError(f"passage {passage.id!r}: field {key!r} does not fit in 64 bits: {value}")
    return {
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
        "fields": dict(passage.payload),
        TERMS: terms(passage.payload),
    }


class BadPoint(ValueError):
    """A point that cannot be used. The message quotes no text of a passage."""


def read_payload(payload: Mapping[str, Any] | None, score: float) -> Passage:
    """Turn a point's payload back into a passage; BadPoint if it is not one that `write_payload` made."""
    try:
        id_, title, text, fields = payload["id"], payload["title"], payload["text"], payload["fields"]  # type: ignore[index]
    except (KeyError, TypeError):
        pass  # reported below, together with values of another type
    else:
        # A match statement would take five times as long, for every passage found.
        if isinstance(id_, str) and isinstance(title, str) and isinstance(text, str) and isinstance(fields, dict):
            return Passage(id_, title, text, score, fields)
    raise BadPoint("a point without id, title, text and fields")


def read_found(
    points: Iterable[tuple[Mapping[str, Any] | None, float]], *, limit: int, where: Filter | None
) -> list[Passage]:
    """The passages of a search: payloads with their scores, best first. BadPoint if one of them is not usable.

    The store is not trusted: more than `limit` are cut off, and each must match the filter, which keeps tenants apart.
    """
    conditions = set(terms(where or {}))
    found = []
    for payload, score in islice(points, limit):
        if not math.isfinite(score):
            raise BadPoint(f"a score that is no number: {score}")
        passage = read_payload(payload, score)
        if conditions and not conditions.issubset(terms(passage.payload)):
            raise BadPoint("a passage that does not match the filter of the search")
        found.append(passage)
    return found


def terms(where: Filter) -> list[str]:
    """Write each field and its value as one string.

    Matching strings instead of the fields themselves keeps true, 1 and "1" apart in every engine (the embedded
    one takes true for 1), allows any field name, and lets one index on a server serve every filter.
    """
    return [json.dumps([key, value], separators=(",", ":")) for key, value in where.items()]


def _check_unicode(passage_id: str, *texts: str) -> None:
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"passage {passage_id!r} is not valid Unicode: {error}") from error
