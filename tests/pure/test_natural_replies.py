"""What a model says anyway, and what the limits of a request allow, passes its guide token by token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_templates_round_trip import FORMATS

from ferrum.core.output_format import ArgumentStyle, CallStyle, OutputFormat, Tool
from ferrum.formats.known_formats import KNOWN
from ferrum.formats.writing import write_calls
from format_kit import ToyTokenizer, marker_texts
from natural_replies import CONTENT, TOOL, Chats, calls, contents, replies

ALL = dict({replace(form, name="", source=""): (name, form) for name, form in (FORMATS | dict(KNOWN)).items()}.values())
"""The formats of published templates, and the hand-written ones, each once."""


TAGGED = [name for name, form in ALL.items() if form.calls is not None and form.calls.arguments.key_open]


def chats_of(name: str, tokens: bool) -> Chats:
    return Chats(ALL[name], ToyTokenizer(marker_texts(ALL[name]) if tokens else ()))


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "bytes"])
@pytest.mark.parametrize("name", ALL)
def test_content_of_a_form_comes_as_without_limits(name: str, tokens: bool) -> None:
    chats = chats_of(name, tokens)
    guides = [chats.guide(mode, schema=True) for mode in ("none", "auto")]
    for text in replies(ALL[name], contents(ALL[name])):
        assert chats.read(text).content == CONTENT, text
        for guide in guides:
            assert chats.refused(guide, text) is None, text


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "bytes"])
@pytest.mark.parametrize("name", ALL)
def test_calls_come_as_without_limits(name: str, tokens: bool) -> None:
    chats = chats_of(name, tokens)
    guides = [
        chats.guide("required", schema=False),
        chats.guide("required", schema=False, named=TOOL.name),
        chats.guide("auto", schema=True),
    ]
    for text in replies(ALL[name], calls(ALL[name])):
        assert [each.name for each in chats.read(text).calls] == [TOOL.name], text
        for guide in guides:
            assert chats.refused(guide, text) is None, text


def check_calls(
    chats: Chats, name: str, tool: Tool, written: Sequence[Mapping[str, Any]], meant: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Calls are read as they are meant, and pass the guides of a free and of a required call."""
    calls = ALL[name].calls
    assert calls is not None
    ids = ["0" if name == "kimi-k2" else "abcdefgh1"]
    guides = [chats.guide(mode, schema=mode == "auto", tool=tool) for mode in ("auto", "required")]
    for arguments, expected in zip(written, meant or written, strict=True):
        text = write_calls(calls, [(tool.name, arguments)], ids=ids).removeprefix(ALL[name].prefix)
        (read,) = chats.read(text, tool).calls
        assert json.loads(read.arguments) == expected, text
        assert [chats.refused(guide, text) for guide in guides] == [None, None], text


CLOSED = ("return '{}'", "{}", "a{}\nb", "{0}{0} {0}", "<{}", "a{}</b>")
"""Texts with a closing tag at each place."""


@pytest.mark.parametrize("name", TAGGED)
def test_closing_tag_within_a_value_is_text(name: str) -> None:
    calls = ALL[name].calls
    assert calls is not None
    inner = "".join((calls.arguments.key_open, calls.arguments.key_close, calls.arguments.value_close))
    toy = ToyTokenizer(each for each in marker_texts(ALL[name]) if each not in inner)
    chats, tag = Chats(ALL[name], toy), calls.arguments.value_close.strip()
    kinds = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
    for strict in (False, True):
        tool = Tool(name="write", parameters=json.dumps(kinds | {"required": ["path", "content"]}), strict=strict)
        texts = [text.format(tag) for text in CLOSED]
        check_calls(chats, name, tool, [{"path": text, "content": text} for text in texts])


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}},
        {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
        {"properties": {"a": {"type": "string"}}},
        {"additionalProperties": {"type": "string"}},
        {},
    ],
)
def test_arguments_without_a_name_in_an_open_schema_may_come(name: str, schema: Mapping[str, Any]) -> None:
    more = schema.get("additionalProperties", {}).get("type")
    arguments = {"a": "x", "größe 2.b": 5 if more == "integer" else "12 x"}
    for tokens in (True, False):
        check_calls(chats_of(name, tokens), name, Tool(name="f", parameters=json.dumps(schema)), [arguments])


@pytest.mark.parametrize("name", TAGGED)
def test_arguments_without_a_name_in_a_closed_schema_may_not_come(name: str) -> None:
    schema = {"properties": {"a": {"type": "string"}}, "additionalProperties": False}
    chats, calls = chats_of(name, tokens=True), ALL[name].calls
    assert calls is not None
    guide = chats.guide("required", schema=False, tool=Tool(name="f", parameters=json.dumps(schema)))
    assert chats.refused(guide, write_calls(calls, [("f", {"a": "x"})])) is None
    assert chats.refused(guide, write_calls(calls, [("f", {"b": "x"})])) is not None


@pytest.mark.parametrize("name", ["dsml", "dsml-v4"])
@pytest.mark.parametrize(
    ("strict", "schema", "values"),
    [
        (True, {"properties": {"a": {"type": ["string", "null"]}}}, ["Paris", None, "null"]),
        (False, {"properties": {"a": {"type": ["string", "null"]}}}, ["Paris", None, "null"]),
        (False, {"properties": {"a": {"type": ["string", "integer"]}}}, ["Paris", 5, "123"]),
        (False, {}, ["Paris", 5, "123", None, {"a": [1]}]),
    ],
)
def test_mark_of_a_value_is_left_to_the_model(
    name: str, strict: bool, schema: Mapping[str, Any], values: list[Any]
) -> None:
    tool = Tool(name="f", parameters=json.dumps(schema), strict=strict)
    for tokens in (True, False):
        check_calls(chats_of(name, tokens), name, tool, [{"a": value} for value in values])


NAMES = ("größe", "a b", "a.b-c", "2x", "漢", 'a"b', "it's", "a/b", "@id", "$ref", "a:b", "a,b", "a=b", "{a}", "x[0]")


def quoted(name: str, form: OutputFormat) -> str:
    """Return a name with quotes, if a format needs them to show where it ends."""
    assert form.calls is not None
    needed = any(each in ":,={}[]" for each in name)
    if needed and form.calls.style is CallStyle.PYTHONIC:
        return json.dumps(name)
    gemma = form.calls.arguments.style is ArgumentStyle.GEMMA
    return f"{form.calls.arguments.quote}{name}{form.calls.arguments.quote}" if needed and gemma else name


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", KNOWN)
def test_every_name_in_properties_can_be_written(name: str, strict: bool) -> None:
    chats = chats_of(name, tokens=True)
    schemas = {key: {"type": "string"} for key in NAMES}
    schema = {"type": "object", "properties": schemas, "additionalProperties": False}
    tool = Tool(name="f", parameters=json.dumps(schema), strict=strict)
    written = [{quoted(each, ALL[name]): "x"} for each in NAMES]
    check_calls(chats, name, tool, written, [{each: "x"} for each in NAMES])
