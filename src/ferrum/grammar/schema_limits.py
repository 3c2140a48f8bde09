"""Limits that protect llguidance: its recursion ends the process, and its intersections take minutes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ferrum.grammar.schema_facts import Schema

MOST_NESTED: Final = 200
"""Levels of schemas through references; llguidance's stack ends after about 1000."""

MOST_MEETING: Final = 8
"""Patterns that one string may have to match together; twelve take minutes."""

_LATER: Final = ("prefixItems", "items", "properties", "patternProperties", "additionalProperties")
"""Keywords in the order in which llguidance reads them, before the next of the others."""

_AT_ONCE: Final = ("allOf", "anyOf", "$ref")


def _under(keyword: str, value: Any) -> list[Schema]:
    if keyword in ("properties", "patternProperties"):
        return list(value.values())
    return value if isinstance(value, list) else [value]


def _children(schema: Schema, definitions: Mapping[str, Schema], seen: set[str]) -> Iterator[Schema]:
    """Yield the schemas within one, a definition at its first reference only."""
    waiting: list[str] = []
    for keyword in [*schema, None] if isinstance(schema, dict) else ():
        if keyword in _LATER:
            waiting.append(keyword)
        elif keyword is None or keyword in _AT_ONCE:
            for each in sorted(waiting, key=_LATER.index):
                yield from _under(each, schema[each])  # type: ignore[index]  # only objects have keywords
            waiting.clear()
            if keyword == "$ref":
                name = schema["$ref"]  # type: ignore[index]
                if name not in seen:
                    seen.add(name)
                    yield definitions[name]
            elif keyword is not None:
                yield from schema[keyword]  # type: ignore[index]


def nested_levels(schema: Schema, definitions: Mapping[str, Schema]) -> int:
    """Return how many schemas llguidance reads within each other, up to one above the limit."""
    seen: set[str] = set()
    stack, deepest = [_children(schema, definitions, seen)], 1
    while stack and deepest <= MOST_NESTED:
        child = next(stack[-1], None)
        if child is None:
            stack.pop()
        else:
            stack.append(_children(child, definitions, seen))
            deepest = max(deepest, len(stack))
    return deepest


class Meeting:
    """The number of patterns that may meet at one string, at most.

    Args:
        definitions: by reference.
    """

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._known: dict[int, int] = {}

    def most(self, schema: Schema) -> int:
        """Return the number for a schema with `nested_levels` within the limit."""
        if isinstance(schema, bool):
            return 0
        if id(schema) not in self._known:
            self._known[id(schema)] = 0  # a recursive schema meets itself at another value
            self._known[id(schema)] = self._sum(schema)
        return self._known[id(schema)]

    def _sum(self, schema: dict[str, Any]) -> int:
        def largest(*keywords: str) -> int:
            return max((self.most(each) for name in keywords for each in _under(name, schema.get(name, []))), default=0)

        together = list(schema.get("allOf", ()))
        if "$ref" in schema:
            together.append(self._definitions[schema["$ref"]])
        within = largest("items", "prefixItems", "additionalProperties")
        named = _largest(self, schema.get("properties", {})) + _largest(self, schema.get("patternProperties", {}))
        return ("pattern" in schema) + sum(map(self.most, together)) + largest("anyOf") + max(within, named)


def _largest(meeting: Meeting, schemas: Mapping[str, Schema]) -> int:
    return max(map(meeting.most, schemas.values()), default=0)
