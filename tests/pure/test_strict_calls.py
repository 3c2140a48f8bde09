"""Strict tools in each format of calls: valid arguments can be written, others cannot, or the schema is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest

from ferrum.core.errors import InvalidSchema
from ferrum.core.output_format import ArgumentStyle, Tool
from ferrum.formats.known_formats import KNOWN
from ferrum.formats.writing import write_calls
from ferrum.grammar.reply_guidance import tool_guidance
from ferrum.grammar.tools import tools_of
from format_kit import ToyTokenizer, marker_texts, parsed
from grammar_kit import ToyMatcher

TEXT = {"type": "string"}
NODE = {
    "type": "object",
    "properties": {
        "zip": {"type": "string", "minLength": 2},
        "next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]},
    },
    "required": ["zip"],
    "additionalProperties": False,
}


def named(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of one required argument."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


Cases = list[tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]]
CASES: Cases = [
    (named({**TEXT, "minLength": 1}), [{"a": "abc"}, {"a": "a\n"}, {"a": "\n"}, {"a": "x<y"}], [{"a": ""}]),
    (named({**TEXT, "maxLength": 3}), [{"a": "abc"}, {"a": ""}, {"a": "é🦀\n"}], [{"a": "abcd"}]),
    (named({**TEXT, "pattern": "^a|b$"}), [{"a": "ax"}, {"a": "xb"}], [{"a": "xa"}, {"a": "bx"}]),
    (named({**TEXT, "pattern": "x$|^y"}), [{"a": "ax"}, {"a": "ya"}], [{"a": "xa"}]),
    (named({**TEXT, "pattern": "^[a-z/ ]+$", "minLength": 3}), [{"a": "a/b"}], [{"a": "ab"}, {"a": "a1b"}]),
    (named({**TEXT, "format": "date"}), [{"a": "2024-02-29"}], [{"a": "2023-02-29"}, {"a": ""}]),
    (named({**TEXT, "enum": ["a", "ab", "a b/c"]}), [{"a": "a"}, {"a": "a b/c"}], [{"a": "b"}]),
    (named({"const": "yes"}), [{"a": "yes"}], [{"a": "no"}]),
    (named({"type": ["string", "null"], "maxLength": 4}), [{"a": "abc"}, {"a": None}], [{"a": "abcde"}]),
    (named({"anyOf": [{**TEXT, "pattern": "^[a-z]+$"}, {"type": "integer"}]}), [{"a": "abc"}, {"a": 5}], [{"a": "A"}]),
    (named({"enum": ["x", 1, None]}), [{"a": "x"}, {"a": 1}, {"a": None}], [{"a": "y"}, {"a": 2}]),
    (named({"type": "integer", "minimum": 3}), [{"a": 3}], [{"a": 2}]),
    (named({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}), [{"a": [1, 2]}],
     [{"a": []}, {"a": [1, 2, 3]}, {"a": ["x"]}]),
    (named({"prefixItems": [{"type": "integer"}, TEXT], "items": False, "type": "array"}),
     [{"a": []}, {"a": [1]}, {"a": [1, "x"]}], [{"a": ["x"]}, {"a": [1, "x", 2]}]),
    (named({"type": "object", "additionalProperties": {"type": "integer"}}), [{"a": {"k": 1}}, {"a": {}}],
     [{"a": {"k": None}}]),
    ({"$ref": "#/$defs/N", "$defs": {"N": NODE}},
     [{"zip": "ab"}, {"zip": "ab", "next": {"zip": "cd", "next": None}}],
     [{}, {"zip": "a"}, {"zip": "ab", "next": {}}]),
    ({"allOf": [named({**TEXT, "maxLength": 3}), {"properties": {"a": {"minLength": 2}}}]}, [{"a": "ab"}],
     [{"a": "a"}, {"a": "abcd"}, {}]),
    ({"type": "object", "anyOf": [named({"const": "x"}), {**named({**TEXT, "minLength": 2}), "required": []}]},
     [{"a": "x"}, {"a": "yz"}, {}], [{"a": "y"}]),
    ({"type": "object", "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
        {"type": "object", "properties": {"kind": {"const": "b"}, "t": TEXT}, "required": ["kind", "t"]}]},
     [{"kind": "a", "n": 1}, {"kind": "b", "t": "x"}], [{"kind": "a"}, {"kind": "b", "n": 1}, {"kind": "c"}]),
    ({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}}, "required": ["kind"],
      "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["n"]}},
     [{"kind": "a", "n": 1}, {"kind": "b"}], [{"kind": "a"}]),
    ({"type": "object", "properties": {"a": TEXT, "b": TEXT}, "dependentRequired": {"a": ["b"]}},
     [{"a": "x", "b": "y"}, {"b": "y"}, {}], [{"a": "x"}]),
    ({"type": "object", "properties": {"a": TEXT}, "required": ["a", "b"]}, [{"a": "x", "b": "y"}], [{"a": "x"}]),
]  # fmt: skip
REFUSED: dict[str, dict[str, Any]] = {
    "#/patternProperties": {"patternProperties": {"^a": {"type": "integer"}}},
    "#/minProperties": {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "minProperties": 1},
    "#/maxProperties": {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "maxProperties": 1},
    "#/properties/a": named({"anyOf": [{**TEXT, "maxLength": 2}, {"type": "array"}]}),
}
"""Schemas by the pointer at which calls in tags refuse them."""


STYLES = ["qwen-xml", "seed-oss", "glm-4.7", "minimax-m2", "minicpm5", "dsml", "gemma4", "pythonic", "hermes"]


def strict(schema: dict[str, Any]) -> tuple[Tool, ...]:
    return tools_of([{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}]).tools


def matcher_of(name: str, schema: dict[str, Any], tokens: bool = True) -> tuple[ToyMatcher, ToyTokenizer]:
    """Return a matcher of a required call, and its vocabulary."""
    toy = ToyTokenizer(marker_texts(KNOWN[name]) if tokens else ())
    guidance = tool_guidance(
        KNOWN[name], strict(schema), "required", parallel=False, opened=False, budget=None, tokenizer=toy
    )
    assert guidance is not None and guidance.grammar is not None
    return ToyMatcher(guidance.grammar.source, toy), toy


def call(name: str, arguments: dict[str, Any]) -> str:
    form = KNOWN[name]
    assert form.calls is not None
    text = write_calls(form.calls, [("f", arguments)], ids=["0" if name == "kimi-k2" else "abcdefgh1"])
    return text.removeprefix(form.prefix)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "bytes"])
@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize(("schema", "yes", "no"), CASES, ids=[json.dumps(case[0])[:70] for case in CASES])
def test_strict_call_is_possible_exactly_if_its_arguments_are_valid(
    schema: dict[str, Any], yes: list[dict[str, Any]], no: list[dict[str, Any]], name: str, tokens: bool
) -> None:
    matcher, toy = matcher_of(name, schema, tokens)
    valid = jsonschema_rs.validator_for(schema, validate_formats=True)
    for arguments in yes:
        text = call(name, arguments)
        assert valid.is_valid(arguments) and matcher.accepts(text), matcher.refused_at(text)
        assert json.loads(parsed(text, KNOWN[name], strict(schema), toy).calls[0].arguments) == arguments
    for arguments in no:
        assert not valid.is_valid(arguments) and not matcher.accepts(call(name, arguments)), arguments


@pytest.mark.parametrize("name", STYLES)
def test_every_text_of_a_strict_call_is_read_as_valid_arguments(name: str) -> None:
    form = KNOWN[name]
    assert form.calls is not None
    ends = (form.calls.close, form.calls.section_close, form.calls.arguments.value_close, form.calls.arguments.quote)
    hints = [each for each in (*ends, '"', "}", ")", "'", "]", "a", "5", "null", "x", "b") if each]
    for schema, _, _ in CASES:
        matcher, toy = matcher_of(name, schema)
        chance = random.Random(name)
        walk = matcher.walk(chance, hints, 120)
        if walk is not None:
            text = toy.decode(walk, skip_special_tokens=False)
            found = parsed(form.prefix + text, form, strict(schema), toy).calls[0].arguments
            valid = jsonschema_rs.validator_for(schema, validate_formats=True)
            assert valid.is_valid(json.loads(found)), (text, found)


@pytest.mark.parametrize(("pointer", "schema"), REFUSED.items(), ids=REFUSED)
def test_what_tags_cannot_enforce_is_refused_by_its_pointer(pointer: str, schema: dict[str, Any]) -> None:
    for name, form in KNOWN.items():
        assert form.calls is not None
        if form.calls.arguments.style is ArgumentStyle.TAGGED and not form.calls.arguments.string_mark:
            with pytest.raises(InvalidSchema, match=f"^tools: {pointer} of the strict tool 'f'"):
                matcher_of(name, schema)


def test_patterns_by_properties_of_characters_are_refused_where_text_is_escaped() -> None:
    schema = named({**TEXT, "pattern": r"^\p{Lu}$"})
    assert matcher_of("qwen-xml", schema)[0].accepts(call("qwen-xml", {"a": "É"}))
    with pytest.raises(InvalidSchema, match=r"^tools: #/properties/a/pattern of the strict tool 'f'"):
        matcher_of("pythonic", schema)


@pytest.mark.parametrize("name", ["qwen-xml", "gemma4", "hermes"])
def test_schema_that_only_the_library_refuses_is_named_with_its_pointer(name: str) -> None:
    with pytest.raises(InvalidSchema, match=r"^tools: the schema of the strict tool 'f': #/properties/a: ") as caught:
        matcher_of(name, named({**TEXT, "pattern": "^a$", "minLength": 2}))
    assert "\n" not in caught.value.message
