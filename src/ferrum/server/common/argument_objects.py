"""The arguments of a model's call as an object, for APIs that send objects."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from ferrum.core.values import readable_json


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of a call; of text that ends early, those that are whole."""
    try:
        arguments = from_json(readable_json(text), allow_partial=True)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}
