"""Fields of OpenAI's API that cannot be honoured: what they may say all the same, and why not more."""

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True)
class Only:
    """Annotates a field that may be absent, null, or ask for what is done anyway; anything else is refused."""

    because: str
    harmless: tuple[object, ...] = ()

    def check(self, value: object) -> None:
        """Refuse a value that would have to be ignored."""
        if value is not None and not any(_same(value, one) for one in self.harmless):
            raise ValueError(self.because)

    def __get_pydantic_core_schema__(self, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Take anything, then check it."""
        return core_schema.no_info_after_validator_function(self.check, core_schema.any_schema())

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Document what is allowed, and why no more is."""
        allowed: list[dict[str, object]] = [*({"const": one} for one in self.harmless), {"type": "null"}]
        return {"anyOf": allowed, "description": f"Not supported: {self.because}."}


def _same(value: object, other: object) -> bool:
    # True equals 1, and is not meant by it.
    return isinstance(value, bool) == isinstance(other, bool) and value == other
