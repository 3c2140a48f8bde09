"""Validators of sampling parameters, with the JSON Schemas of what they accept.

A validator takes the name of a field and a value, and returns the normalised value or raises RequestError with the
name. Which field has which validator is in `params.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, NoReturn

from ferrum.core.errors import InvalidToken, RequestError
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.core.values import listed, shown, whole

TOKEN_SCHEMA: Final[Mapping[str, Any]] = {"type": "integer", "format": "token-id", "minimum": 0}
"""JSON Schema of a token id. The upper limit, the vocabulary size, depends on the model."""

_USUAL: Final = 2**63
"""Integers without an upper limit are accepted up to this one without a look at their size in bits."""


def refuse(name: str, reason: str) -> NoReturn:
    """Raise the error of a field."""
    raise RequestError(reason, param=name)


def flag(name: str, value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        refuse(name, f"must be true or false, not {shown(value)}")
    return value


@dataclass(frozen=True, slots=True)
class Integer:
    """A validator of integers within bounds, or None if optional."""

    low: int
    high: int | None = None
    optional: bool = False

    def __call__(self, name: str, value: Any) -> int | None:
        if value is None and self.optional:
            return None
        if type(value) is int and self.low <= value <= (_USUAL if self.high is None else self.high):
            return value
        number = whole(name, value)
        if number < self.low or (self.high is not None and number > self.high):
            most = "" if self.high is None else f" and at most {self.high}"
            refuse(name, f"must be at least {self.low}{most}, not {number}")
        return number


@dataclass(frozen=True, slots=True)
class Number:
    """A validator of finite numbers within bounds; `above` excludes the lower one."""

    low: float
    high: float
    above: bool = False

    def __call__(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            refuse(name, f"must be a number, not {shown(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            refuse(name, f"must be finite, not {shown(value)}")
        if number < self.low or (self.above and number == self.low) or number > self.high:
            bound = f"{'above' if self.above else 'at least'} {self.low:g}"
            refuse(name, f"must be {bound} and at most {self.high:g}, not {number:g}")
        return number


def _items(name: str, value: Any) -> list[Any]:
    if value is None:
        return []
    items = listed(value)
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        refuse(name, f"must be a list, not {shown(value)}")
    return list(items)


def _strings(name: str, value: Any, most: int) -> tuple[str, ...]:
    """Return one string or several as a tuple; an empty one would match everywhere and is refused.

    Equal strings are kept once, after they are counted: the OpenAPI document limits the list as it is sent.
    """
    items = [value] if isinstance(value, str) else _items(name, value)
    if len(items) > most:
        refuse(name, f"has {len(items)} strings, more than {most}")
    for item in items:
        if not isinstance(item, str):
            refuse(name, f"must contain strings only, not {shown(item)}")
        if not item:
            refuse(name, "must not contain an empty string")
    return tuple(dict.fromkeys(items))


@dataclass(frozen=True, slots=True)
class Strings:
    """A validator of one string or several, at most `most` of at most `longest` characters; None is the default."""

    most: int
    longest: int
    default: tuple[str, ...] = ()

    def __call__(self, name: str, value: Any) -> tuple[str, ...]:
        if value is None:
            return self.default
        strings = _strings(name, value, self.most)
        longest = max(map(len, strings), default=0)
        if longest > self.longest:
            refuse(name, f"has a string of {longest} characters, more than {self.longest}")
        return strings


_NOT_BLANK: Final = re.compile(r"[^\s\x1c-\x1f\x85\ufeff]")
"""Spelled out, because engines of regular expressions differ on what a space is, and clients read the schema."""


@dataclass(frozen=True, slots=True)
class Words:
    """A validator of one word or several, at most `most`, none of them blank."""

    most: int

    def __call__(self, name: str, value: Any) -> tuple[str, ...]:
        words = _strings(name, value, self.most)
        if not all(map(_NOT_BLANK.search, words)):
            refuse(name, "must not contain a blank word")
        return words


def _token(name: str, value: Any) -> int:
    token = whole(name, value)
    if token < 0:
        raise InvalidToken(f"token id {token} is negative", param=name)
    return token


def tokens(name: str, value: Any) -> tuple[int, ...]:
    """Return token ids, each of them once."""
    return tuple(dict.fromkeys(_token(name, item) for item in _items(name, value)))


def allowed_tokens(name: str, value: Any) -> tuple[int, ...] | None:
    """Return token ids, at least one, or None."""
    if value is None:
        return None
    allowed = tokens(name, value)
    if not allowed:
        refuse(name, "must not be empty: no token could be generated")
    return allowed


_BIAS: Final = Number(-100.0, 100.0)


def biases(name: str, value: Any) -> dict[int, float] | None:
    """Return the biases by token id; ids may be decimal strings, as JSON spells object keys."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        refuse(name, f"must map token ids to numbers, not {shown(value)}")
    by_token: dict[int, float] = {}
    for key, amount in value.items():
        decimal = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20
        token = int(key) if decimal else _token(name, key)
        if token in by_token:
            refuse(name, f"names token {token} twice")
        by_token[token] = _BIAS(name, amount)
    return by_token


def structured(name: str, value: Any) -> StructuredOutputs | None:
    """Return the constraint, from its record, an object or JSON text; errors name the field within."""
    if value is None or isinstance(value, StructuredOutputs):
        return value
    try:
        return StructuredOutputs.from_json(value) if isinstance(value, str) else StructuredOutputs.from_dict(value)
    except RequestError as error:
        raise error.about(name if error.param in (None, name) else f"{name}.{error.param}") from None


_SCHEMAS: Final[Mapping[Callable[[str, Any], Any], Mapping[str, Any]]] = {
    tokens: {"items": TOKEN_SCHEMA},
    allowed_tokens: {"minItems": 1, "items": TOKEN_SCHEMA},
    biases: {
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,18})$"},
        "additionalProperties": {"type": "number", "minimum": _BIAS.low, "maximum": _BIAS.high},
    },
}


def schema_of(validator: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return the JSON Schema of the values that a validator accepts, beyond their type."""
    match validator:
        case Integer(low, high) | Number(low, high):
            above = isinstance(validator, Number) and validator.above
            least = {"exclusiveMinimum" if above else "minimum": low}
            return least if high is None else least | _at_most(high)
        case Strings(most, longest):
            length = {"minLength": 1, "maxLength": longest}
            return {**length, "maxItems": most, "items": {"type": "string", **length}}
        case Words(most):
            return {"maxItems": most, "items": {"type": "string", "pattern": _NOT_BLANK.pattern}}
    return dict(_SCHEMAS.get(validator, {}))


def _at_most(high: float) -> dict[str, float]:
    """Return an upper bound as a double, the only number that many JSON readers have."""
    return {"maximum": high} if float(high) == high else {"exclusiveMaximum": high + 1}
