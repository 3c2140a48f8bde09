"""The keywords of JSON Schema, one case each: enforced by the grammar, or refused with a JSON pointer.

The instances are judged by jsonschema_rs, so that the table itself cannot be wrong.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from byte_matcher import ByteMatcher
from ferrum.core.errors import InvalidSchema
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.grammar.constraint_grammars import checked_grammar

OBJECT = {"type": "object"}
LIST = {"$defs": {"list": {"type": ["object", "null"], "properties": {"next": {"$ref": "#/$defs/list"}}}}}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}

# keyword, schema, valid instances, invalid instances
ENFORCED: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("type", {"type": "integer"}, [1, -2], [1.5, "1", None, True]),
    ("type list", {"type": ["string", "null"]}, ["a", None], [1, []]),
    ("boolean schema", {"properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
    ("const", {"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}, {}]),
    ("const of a number", {"const": 1.5}, [1.5], [1, 15]),
    ("enum", {"enum": ["a", 2, None, [1]]}, ["a", 2, None, [1]], ["b", True, [2]]),
    ("enum and type", {"enum": ["a", 2], "type": "string"}, ["a"], [2]),
    ("minimum", {"type": "integer", "minimum": 3}, [3, 10], [2, -3]),
    ("maximum of floats", {"type": "number", "maximum": 2.5}, [2.5, -7], [2.51, 3]),
    ("exclusiveMinimum", {"type": "number", "exclusiveMinimum": 0}, [0.1, 1], [0, -1]),
    ("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 3}, [2], [3]),
    ("integer with float bounds", {"type": "integer", "minimum": 1.5, "maximum": 3.5}, [2, 3], [1, 4]),
    ("large bounds", {"type": "integer", "maximum": 2**53}, [2**53], [2**53 + 2]),
    ("multipleOf", {"type": "integer", "multipleOf": 7}, [0, 14, -21], [1, 13]),
    ("multipleOf of decimals", {"type": "number", "multipleOf": 0.01}, [0.25, 3], [0.255]),
    ("minLength", {"type": "string", "minLength": 2}, ["ab", "éé", "😀😀"], ["a", "😀"]),
    ("maxLength", {"type": "string", "maxLength": 2}, ["", "😀😀", "\n\n"], ["abc"]),
    ("pattern", {"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["abd", ""]),
    ("pattern unanchored", {"type": "string", "pattern": "b|^c"}, ["abc", "ca"], ["ac"]),
    ("pattern . and \\s", {"type": "string", "pattern": "^.\\s$"}, ["a ", "a\ufeff"], ["\n ", "ab"]),
    ("pattern and length", {"type": "string", "pattern": "^a*$", "maxLength": 2}, ["aa"], ["aaa", "b"]),
    ("format date", {"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "2023-1-1"]),
    ("format date-time", {"format": "date-time"}, ["2024-01-01T00:00:00Z", 1], ["2024-01-01", "x"]),
    ("format uuid", {"format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
    ("format ipv6", {"format": "ipv6"}, ["::1", "fe80::1"], ["1::2::3", "12345::"]),
    ("format email", {"format": "email"}, ["a@example.com"], ["a@", "a b@c.d"]),
    ("format uri", {"format": "uri"}, ["https://a.b/c?d#e"], ["a b", "/c"]),
    ("format of OpenAPI", {"type": "number", "format": "double"}, [1.5], ["1"]),
    ("items", {"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["a"], [1, "a"]]),
    ("prefixItems", {"prefixItems": [{"type": "integer"}], "items": False}, [[], [1]], [["a"], [1, 2]]),
    ("minItems", {"type": "array", "minItems": 2}, [[1, 2]], [[1]]),
    ("maxItems", {"type": "array", "maxItems": 1}, [[], [1]], [[1, 2]]),
    ("contains anything", {"type": "array", "contains": {}}, [[1]], [[]]),
    ("uniqueItems of one", {"type": "array", "uniqueItems": True, "maxItems": 1}, [[1]], [[1, 1]]),
    ("properties", {"properties": {"a": {"type": "integer"}}}, [{"a": 1}, {}, 5], [{"a": "x"}]),
    ("required", {**OBJECT, "required": ["a"]}, [{"a": 1}], [{}, {"b": 1}]),
    ("additionalProperties false", {"properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
    ("additionalProperties", {**OBJECT, "additionalProperties": {"type": "null"}}, [{"x": None}], [{"x": 1}]),
    ("patternProperties", {"patternProperties": {"^n": {"type": "integer"}}}, [{"n1": 1, "b": "x"}], [{"n1": "x"}]),
    ("patternProperties meet", {"properties": {"na": {"maximum": 3}}, "patternProperties": {"^n": {"type": "integer"}}},
     [{"na": 3}], [{"na": 4}, {"na": 2.5}]),
    ("propertyNames pattern", {"propertyNames": {"pattern": "^a"}}, [{"ab": 1}], [{"b": 1}]),
    ("propertyNames enum", {"propertyNames": {"enum": ["a", "b"]}}, [{"a": 1, "b": 2}], [{"c": 1}]),
    ("minProperties", {**OBJECT, "minProperties": 1}, [{"a": 1}], [{}]),
    ("maxProperties", {**OBJECT, "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    ("dependentRequired", {**OBJECT, "dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 2}], [{"a": 1}]),
    ("dependentSchemas", {"dependentSchemas": {"a": {"maxProperties": 1}}}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 2}]),
    ("unevaluatedProperties", {"properties": {"a": {}}, "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
    ("unevaluatedItems", {"prefixItems": [{}], "unevaluatedItems": False}, [[1]], [[1, 2]]),
    ("allOf", {"allOf": [{"type": "integer"}, {"minimum": 3}]}, [3], [2, "a", 3.5]),
    ("allOf of closed objects", {**OBJECT, "allOf": [{"properties": {"a": {}}, "additionalProperties": False},
                                                    {"required": ["a"]}]}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
    ("anyOf with siblings", {"anyOf": [{"type": "string"}, {"minimum": 3}], "type": "integer"}, [3], [2, "a"]),
    ("oneOf of types", {"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None, 1.5]),
    ("oneOf of tagged objects", {"oneOf": [CAT, DOG]}, [{"kind": "cat", "lives": 9}, {"kind": "dog"}],
     [{"kind": "cow"}, {"kind": "cat", "lives": "x"}]),
    ("oneOf of required", {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}], [{}, {"a": 1, "b": 2}, 5]),
    ("oneOf of one", {"oneOf": [{"required": ["a"]}]}, [5, {"a": 1}], [{}]),
    ("not a type", {"not": {"type": "string"}}, [1, None, {}], ["a"]),
    ("not constants", {"type": ["string", "integer"], "not": {"enum": ["a", 3]}}, ["", "ab", "b", 2, 4], ["a", 3]),
    ("not required", {**OBJECT, "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    ("if then else", {"type": "object", "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]},
     "then": {"required": ["a"]}, "else": {"required": ["b"]}}, [{"k": "x", "a": 1}, {"b": 1}],
     [{"k": "x"}, {"k": "y"}]),
    ("$ref with siblings", {"$ref": "#/$defs/a~1b", "minimum": 3, "$defs": {"a/b": {"type": "integer"}}}, [3],
     [2, "a"]),
    ("$ref recursive", {"$ref": "#/$defs/list", **LIST}, [None, {"next": {"next": None}}], [{"next": 1}]),
    ("$anchor and $id", {"$id": "http://x.y/z", "$ref": "#n", "$defs": {"a": {"$anchor": "n", "type": "null"}}},
     [None], [1]),
    ("annotations", {"title": "t", "description": "d", "default": 1, "examples": [2], "x-order": 3, "type": "null"},
     [None], [1]),
]  # fmt: skip

REFUSED: list[tuple[str, Any, str]] = [
    ("uniqueItems", {"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    ("contains", {"contains": {"type": "integer"}}, "#/contains"),
    ("minProperties 2", {"properties": {"a": {"minProperties": 2}}}, "#/properties/a/minProperties"),
    ("minProperties with optional", {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}, "#"),
    ("overlapping oneOf", {"oneOf": [{"minimum": 1}, {"type": "integer"}]}, "#/oneOf/1"),
    ("overlapping patterns", {"items": {"patternProperties": {"a": {}, "b": {}}}}, "#/items"),
    ("not a pattern", {"not": {"pattern": "a"}}, "#/not"),
    ("look-ahead", {"items": {"pattern": "^(?!a)"}}, "#/items/pattern"),
    ("unknown format", {"format": "regex"}, "#/format"),
    ("unevaluated after allOf", {"allOf": [{}], "unevaluatedProperties": False}, "#/unevaluatedProperties"),
    ("$dynamicRef", {"properties": {"a/b": {"$dynamicRef": "#x"}}}, "#/properties/a~1b/$dynamicRef"),
    ("remote $ref", {"$ref": "https://example.com/schema"}, "#/$ref"),
    ("missing $ref", {"items": {"$ref": "#/$defs/nothing"}}, "#/items/$ref"),
    ("endless $ref", {"$ref": "#"}, "#"),
    ("endless value", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "#"),
    ("misspelt keyword", {"properties": {"a": {"maxlength": 3}}}, "#/properties/a/maxlength"),
    ("options of the library", {"x-guidance": {"lenient": True}}, "#/x-guidance"),
    ("empty enum", {"enum": []}, "#/enum"),
    ("no value", {"type": "integer", "minimum": 3, "maximum": 2}, "#"),
    ("no string", {"properties": {"a": {"type": "string", "pattern": "^a$", "minLength": 2}}, "required": ["a"],
     "type": "object"}, "#/properties/a"),
    ("false", False, "#"),
    ("inexact number", {"const": 2**53 + 1}, "#/const"),
    ("large multipleOf", {"multipleOf": 99991}, "#/multipleOf"),
    ("wrong type", {"type": "text"}, "#/type"),
    ("wrong count", {"maxLength": -1}, "#/maxLength"),
    ("boolean required", {"properties": {"a": {"required": True}}}, "#/properties/a/required"),
    ("no schema", {"properties": {"a": 5}}, "#/properties/a"),
    ("siblings of $ref in draft 7", {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a",
     "minimum": 3, "definitions": {"a": True}}, "#/minimum"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"), [each[1:] for each in ENFORCED], ids=[each[0] for each in ENFORCED]
)
def test_keyword_is_enforced(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    judge = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    assert all(map(judge.is_valid, valid)) and not any(map(judge.is_valid, invalid))
    matcher = ByteMatcher(checked_grammar(StructuredOutputs(json=json.dumps(schema))))
    for instances, expected in ((valid, True), (invalid, False)):
        texts = [json.dumps(each, ensure_ascii=False) for each in instances]
        assert {text: matcher.accepts(text) for text in texts} == dict.fromkeys(texts, expected)


@pytest.mark.parametrize(("schema", "pointer"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_keyword_is_refused_by_its_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        checked_grammar(StructuredOutputs(json=json.dumps(schema)))
    assert caught.value.message.startswith(f"{pointer}: ") and caught.value.param == "json"
