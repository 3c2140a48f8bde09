"""Checks of the plain values in a JSON Schema: numbers that llguidance reads exactly, counts, constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from ferrum.core.values import shown
from ferrum.grammar.schema_places import MOST_LEVELS, Place

MOST_COUNT: Final = 2**31 - 1
MOST_EXACT: Final = 2**53
_MOST_DIGITS: Final = 17
_MOST_PLACES: Final = 12
MOST_UNITS: Final = 10_000
"""Limit of `multipleOf`: llguidance takes 10 microseconds for each possible remainder to compile it."""


def number(place: Place, *, least: float | None = None) -> int | float:
    """Return a number that has the same value as a double and as decimal digits. Raises InvalidSchema."""
    value: int | float = place.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        place.refuse(f"must be a number, not {shown(value)}")
    if isinstance(value, float) and value.is_integer() and abs(value) <= MOST_EXACT:
        value = int(value)
    if isinstance(value, int):
        if abs(value) > MOST_EXACT:
            place.refuse(f"{shown(value)} is beyond 2**53, the limit of exact integers")
    else:
        digits = Decimal(repr(value)).as_tuple() if math.isfinite(value) else None
        if digits is None or len(digits.digits) > _MOST_DIGITS or not -_MOST_PLACES <= int(digits.exponent) <= 0:
            place.refuse(f"{value!r} has more than {_MOST_PLACES} decimal places or is too large")
    if least is not None and value <= least:
        place.refuse(f"must be above {least:g}, not {value}")
    return value


def count(place: Place) -> int:
    """Return a non-negative integer. Raises InvalidSchema."""
    value = place.value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        place.refuse(f"must be an integer of at least 0, not {shown(value)}")
    if value > MOST_COUNT:
        place.refuse(f"must be at most {MOST_COUNT}, not {shown(value)}")
    return value


def strings(place: Place) -> list[str]:
    """Return a list of distinct strings. Raises InvalidSchema."""
    value = place.value
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        place.refuse(f"must be a list of strings, not {shown(value)}")
    return list(dict.fromkeys(value))


def constant(place: Place) -> Any:
    """Return a value of `const` or `enum`, with integral floats as integers. Raises InvalidSchema."""
    value = place.value
    if len(place.path) > MOST_LEVELS:
        place.refuse(f"is nested deeper than {MOST_LEVELS} levels")
    if isinstance(value, str):
        if any((ord(char) < 32 and char not in "\b\f\n\r\t") or char == "\x7f" for char in value):
            place.refuse("has a control character, which cannot be generated")
        return value
    if isinstance(value, list):
        return [constant(place.at(each)) for each in range(len(value))]
    if isinstance(value, Mapping):
        return {name: constant(place.at(name)) for name in value}
    return value if value is None or isinstance(value, bool) else number(place)


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


class Multiples:
    """The values of `multipleOf` in one schema. They may all meet, so their common multiple is limited."""

    def __init__(self) -> None:
        self._found: set[Decimal] = set()

    def add(self, place: Place) -> int | float:
        """Return a valid `multipleOf`. Raises InvalidSchema."""
        value = number(place, least=0)
        self._found.add(Decimal(repr(value)).normalize())
        places = max(-int(each.as_tuple().exponent) for each in self._found)
        units = [int(each.scaleb(places)) for each in self._found]
        if math.lcm(*units) > MOST_UNITS:
            limit = f"{MOST_UNITS:,} units in the last decimal place"
            place.refuse(f"exceeds {limit}, alone or as the common multiple of all multipleOf")
        return value
