"""A passage, and how a search is narrowed: the same types in the core, the adapters and the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = str | int | bool
# A payload equality filter: every named field has exactly this value.
Filter = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a collection; `score` is the similarity that ranked it in a search, higher is nearer."""

    id: str
    title: str
    text: str
    score: float = 0.0
    payload: Mapping[str, Scalar] = field(default_factory=dict)
