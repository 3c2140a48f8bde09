"""JSON Schemas for constrained generation: seeded bounded ones, and natural ones as applications send them.

Bounded: every string, array and number of an instance has a limit, so that any model ends. No schema is recursive.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

Schema = dict[str, Any]

_NAMES: Final = ("id", "name", "kind", "x", "größe", "is_ok", 'a"b', "tags", "next step", "value")
_WORDS: Final = ("red", "green", "blue", "on", "off", "né", "a b", 'say "hi"', "42", "")
_PATTERNS: Final = ("^[a-c]{1,4}$", "^[0-9]{2}-[0-9]{2}$", "^(yes|no|maybe)$", "^[A-Z][a-z]{0,5}$", "^x?y{1,3}$")
_FORMATS: Final = ("date", "uuid", "ipv4")


def bounded_schemas(count: int = 200, seed: int = 0) -> list[Schema]:
    """Return varied schemas; the first of them are the same for every count."""
    return [_value(random.Random(f"{seed}/{number}"), depth=number % 3 + 1) for number in range(count)]


def _value(draw: random.Random, depth: int) -> Schema:
    kinds = _FLAT if depth == 0 else (*_FLAT[:3], *_DEEP * 3)
    return draw.choice(kinds)(draw, depth)


def _string(draw: random.Random, _: int) -> Schema:
    low = draw.randrange(4)
    return draw.choice(
        [
            {"type": "string", "maxLength": draw.randint(1, 12)},
            {"type": "string", "minLength": low, "maxLength": low + draw.randrange(6)},
            {"type": "string", "pattern": draw.choice(_PATTERNS)},
            {"type": "string", "format": draw.choice(_FORMATS)},
        ]
    )


def _integer(draw: random.Random, _: int) -> Schema:
    low = draw.randint(-1000, 1000)
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + draw.randint(8, 5000)}
    if draw.random() < 0.3:
        schema["exclusiveMaximum"] = schema.pop("maximum")
    if draw.random() < 0.3:
        schema["multipleOf"] = draw.randint(2, 7)
    return schema


def _choice(draw: random.Random, _: int) -> Schema:
    values: list[Any] = [*draw.sample(_WORDS, 3), draw.randint(-9, 9), None, True, 0.5]
    if draw.random() < 0.3:
        return {"const": draw.choice(values)}
    return {"enum": draw.sample(values, draw.randint(1, 5))}


def _plain(draw: random.Random, _: int) -> Schema:
    types = ["boolean", "null"]
    return {"type": draw.choice(types) if draw.random() < 0.7 else types}


def _array(draw: random.Random, depth: int) -> Schema:
    low = draw.randrange(3)
    schema: Schema = {"type": "array", "items": _value(draw, depth - 1), "maxItems": low + draw.randrange(3)}
    if low:
        schema["minItems"] = low
    return schema


def _tuple(draw: random.Random, depth: int) -> Schema:
    items = [_value(draw, depth - 1) for _ in range(draw.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": draw.randint(0, len(items))}


def _object(draw: random.Random, depth: int) -> Schema:
    names = draw.sample(_NAMES, draw.randint(1, 4))
    properties = {name: _value(draw, depth - 1) for name in names}
    required = [name for name in names if draw.random() < 0.7]
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def _either(draw: random.Random, depth: int) -> Schema:
    keyword = draw.choice(["anyOf", "oneOf"])
    return {keyword: [{"type": "null"}, _string(draw, 0), _object(draw, depth)]}


def _shared(draw: random.Random, depth: int) -> Schema:
    """Return a schema whose properties share a definition. Only the outermost has definitions at the root."""
    part = {"type": "object", "properties": {"part": _string(draw, 0)}, "required": ["part"]}
    both: list[Schema] = [part, {"additionalProperties": False, "properties": {"part": True}}]
    names = draw.sample(_NAMES, 2)
    properties: Schema = {names[0]: {"allOf": both}, names[1]: _value(draw, depth - 1)}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


_FLAT: Final[tuple[Callable[[random.Random, int], Schema], ...]] = (_string, _integer, _choice, _plain)
_DEEP: Final[tuple[Callable[[random.Random, int], Schema], ...]] = (_object, _array, _tuple, _either, _shared)


def _closed(properties: Schema, **more: Any) -> Schema:
    """Return an object that has exactly these properties."""
    closed = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return closed | more


def _text(limit: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": limit}


def natural_schemas() -> dict[str, Schema]:
    """Return schemas as applications send them, by name."""
    address = _closed({"street": _text(40), "city": _text(30), "zip": {"type": "string", "pattern": "^[0-9]{5}$"}})
    person = _closed({"name": _text(40), "age": {"type": "integer", "minimum": 0, "maximum": 120}})
    task = _closed({"title": _text(60), "done": {"type": "boolean"}})
    tasks = {"type": "array", "items": {"$ref": "#/$defs/task"}, "minItems": 1, "maxItems": 4}
    day = {"type": "string", "format": "date"}
    parts = {"type": "array", "items": _text(40), "minItems": 1, "maxItems": 5}
    mood = {"enum": ["positive", "negative", "neutral"]}
    contact = {"anyOf": [_closed({"email": _text(40)}), _closed({"phone": _text(20)})]}
    return {
        "person": person,
        "address": address,
        "customer": _closed({**person["properties"], "address": address}),
        "todo list": _closed({"tasks": tasks}, **{"$defs": {"task": task}}),
        "sentiment": _closed({"sentiment": mood, "confidence": {"enum": ["low", "medium", "high"]}}),
        "event": _closed({"title": _text(60), "date": day, "attendees": parts}),
        "recipe": _closed({"name": _text(40), "servings": {"enum": [1, 2, 4, 6]}, "steps": parts}),
        "contact": _closed({"name": _text(40), "contact": contact}),
        "answer": _closed({"reasoning": _text(200), "answer": {"type": ["string", "null"], "maxLength": 60}}),
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    }
