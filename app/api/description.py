"""The OpenAPI document as it is true: without the errors that FastAPI says by itself and that nobody ever gets."""

from typing import Any

from fastapi import FastAPI

from app.api.openai_errors import PREFIX

_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")


def describe(app: FastAPI) -> None:
    """Let the application describe itself so."""
    generate = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _true(generate())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _true(document: dict[str, Any]) -> dict[str, Any]:
    for path, operations in document["paths"].items():
        if path.startswith(PREFIX):
            # There a request that does not validate is a 400, and documented as such.
            for operation in operations.values():
                operation["responses"].pop("422", None)
    for name in _FASTAPIS_OWN:
        document["components"]["schemas"].pop(name, None)
    return document
