"""`checked_schema`: a client's JSON Schema as one that llguidance enforces in full, or an error with a JSON pointer.

Drafts 4 to 2020-12 are read as 2020-12. Every keyword is enforced, refused, or an annotation; rewritten schemas allow
the same values, except that the enforced formats leave out rare spellings and nullable is OpenAPI's. The keywords are
in `schema_keywords` and `schema_logic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ferrum.core.errors import InvalidSchema
from ferrum.grammar import schema_keywords, schema_logic
from ferrum.grammar.schema_facts import Facts, Schema
from ferrum.grammar.schema_places import MOST_LEVELS, Multiples, Place, Resources, is_schema

MOST_SCHEMAS: Final = 10_000

ANNOTATIONS: Final = frozenset(
    {
        *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$comment", "$defs", "definitions"),
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("contentEncoding", "contentMediaType", "contentSchema", "discriminator", "externalDocs", "xml"),
        *("enumNames", "enumDescriptions", "markdownDescription", "propertyOrdering"),
    }
)
"""Keywords that constrain nothing, of JSON Schema, OpenAPI and editors; those that begin with `x-` are others."""

_OLD_DRAFTS: Final = ("draft-03", "draft-04", "draft-06", "draft-07")
_NEWER: Final = ("prefixItems", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties")


@dataclass(slots=True)
class Written:
    """A schema being written.

    Attributes:
        schema: the keywords so far, in the order of the client's.
        parts: further schemas that must hold.
    """

    schema: dict[str, Any] = field(default_factory=dict)
    parts: list[Schema] = field(default_factory=list)

    def finished(self) -> Schema:
        """Return the schema with its parts."""
        parts = [each for each in self.parts if each is not True and each != {}]
        if False in parts:
            return False
        if parts:
            self.schema["allOf"] = [*self.schema.get("allOf", ()), *parts]
        return self.schema


Rule = Callable[["Walk", Place, Written], None]
"""Reads one keyword; the place is that of its value."""

RULES: Final[Mapping[str, Rule]] = {**schema_keywords.RULES, **schema_logic.RULES}


class Walk:
    """Writes one schema again.

    Attributes:
        closed: objects with properties have no others, unless they say so.
        old: the dialect is draft 7 or older.
        multiples: the values of `multipleOf`.
        sources: the places of written schemas, by identity.
    """

    def __init__(self, root: Place, *, closed: bool) -> None:
        name = root.value.get("$schema", "") if isinstance(root.value, Mapping) else ""
        if not isinstance(name, str):
            root.refuse("must be a string", "$schema")
        self.closed = closed
        self.old = any(each in name for each in _OLD_DRAFTS)
        self.multiples = Multiples()
        self.sources: list[tuple[Place, Schema]] = []
        self._resources = Resources(root, old=self.old)
        self._definitions: dict[str, Schema] = {}
        self._names: dict[tuple[str, ...], str] = {}
        self._pending: list[tuple[str, Place]] = []
        self._alternatives: list[tuple[Place, list[Schema]]] = []

    def whole(self, root: Place) -> dict[str, Any]:
        """Return the root with its definitions."""
        schema = self.schema(root)
        while self._pending:
            name, place = self._pending.pop()
            self._definitions[name] = self.schema(place)
        definitions = {f"#/$defs/{name}": each for name, each in self._definitions.items()}
        self._check_limits(root, schema, definitions)
        facts = Facts(definitions)
        for place, options in self._alternatives:
            schema_logic.check_exclusive(place, options, facts)
        if Facts(definitions).empty([schema]):
            root.refuse("no finite value satisfies the schema")
        assert not isinstance(schema, bool) or schema  # false is empty
        written = {} if schema is True else dict(schema)
        return written | ({"$defs": dict(self._definitions)} if self._definitions else {})

    def _check_limits(self, root: Place, schema: Schema, definitions: Mapping[str, Schema]) -> None:
        if nested_levels(schema, definitions) > MOST_NESTED:
            root.refuse(f"has more than {MOST_NESTED} schemas within each other, through references")
        meeting = Meeting(definitions)
        for place, each in reversed(self.sources):
            if meeting.most(each) > MOST_MEETING:
                place.refuse(f"more than {MOST_MEETING} patterns may have to match together")

    def schema(self, place: Place) -> Schema:
        """Return a schema written again. Raises InvalidSchema."""
        if not is_schema(place.value):
            place.refuse(f"must be an object or a boolean, not {type(place.value).__name__}")
        if isinstance(place.value, bool):
            return place.value
        if len(place.path) > MOST_LEVELS:
            place.refuse(f"is nested deeper than {MOST_LEVELS} levels")
        if len(self.sources) == MOST_SCHEMAS:
            place.refuse(f"is one of more than {MOST_SCHEMAS} schemas")
        self.sources.append((place, False))
        number, written = len(self.sources) - 1, Written()
        for keyword in place.value:
            rule = RULES.get(keyword)
            if rule is not None:
                self._check_dialect(place, keyword)
                rule(self, place.at(keyword), written)
            elif self.old and keyword in ("contentEncoding", "contentMediaType"):
                place.refuse("of draft 7 and older cannot be enforced", keyword)
            elif keyword == "x-guidance" or not (keyword in ANNOTATIONS or keyword.startswith("x-")):
                place.refuse("is not a keyword of JSON Schema that can be enforced", keyword)
        done = written.finished()
        self.sources[number] = place, done
        return done

    def _check_dialect(self, place: Place, keyword: str) -> None:
        if not self.old:
            return
        if keyword in _NEWER:
            place.refuse(f"does not exist in {place.value.get('$schema', 'the dialect of $schema')}", keyword)
        if "$ref" in place.value and keyword != "$ref":
            place.refuse("is ignored next to $ref in draft 7 and older: put $ref into allOf", keyword)

    def reference(self, place: Place, value: Any) -> str:
        """Return a reference to the definition that `$ref` in the schema at a place names."""
        target = self._resources.target(place, value)
        if target.path not in self._names:
            name = self._names[target.path] = f"d{len(self._names)}"
            self._pending.append((name, target))
        return f"#/$defs/{self._names[target.path]}"

    def exclusive(self, place: Place, options: list[Schema]) -> None:
        """Note options of which exactly one may hold, to be checked when all definitions are written."""
        self._alternatives.append((place, options))


def walked(schema: Any, *, closed: bool = False) -> tuple[dict[str, Any], Walk]:
    """Return the written schema, and the walk that knows where its parts come from. Raises InvalidSchema."""
    root = Place(schema)
    try:
        walk = Walk(root, closed=closed)
        return walk.whole(root), walk
    except RecursionError:  # the caller's stack may be deep already
        root.refuse("is nested too deeply")


def checked_schema(schema: Any, param: str, *, closed: bool = False) -> dict[str, Any]:
    """Return a schema for llguidance that allows what a JSON Schema allows.

    Args:
        schema: an object or a boolean.
        param: the client's field, for errors.
        closed: objects with `properties` have no others, unless they have `additionalProperties`.

    Raises:
        InvalidSchema: a keyword is wrong or cannot be enforced; the message begins with its JSON pointer.
    """
    try:
        return walked(schema, closed=closed)[0]
    except InvalidSchema as error:
        raise error.about(param) from None


# Limits that protect llguidance: its recursion ends the process, and its intersections take minutes

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
