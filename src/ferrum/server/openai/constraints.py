"""The fields of both generating routes that constrain the output, under the names of several servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.structured_outputs import MAX_SOURCE, StructuredOutputs
from ferrum.server.common.error_replies import invalid

if TYPE_CHECKING:
    from ferrum.server.openai.bodies import GenerationBody

ALIASES: Final[Mapping[str, str]] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "response_schema": "json",
    "regex": "regex",
    "grammar": "grammar",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
"""Fields of other servers (older vLLM, llama.cpp, SGLang, Vertex) by the name in `structured_outputs`."""

CONSTRAINTS: Final = ("response_format", "structured_outputs", *ALIASES)
"""All fields that constrain the output."""

_SCHEMA: Final[dict[str, Any]] = {"type": ["object", "boolean"]}
RESPONSE_FORMAT: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "null"},
        {
            "type": "object",
            "anyOf": [
                {"properties": {"type": {"const": "text"}}, "required": ["type"]},
                {"properties": {"type": {"const": "json_object"}, "schema": _SCHEMA}, "required": ["type"]},
                {
                    "properties": {
                        "type": {"const": "json_schema"},
                        "json_schema": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}, "schema": _SCHEMA},
                            "required": ["schema"],
                        },
                    },
                    "required": ["type", "json_schema"],
                },
                {"properties": {"type": {"const": "structural_tag"}}, "required": ["type"]},
            ],
        },
    ]
}
"""The form of `response_format` in the document."""

_SOURCE: Final[dict[str, Any]] = {"type": "string", "minLength": 1, "maxLength": MAX_SOURCE}
_KINDS: Final[Mapping[str, dict[str, Any]]] = {
    "json": {"type": ["object", "boolean", "string"]},
    "json_object": {"const": True},
    "regex": _SOURCE,
    "choice": {"type": "array", "items": _SOURCE, "minItems": 1},
    "grammar": _SOURCE,
    "structural_tag": {"type": ["object", "string"]},
}
_FLAG: Final[dict[str, Any]] = {"type": ["boolean", "null"]}
_OPTIONS: Final[Mapping[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    "disable_any_whitespace": (_FLAG, ("json", "json_object")),
    "disable_additional_properties": (_FLAG, ("json",)),
    "whitespace_pattern": ({"anyOf": [_SOURCE, {"type": "null"}]}, ("json", "json_object")),
}
"""Forms of the options, and the constraints that they are for."""

_OFF: Final[dict[str, Any]] = {"enum": [None, False]}


def _constraint(kind: str) -> dict[str, Any]:
    """Return the form of `structured_outputs` with that constraint: others are null."""
    absent = {name: {"type": "null"} for name in (*_KINDS, "whitespace_pattern")}
    flags = dict.fromkeys(("json_object", "disable_any_whitespace", "disable_additional_properties"), _OFF)
    options = {name: form for name, (form, kinds) in _OPTIONS.items() if kind in kinds}
    properties = {**absent, **flags, **options, kind: _KINDS[kind]}
    return {"type": "object", "properties": properties, "required": [kind], "additionalProperties": False}


STRUCTURED_OUTPUTS: Final[dict[str, Any]] = {"anyOf": [{"type": "null"}, *map(_constraint, _KINDS)]}
"""The form of `structured_outputs` in the document."""


def structured_outputs(body: GenerationBody) -> tuple[StructuredOutputs | None, str | None]:
    """Return the constraint of a body, None without one, and the client's name of its field if there is one name.

    Raises:
        RequestError: there are several, or one is malformed; `param` is the field as the client named it.
    """
    asked = {name: getattr(body, name) for name in CONSTRAINTS}
    given = {name: value for name, value in asked.items() if value not in (None, "")}
    if isinstance(given.get("response_format"), Mapping) and given["response_format"].get("type") == "text":
        del given["response_format"]
    if not given:
        return None, None
    if len(given) > 1:
        first, second, *_ = given
        raise invalid(second, f"cannot be combined with {first}; send one constraint")
    ((name, value),) = given.items()
    constraint = {ALIASES[name]: value} if name in ALIASES else value
    if name == "response_format":
        constraint, name = _of_format(value)
    try:
        made = StructuredOutputs.from_dict(constraint)
    except RequestError as error:
        inner = error.param if error.param in constraint else None
        raise error.about(name if name != "structured_outputs" or inner is None else f"{name}.{inner}") from None
    return made, None if name == "structured_outputs" else name


def _of_format(form: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the constraint of a `response_format`, and the client's name of its field."""
    match form:
        case {"type": "json_object", "schema": schema} if schema is not None:
            return {"json": schema}, "response_format.schema"
        case {"type": "json_object"}:
            return {"json_object": True}, "response_format"
        case {"type": "json_schema", "json_schema": {"schema": schema}} if schema is not None:
            return {"json": schema}, "response_format.json_schema.schema"
        case {"type": "json_schema"}:
            raise invalid("response_format.json_schema", "must be an object with a `schema`")
        case {"type": "structural_tag"}:
            return {"structural_tag": form}, "response_format"
    kinds = "'text', 'json_object', 'json_schema' or 'structural_tag'"
    raise invalid("response_format.type", f"must be {kinds}, not {form.get('type')!r}")
