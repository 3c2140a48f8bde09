"""Places in a JSON Schema: their pointers, the errors that name them, the targets of references, and plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from ferrum.core.errors import InvalidSchema
from ferrum.core.values import shown

MOST_LEVELS: Final = 96
"""Nested levels of JSON in a schema; llguidance's reader ends at 128."""

_OF_ONE: Final = (
    *("additionalProperties", "additionalItems", "items", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_OF_LIST: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_OF_MAP: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")


@dataclass(frozen=True, slots=True)
class Place:
    """A value within a schema.

    Attributes:
        value: a schema, or what a keyword has.
        path: the steps from the root.
        up: the place of the object or list that holds the value.
    """

    value: Any
    path: tuple[str, ...] = ()
    up: Place | None = None

    def at(self, *steps: str | int) -> Place:
        """Return a place within this one."""
        place = self
        for step in steps:
            place = Place(place.value[step], (*place.path, str(step)), place)
        return place

    @property
    def owner(self) -> Place:
        """The place of the object or list that holds the value."""
        assert self.up is not None
        return self.up

    @property
    def siblings(self) -> Mapping[str, Any]:
        """The schema that has this value at a keyword."""
        siblings: Mapping[str, Any] = self.owner.value
        return siblings

    @property
    def pointer(self) -> str:
        """JSON pointer as a URI fragment."""
        return "#" + "".join("/" + pointed(step) for step in self.path)

    def refuse(self, reason: str, *steps: str | int) -> NoReturn:
        """Raise InvalidSchema about this place or one within it."""
        where = Place(None, (*self.path, *map(str, steps)))
        raise InvalidSchema(f"{where.pointer}: {reason}")


def pointed(step: Any) -> str:
    """Return a step of a JSON pointer (RFC 6901)."""
    return str(step).replace("~", "~0").replace("/", "~1")


def is_schema(value: Any) -> bool:
    """Whether a value has the type of a schema."""
    return isinstance(value, (bool, Mapping))


def subschemas(place: Place) -> Iterator[Place]:
    """Yield the schemas directly within a schema, at the known keywords."""
    schema = place.value
    for keyword in schema if isinstance(schema, Mapping) else ():
        value = schema[keyword]
        if keyword in _OF_ONE and is_schema(value):
            yield place.at(keyword)
        elif keyword in _OF_LIST and isinstance(value, list):
            yield from (place.at(keyword, each) for each in range(len(value)))
        elif keyword in _OF_MAP and isinstance(value, Mapping):
            yield from (place.at(keyword, each) for each in value if is_schema(value[each]))


class Resources:
    """The targets of references in one schema: resources by URI, and anchors.

    Args:
        root: the whole schema.
        old: its dialect is draft 7 or older, in which `$id` (draft 4: `id`) may hold an anchor.
    """

    def __init__(self, root: Place, *, old: bool) -> None:
        self._old = old
        self._roots: dict[str, Place] = {"": root}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._bases: dict[tuple[str, ...], str] = {(): ""}
        pending = [root]
        while pending:
            place = pending.pop()
            if len(place.path) > MOST_LEVELS:
                place.refuse(f"is nested deeper than {MOST_LEVELS} levels")
            if isinstance(place.value, Mapping):
                self._note(place)
                pending.extend(subschemas(place))

    def _note(self, place: Place) -> None:
        """Note the identifier and the anchors of a schema."""
        name = place.value.get("$id", place.value.get("id") if self._old else None)
        if isinstance(name, str) and not (self._old and "$ref" in place.value):
            uri, fragment = urldefrag(urljoin(self._base(place), name))
            if self._old and fragment:
                self._anchors[uri, fragment] = place
            if not (self._old and name.startswith("#")):
                self._roots[uri] = place
                self._bases[place.path] = uri
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(place.value.get(keyword), str):
                self._anchors[self._base(place), place.value[keyword]] = place

    def _base(self, place: Place) -> str:
        """Return the URI of the innermost resource around a place."""
        lengths = range(len(place.path), -1, -1)
        return next(self._bases[place.path[:each]] for each in lengths if place.path[:each] in self._bases)

    def target(self, place: Place, reference: Any) -> Place:
        """Return the schema that `$ref` in a schema refers to. Raises InvalidSchema for remote and missing ones."""
        if not isinstance(reference, str):
            place.refuse("must be a string", "$ref")
        try:
            uri, fragment = urldefrag(urljoin(self._base(place), reference))
        except ValueError as error:
            place.refuse(f"{shown(reference)} is not a URI: {error}", "$ref")
        fragment, found = unquote(fragment), None
        if uri not in self._roots:
            place.refuse(f"{shown(reference)} is not in this schema; remote schemas are not loaded", "$ref")
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get((uri, fragment))
        else:
            found = _pointed(self._roots[uri], fragment)
        if found is None or not is_schema(found.value):
            place.refuse(f"{shown(reference)} does not name a schema", "$ref")
        return found


def _pointed(root: Place, pointer: str) -> Place | None:
    place = root
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place.value, Mapping) and step in place.value:
            place = place.at(step)
        elif isinstance(place.value, list) and step.isdecimal() and int(step) < len(place.value):
            place = place.at(int(step))
        else:
            return None
    return place


# Plain values: numbers that llguidance reads exactly, counts, constants

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
