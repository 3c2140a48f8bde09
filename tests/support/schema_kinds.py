"""Generated schemas of the kinds that public collections hold: tools, events, manifests, APIs, settings.

JSONSchemaBench names these kinds (function calls, Snowplow, Kubernetes, GitHub, the JSON Schema store). None of its
schemas is copied. Some schemas have keywords that cannot be enforced, as those collections do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

Schema = dict[str, Any]

_WORDS: Final = ("name", "id", "kind", "url", "count", "tags", "owner", "state", "size", "labels", "path", "price")


def schema_of_kind(number: int, seed: int = 0) -> Schema:
    """Return a schema; the number decides its kind."""
    return _KINDS[number % len(_KINDS)](random.Random(f"{seed}/{number}"))


def _leaf(draw: random.Random) -> Schema:
    return draw.choice(
        [
            {"type": "string"},
            {"type": "string", "maxLength": draw.randint(1, 255)},
            {"type": "string", "pattern": draw.choice(["^[a-z][a-z0-9-]*$", "\\d+", "^(a|b)+$", "^\\S+@\\S+$"])},
            {"type": "string", "format": draw.choice(["date-time", "uri", "email", "uuid", "date"])},
            {"type": "integer", "minimum": 0, "maximum": draw.choice([10, 65535, 2147483647])},
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "number", "multipleOf": 0.01, "minimum": 0},
            {"type": "boolean", "default": False},
            {"enum": draw.sample(["on", "off", "auto", None, 1], 3)},
            {"type": ["string", "null"], "maxLength": 20},
        ]
    )


def _fields(draw: random.Random, most: int = 5) -> dict[str, Schema]:
    return {name: _leaf(draw) for name in draw.sample(_WORDS, draw.randint(1, most))}


def _object(draw: random.Random, properties: dict[str, Any], **more: Any) -> Schema:
    required = [name for name in properties if draw.random() < 0.5]
    return {"type": "object", "properties": properties, **({"required": required} if required else {}), **more}


def _tool(draw: random.Random) -> Schema:
    properties: dict[str, Any] = {name: {**_leaf(draw), "description": name} for name in draw.sample(_WORDS, 3)}
    properties["items"] = {"type": "array", "items": _leaf(draw), "maxItems": draw.randint(1, 9)}
    return _object(draw, properties)


def _event(draw: random.Random) -> Schema:
    more = {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": False, "self": None}
    if draw.random() < 0.9:
        del more["self"]
    return _object(draw, _fields(draw), description="An event", **more)


def _manifest(draw: random.Random) -> Schema:
    port = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "minLength": 1}]}
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    definitions = {"spec": _object(draw, {**_fields(draw), "port": port}), "meta": _object(draw, {"labels": labels})}
    properties: Schema = {"spec": {"$ref": "#/definitions/spec"}, "metadata": {"$ref": "#/definitions/meta"}}
    return _object(draw, properties, definitions=definitions, **{"x-group": "apps"})


def _api(draw: random.Random) -> Schema:
    base = _object(draw, _fields(draw, 3))
    variants = [
        _object(draw, {"type": {"const": name}, **_fields(draw, 2)}) | {"required": ["type"]} for name in ("a", "b")
    ]
    node = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
    definitions = {"node": _object(draw, {"value": _leaf(draw), "next": node}), "base": base}
    keyword = draw.choice(["anyOf", "oneOf"])
    properties: Schema = {"item": {keyword: variants}, "node": {"$ref": "#/$defs/node"}}
    return {"allOf": [{"$ref": "#/$defs/base"}, _object(draw, properties)], "$defs": definitions}


def _settings(draw: random.Random) -> Schema:
    schema = _object(draw, _fields(draw), patternProperties={"^x-": _leaf(draw)}, additionalProperties=False)
    extra = draw.choice(
        [
            {"propertyNames": {"pattern": "^[a-z-]+$"}},
            {"minProperties": 1},
            {"not": {"required": ["size"]}},
            {"dependentRequired": {"name": ["id"]}},
            {"if": {"required": ["name"]}, "then": {"required": ["id"]}},
            {"uniqueItems": True},
            {},
        ]
    )
    return schema | extra


_KINDS: Final[tuple[Callable[[random.Random], Schema], ...]] = (_tool, _event, _manifest, _api, _settings)
