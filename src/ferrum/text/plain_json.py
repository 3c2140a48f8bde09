"""Copies of JSON values in exact JSON types, for chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ferrum.core.errors import RequestError


def json_objects(values: Sequence[Mapping[str, Any]], param: str) -> list[dict[str, Any]]:
    """Return copies of objects in exact JSON types. Raises RequestError about `param` for anything else."""
    if not isinstance(values, list | tuple) or not all(isinstance(value, Mapping) for value in values):
        raise RequestError("must be a list of objects", param=param)
    return [plain_json(value, param) for value in values]


def plain_json(value: Any, param: str) -> Any:
    """Return a copy of a JSON value in exact JSON types.

    Templates see no methods of the caller's classes.

    Raises:
        RequestError: the value is not JSON, or nested too deeply.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    try:
        if isinstance(value, Mapping):
            return {str(name): plain_json(entry, param) for name, entry in value.items()}
        if isinstance(value, list | tuple):
            return [plain_json(entry, param) for entry in value]
    except RecursionError:
        raise RequestError("nested too deeply", param=param) from None
    if isinstance(value, str):
        return str.__str__(value)
    raise RequestError(f"contains a {type(value).__name__}, which is not a JSON value", param=param)
