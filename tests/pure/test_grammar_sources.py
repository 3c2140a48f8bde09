"""Grammars of structured outputs: what they accept, and which hostile ones are refused within a second."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from byte_matcher import ByteMatcher
from ferrum.core.errors import RequestError
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.grammar.constraint_grammars import checked_grammar

TAGS = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "object"}, "end": "</f>"},
    ],
    "triggers": ["<f"],
}
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
LINES = {"type": "regex", "pattern": r"[a-z\n]*"}
CALL = {"type": "tag", "begin": "<f=a>", "content": NUMBER, "end": "</f>"}


def newer(part: dict[str, Any]) -> dict[str, Any]:
    return {"structural_tag": {"type": "structural_tag", "format": part}}


ACCEPTED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"json_object": True}, ["{}", '{"a":1}', '{"a": [1, 2]}', '{\n    "a": 1\n}', '{\n\t"a": 1\n}'],
     ["[]", " {}", "{} ", '{"a":  1}', '{"a":\n\n1}']),
    ({"json_object": True, "disable_any_whitespace": True}, ['{"a":1}'], ['{"a": 1}']),
    ({"json_object": True, "whitespace_pattern": r"\s{0,2}"}, ['{"a":  1}'], ['{"a":   1}', '{"a":\v1}']),
    ({"json": {"properties": {"a": {}}}, "disable_additional_properties": True}, ['{"a":1}', "{}"], ['{"b":1}']),
    # An escaped name would be another text for the same name, so that JSON has it twice.
    ({"json": {"properties": {"a": {"type": "integer"}}}}, ['{"a":1,"b":2}'], ['{"\\u0061":"x"}']),
    ({"choice": ["yes", "no", "no/x", 'a"b\n']}, ["yes", "no", "no/x", 'a"b\n'], ["n", "yesno", ""]),
    ({"regex": r"\d+/[/a]"}, ["12/a", "12//"], ["1", "x12/a"]),
    ({"regex": "^(a|b)\n?$"}, ["a", "b\n"], ["ab"]),
    ({"grammar": 'start: "a" B\nB: /[0-9]+/'}, ["a1"], ["a"]),
    ({"grammar": 'root ::= "a" b\nb ::= [0-9]+'}, ["a12"], ["a"]),
    ({"grammar": 'start: "/" %json {"type": "integer", "minimum": 3} // %json'}, ["/5"], ["/1"]),
    ({"grammar": 'root ::= start "!"\nstart ::= [a-z!]+'}, ["a!", "!!"], ["a", "!"]),
    ({"structural_tag": TAGS}, ["hi", "hi<f=a>12</f> x", "<f=b>{}</f>\n<f=a>1</f>", "<"],
     ["<f", "<f=c>", "<f=a>{}</f>"]),
    (newer({"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL], "at_least_one": True}),
     ["a<f=a>1</f>b"], ["a", "<f=a>"]),
    (newer({"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL], "stop_after_first": True}),
     ["a", "a<f=a>1</f>"], ["<f=a>1</f>b"]),
    (newer({"type": "sequence", "elements": [{**CALL, "content": {"type": "any_text"}},
                                             {"type": "const_string", "value": "!"}]}),
     ["<f=a>x\n</f>!"], ["<f=a>x!", "!"]),
    # A part takes no text of the next one, however much of it it could match.
    (newer({"type": "tag", "begin": "<f>", "content": LINES, "end": "\n</f>"}),
     ["<f>a\n\n</f>", "<f>\n</f>"], ["<f>a</f>"]),
    (newer({"type": "tag", "begin": "<f>", "content": {"type": "grammar", "grammar": r"root ::= [a-z\n]*"},
            "end": "\n</f>"}), ["<f>a\n\n</f>", "<f>\n</f>"], ["<f>a</f>"]),
    (newer({"type": "sequence", "elements": [{"type": "or", "elements": [LINES, LINES]},
                                             {"type": "const_string", "value": "a"}, NUMBER]}), ["ba1", "a1"], ["b1"]),
    (newer({"type": "tags_with_separator", "tags": [CALL], "separator": ","}),
     ["", "<f=a>1</f>", "<f=a>1</f>,<f=a>2</f>"], ["<f=a>1</f>,"]),
    (newer({"type": "or", "elements": [NUMBER, {"type": "grammar", "grammar": 'root ::= "x"'},
                                       {"type": "regex", "pattern": "y+"}]}), ["1", "x", "yy"], ["z"]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "yes", "no"), ACCEPTED, ids=[json.dumps(each[0])[:60] for each in ACCEPTED])
def test_grammar_accepts_what_the_constraint_says(values: dict[str, Any], yes: list[str], no: list[str]) -> None:
    matcher = ByteMatcher(checked_grammar(StructuredOutputs(**values)))
    assert {text: matcher.accepts(text) for text in [*yes, *no]} == {
        **dict.fromkeys(yes, True),
        **dict.fromkeys(no, False),
    }


def chain(length: int) -> dict[str, Any]:
    """Return a schema of references, each within the one before."""
    links = {f"d{each}": {"items": {"$ref": f"#/$defs/d{each + 1}"}} for each in range(length)}
    return {"$defs": {**links, f"d{length}": True}, "$ref": "#/$defs/d0"}


def doubled(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for each in range(depth):
        schema = {"if": schema, "then": {"minimum": each}, "else": {"maxLength": each}}
    return schema


HOSTILE: dict[str, dict[str, Any]] = {
    "look-ahead": {"regex": "(?=a)"},
    "long regex": {"regex": "(a|b)?" * 20_000},
    "no grammar": {"grammar": "nonsense"},
    "library's own form": {"grammar": '{"grammars": []}'},
    "attribute": {"grammar": "start: x\nx[max_tokens=3]: /b*/"},
    "options": {"grammar": '%llguidance {"no_forcing": true}\nstart: "a"'},
    "nested schema": {"grammar": 'start: %json {"uniqueItems": true}'},
    "chain of rules": {"grammar": "\n".join(f'r{each}: "x" r{each + 1}?' for each in range(5000))},
    "many options": {"grammar": "root ::= " + " | ".join(f'"{each * 7919}"' for each in range(9000))},
    "nested groups": {"grammar": f"root ::= {'(' * 5000}'a'{')' * 5000}"},
    "white space": {"json_object": True, "whitespace_pattern": "x*"},
    "no trigger": {"structural_tag": {**TAGS, "triggers": ["x"]}},
    "unknown part": newer({"type": "qwen_xml_parameter", "json_schema": {}}),
    "text in the middle": newer({"type": "sequence", "elements": [{"type": "any_text"}, NUMBER]}),
    "chain of references": {"json": chain(9000)},
    "patterns on one string": {"json": {"allOf": [{"pattern": f"a{{1,{each}}}b"} for each in range(1, 40)]}},
    "nested conditions": {"json": doubled(20)},
    "product of options": {"json": {"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(6)]}
                                              for i in range(30)]}},
    "many schemas": {"json": {"properties": {f"p{each}": {"type": "string"} for each in range(10_001)}}},
}  # fmt: skip


@pytest.mark.parametrize("values", HOSTILE.values(), ids=HOSTILE)
def test_hostile_constraint_is_refused_soon(values: dict[str, Any]) -> None:
    start = time.process_time()
    with pytest.raises(RequestError) as caught:
        checked_grammar(StructuredOutputs(**values))
    assert time.process_time() - start < 10 and caught.value.param is not None and len(str(caught.value)) < 1000
