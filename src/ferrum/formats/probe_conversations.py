"""Conversations that the analysis renders. Their words occur in no template, so that each is found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

QUESTION: Final = "Quorvim"
CONTENT: Final = "Zalthep"
REASONING: Final = "Wrublid"
NAMES: Final = ("find_wexol", "set_yumbar", "get_prindle")
KEYS: Final = ("kivara", "lomptu", "mufeno")
TEXTS: Final = ("Hastrov", "Dwelpin", "Grontaz")
NUMBER: Final = 90241

Named = tuple[str, Mapping[str, Any]]


def tools() -> list[dict[str, Any]]:
    """Return tools of all names; each takes texts under `KEYS` and values of other types under their types' names."""
    kinds = dict.fromkeys(KEYS, "string") | {
        "whole": "integer",
        "real": "number",
        "flag": "boolean",
        "object": "object",
        "array": "array",
    }
    properties = {key: {"type": kind, "description": f"the {key}"} for key, kind in kinds.items()}
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Runs {number}.",
                "parameters": {"type": "object", "properties": properties, "required": [KEYS[0]]},
            },
        }
        for number, name in enumerate(NAMES)
    ]


def user() -> dict[str, Any]:
    """Return the question."""
    return {"role": "user", "content": QUESTION}


def assistant(
    calls: Sequence[Named] = (),
    content: str | None = None,
    reasoning: str | None = None,
    ids: Sequence[str] = (),
) -> dict[str, Any]:
    """Return an answer in OpenAI's form, with arguments as objects; `ids` replaces those of `call_id`."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": ids[place] if ids else call_id(place),
                "type": "function",
                "function": {"name": name, "arguments": dict(arguments)},
            }
            for place, (name, arguments) in enumerate(calls)
        ]
    return message


def call_id(place: int) -> str:
    """Return the id of a call, in the form that Mistral's templates require: nine letters and digits."""
    return f"callJvq{place:02}"


def next_user() -> dict[str, Any]:
    """Return a second question."""
    return {"role": "user", "content": "Plimsor"}
