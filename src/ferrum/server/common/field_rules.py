"""The rules of a body's fields: bounds of values, and which fields need or exclude each other.

Each rule stands once: it checks bodies, and is a part of the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import FailFast, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from ferrum.core.param_values import TOKEN_SCHEMA
from ferrum.core.values import MOST_BITS

Schema: TypeAlias = dict[str, Any]

TOP_TOKENS: Final = "top-tokens"
"""The format of a number of top tokens; `app` sets its limit from an option."""

_MOST: Final = 1 << (MOST_BITS - 1)


@dataclass(frozen=True)
class Integer:
    """A pydantic type of integers as in JSON Schema: 4.0 is one, true and "4" are none.

    Args:
        low, high: bounds, included.
        format: in the document.
        advice: what to do instead of sending a number below `low`.
        listed: of many numbers, which are read in half the time, and may have any size.
    """

    low: int | None = None
    high: int | None = None
    format: str | None = None
    advice: str = ""
    listed: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        least, most = (None, None) if self.listed else (-_MOST, _MOST)
        integers = core_schema.int_schema(strict=True, gt=least, lt=most)
        written = core_schema.float_schema(strict=True, gt=least, lt=most)
        kinds = [integers, core_schema.no_info_after_validator_function(_to_int, written)]
        number = core_schema.union_schema(list(kinds), mode="left_to_right", custom_error_type="int_type")
        if self.low is None and self.high is None:
            return number
        bounded: CoreSchema = core_schema.int_schema(ge=self.low, le=self.high)
        if self.advice:
            reason = f"must be at least {self.low}; {self.advice}"
            bounded = core_schema.custom_error_schema(bounded, "integer", custom_error_message=reason)
        return core_schema.chain_schema([number, bounded])

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        made = {"type": "integer", "format": self.format, "minimum": self.low, "maximum": self.high}
        return {name: value for name, value in made.items() if value is not None}


def _to_int(number: float) -> int:
    if not number.is_integer():
        raise ValueError
    return int(number)


JsonInteger: TypeAlias = Annotated[int, Integer()]
"""An integer of bounded size."""

TokenId: TypeAlias = Annotated[int, Integer(listed=True)]
"""An integer in a long list; the engine checks that it is a token id."""


@dataclass(frozen=True)
class _Text:
    """A pydantic type of texts with bounds. `reason` is the error, whatever is wrong."""

    reason: str
    least: int | None = None
    most: int | None = None
    pattern: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(strict=True, min_length=self.least, max_length=self.most, pattern=self.pattern)
        return core_schema.custom_error_schema(text, "text", custom_error_message=self.reason)


NonEmpty: TypeAlias = Annotated[str, _Text("must be a text that is not empty", least=1)]

MAX_ID: Final = 512
Id: TypeAlias = Annotated[
    str,
    _Text(
        f'must be 1-{MAX_ID} characters, must not contain "/" or be "." or ".."',
        most=MAX_ID,
        pattern=r"^([^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)$",
    ),
]
"""An id, which is used in a path."""

Element = TypeVar("Element")


class _FailFast(FailFast):
    """`FailFast` with a hash: in a union, typing compares the annotations of its members."""

    __hash__ = object.__hash__


Items: TypeAlias = Annotated[list[Element], _FailFast()]
"""A list that reports its first fault only: millions of faults would fill the memory."""

_STRING: Final[Schema] = {"type": "string"}


def _array(items: Mapping[str, Any]) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


TEXTS: Final[Schema] = {"anyOf": [_STRING, _array(_STRING), _array(TOKEN_SCHEMA), _array(_array(TOKEN_SCHEMA))]}
"""A text or its token ids, or several."""

TEXT: Final[Schema] = {"anyOf": [_STRING, {"type": "array", "items": TOKEN_SCHEMA}]}
"""A text or its token ids, possibly empty."""

EVENT: Final[Schema] = {
    "type": "object",
    "description": "An event of the stream: a chunk as JSON, and [DONE] as the last one.",
    "properties": {"data": {"type": "string"}},
    "required": ["data"],
}
"""The events of a stream."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The value of a field is one of some values, or none of them if `negated`. That of an absent field is None."""

    field: str
    values: tuple[Any, ...]
    negated: bool = False

    def document(self) -> Schema:
        """Return the condition as JSON Schema of the body."""
        among = {"enum": list(self.values)}
        of_field = {"properties": {self.field: {"not": among} if self.negated else among}}
        return of_field | ({"required": [self.field]} if (None in self.values) == self.negated else {})


def given(field: str) -> Condition:
    """Return the condition that a field is present and not null."""
    return Condition(field, (None,), negated=True)


def one_of(field: str, *values: Any) -> Condition:
    """Return the condition that a field has one of these values; None stands for an absent field too."""
    return Condition(field, values)


def absent(field: str) -> Condition:
    """Return the condition that a field is absent or null."""
    return Condition(field, (None,))


def isnt(field: str, value: Any) -> Condition:
    """Return the condition that a field is absent or has another value."""
    return Condition(field, (value,), negated=True)


@dataclass(frozen=True, slots=True)
class Rule:
    """At least one of some conditions must hold; else `reason` is the error of `field`."""

    field: str
    reason: str
    conditions: tuple[Condition, ...]

    def document(self) -> Schema:
        """Return the rule as JSON Schema of the body."""
        return {"anyOf": [each.document() for each in self.conditions]}


def rule(field: str, reason: str, *conditions: Condition) -> Rule:
    """Return the rule that one of the conditions holds."""
    return Rule(field, reason, conditions)


HARMLESS: Final[Mapping[str, Sequence[Any]]] = MappingProxyType(
    {
        "documents": ([],),
        "logprob_token_ids": ([],),
        "use_beam_search": (False,),
        "truncation_side": ("left",),
        "modalities": (["text"],),
        "parse_special": (True,),
        "top_logprobs": (0,),
        "logprobs": (False,),
        "logits_processors": ([],),
        "context": ([],),
        "template": ("",),
        "system": ("",),
        "n_probs": (0,),
        "post_sampling_probs": (False,),
        "n_cmpl": (1,),
        "grammar": ("",),
        "logit_bias": ([], {}),
        "lora": ([],),
        "rank_fields": ([],),
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
