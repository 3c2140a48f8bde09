"""JSON Schema rules of bodies beyond the types of fields, for the OpenAPI document.

The values are checked where they are used; `tests/serve/test_document.py` compares rules and checks, and lists checks
that no schema can express.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import FailFast, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ferrum.core.params import TOKEN_SCHEMA
from ferrum.core.values import MOST_BITS

Schema: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class _JsonInteger:
    """A pydantic type of integers as in JSON Schema: 4.0 is one.

    Args:
        most: exclusive bound of the absolute value; None: no bound, which takes half the time.
    """

    most: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        least = None if self.most is None else -self.most
        integers = core_schema.int_schema(strict=True, gt=least, lt=self.most)
        written = core_schema.float_schema(strict=True, gt=least, lt=self.most)
        kinds = [integers, core_schema.no_info_after_validator_function(_to_int, written)]
        return core_schema.union_schema(list(kinds), mode="left_to_right", custom_error_type="int_type")

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return {"type": "integer"}


def _to_int(number: float) -> int:
    if not number.is_integer():
        raise ValueError
    return int(number)


JsonInteger: TypeAlias = Annotated[int, _JsonInteger(1 << (MOST_BITS - 1))]
"""An integer of bounded size; true and "4" are rejected."""

TokenId: TypeAlias = Annotated[int, _JsonInteger()]
"""An integer in a long list; the engine checks that it is a token id."""

Element = TypeVar("Element")


class _FailFast(FailFast):
    """`FailFast` with a hash: in a union, typing compares the annotations of its members."""

    __hash__ = object.__hash__


Items: TypeAlias = Annotated[list[Element], _FailFast()]
"""A list that reports its first fault only: millions of faults would fill the memory."""

NOT_EMPTY: Final[Schema] = {"minLength": 1, "minItems": 1}
"""The rule of a text or list that must not be empty."""

MAX_ID: Final = 512
ID: Final[Schema] = {"minLength": 1, "maxLength": MAX_ID, "pattern": "^[^/]*$", "not": {"enum": [".", ".."]}}
"""The rule of an id, which is used in a path: no slash, and not "." or ".."."""

_STRING: Final[Schema] = {"type": "string"}


def _array(items: Mapping[str, Any]) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


TEXTS: Final[Schema] = {"anyOf": [_STRING, _array(_STRING), _array(TOKEN_SCHEMA), _array(_array(TOKEN_SCHEMA))]}
"""A text or its token ids, or several."""

TEXT: Final[Schema] = {"anyOf": [{"type": "string"}, {"type": "array", "items": TOKEN_SCHEMA}]}
"""A text or its token ids, possibly empty."""

EVENT: Final[Schema] = {
    "type": "object",
    "description": "An event of the stream: a chunk as JSON, and [DONE] as the last one.",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}
"""The events of a stream."""


def between(low: int, high: int | None = None) -> Schema:
    """Return the rule of a number within bounds."""
    return {"minimum": low} | ({} if high is None else {"maximum": high})


TOP_TOKENS: Final = "top-tokens"
"""The format of a number of top tokens; `openapi` sets its limit from an option."""


def top_tokens(low: int, high: int | None = None) -> Schema:
    """Return the rule of a number of top tokens per position."""
    return {"format": TOP_TOKENS} | between(low, high)


def not_this(value: Any) -> Schema:
    """Return the rule that excludes one value."""
    return {"not": {"const": value}}


HARMLESS: Final[Mapping[str, Sequence[Any]]] = MappingProxyType(
    {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "documents": ([],),
        "logprob_token_ids": ([],),
        "use_beam_search": (False,),
        "truncation_side": ("left",),
    }
)
"""Values of unsupported fields that ask for nothing, which are served."""


def is_harmless(name: str, value: Any) -> bool:
    """Return whether a value of an unsupported field asks for nothing."""
    return value is None or any(type(value) is type(each) and value == each for each in HARMLESS.get(name, ()))


def refused(name: str, why: str) -> Schema:
    """Return the schema of an unsupported field."""
    values = {"enum": [None, *HARMLESS[name]]} if name in HARMLESS else {"type": "null"}
    return {**values, "description": f"Refused: {why}."}


def given(name: str, schema: Schema | None = None) -> Schema:
    """Return the rule of an object with a field, by default any but null."""
    return {"properties": {name: {"not": {"type": "null"}} if schema is None else schema}, "required": [name]}


def absent(name: str) -> Schema:
    """Return the rule of an object without a field, or with null."""
    return {"properties": {name: {"type": "null"}}}


def without(name: str, value: Any) -> Schema:
    """Return the rule of an object whose field is absent or has another value."""
    return {"properties": {name: not_this(value)}}


def either(*schemas: Schema) -> Schema:
    """Return the rule that at least one schema matches."""
    return {"anyOf": list(schemas)}


def rules(*schemas: Schema) -> Schema:
    """Return the rule that all schemas match, in addition to the types of fields."""
    return {"allOf": list(schemas)}


def exactly_one(*names: str) -> Schema:
    """Return the rule that exactly one of the fields is given."""
    return either(*({"allOf": [given(name), *(absent(each) for each in names if each != name)]} for name in names))


USAGE_OF_STREAMS: Final = either(absent("stream_options"), given("stream", {"const": True}))
SCORES_OF_WHOLES: Final = either(absent("prompt_logprobs"), without("stream", True))
ONE_TURN: Final = either(without("add_generation_prompt", True), without("continue_final_message", True))
GENERATION: Final = (USAGE_OF_STREAMS, SCORES_OF_WHOLES)

NO_TOP_TOKENS: Final = either({"properties": {"top_logprobs": {"enum": [0, None]}}}, given("logprobs", {"const": True}))

CHAT: Final = rules(*GENERATION, ONE_TURN, NO_TOP_TOKENS)
COMPLETION: Final = rules(
    *GENERATION, either(absent("suffix"), {"allOf": [without("echo", True), absent("truncate_prompt_tokens")]})
)
RENDER: Final = rules(ONE_TURN)

FORM_OF: Final = {
    "add_special_tokens": ("prompt", "messages"),
    "add_special": ("content",),
    "add_generation_prompt": ("messages",),
    "continue_final_message": ("messages",),
    "chat_template": ("messages",),
    "chat_template_kwargs": ("messages",),
    "tools": ("messages",),
}
"""Fields of /tokenize that require one of these other fields."""

TOKENIZE: Final = rules(
    ONE_TURN,
    exactly_one("prompt", "messages", "content"),
    *(either(absent(name), *map(given, forms)) for name, forms in FORM_OF.items()),
)

SESSION: Final = rules(*GENERATION)

PART: Final = either(
    *({"allOf": [given("type", {"const": kind}), given(kind, {"type": "string"})]} for kind in ("text", "refusal"))
)

MESSAGE: Final = rules(
    either(
        given("content"),
        given("refusal"),
        {"properties": {"role": {"const": "assistant"}}},
    ),
    either(without("role", "tool"), given("tool_call_id")),
    either(without("role", "function"), given("name")),
)

_ARGUMENTS: Final = either(
    {"type": "object"}, {"type": "string", "contentMediaType": "application/json"}, {"type": "null"}
)
FUNCTION_CALL: Final[Schema] = {
    "properties": {"name": {"type": "string"}, "arguments": _ARGUMENTS},
    "required": ["name"],
}
TOOL_CALL: Final[Schema] = {
    "properties": {
        "id": either({"type": "string"}, {"type": "null"}),
        "type": {"enum": ["function", None]},
        "function": {"type": "object", **FUNCTION_CALL},
    },
    "required": ["function"],
}
