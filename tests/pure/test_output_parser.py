"""Outputs to parts: the hand-written formats, borders of markers, and texts that are no calls."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest

from ferrum.core.output_format import (
    Arguments,
    ArgumentStyle,
    Calls,
    CallStyle,
    OutputFormat,
    Reading,
    Reasoning,
    Tool,
)
from ferrum.formats.known_formats import KNOWN
from ferrum.formats.output_parser import OutputParser
from ferrum.formats.output_parts import Call, Message, Part, PartKind, joined_parts, message_of
from ferrum.formats.patterns import format_texts
from ferrum.formats.writing import write_calls
from format_kit import ToyTokenizer, cut_pushes, marker_texts, parsed, parts_of, pushes_of
from format_samples import SAMPLES, TOOLS, calls_begin

CUTS = 40
"""Places where an output is cut, of each format."""


def toys(name: str) -> list[ToyTokenizer]:
    """Vocabularies with all markers as special tokens, as plain added tokens, with some of them, and with none."""
    texts = marker_texts(KNOWN[name])
    return [ToyTokenizer(texts), ToyTokenizer(texts, special=False), ToyTokenizer(texts[::2]), ToyTokenizer()]


def without_ids(message: Message) -> Message:
    """Return a message without the ids of its calls."""
    return replace(message, calls=tuple(replace(each, id="") for each in message.calls))


def test_every_known_format_has_a_sample() -> None:
    assert SAMPLES.keys() == KNOWN.keys()


@pytest.mark.parametrize("name", KNOWN)
def test_output_is_read_whatever_markers_are_tokens(name: str) -> None:
    sample = SAMPLES[name]
    for toy in toys(name):
        assert without_ids(parsed(sample.text, KNOWN[name], TOOLS, toy, opened=sample.opened)) == sample.message


@pytest.mark.parametrize(
    "rounds", [pytest.param(2_000, id="few"), pytest.param(100_000, id="many", marks=pytest.mark.soak)]
)
def test_every_cutting_gives_the_same_parts(rounds: int) -> None:
    chance = random.Random(rounds)
    cases = [
        (toy, Reading(format=KNOWN[name], tools=TOOLS, opened=sample.opened), sample.text)
        for name, sample in SAMPLES.items()
        for toy in (ToyTokenizer(marker_texts(KNOWN[name])), ToyTokenizer())
    ]
    whole = [parts_of(pushes_of(text, toy), reading, toy) for toy, reading, text in cases]
    for _ in range(rounds):
        index = chance.randrange(len(cases))
        toy, reading, text = cases[index]
        assert parts_of(cut_pushes(text, toy, chance), reading, toy) == whole[index]


@pytest.mark.parametrize(
    "rounds", [pytest.param(2_000, id="few"), pytest.param(100_000, id="many", marks=pytest.mark.soak)]
)
def test_damaged_and_random_outputs_never_raise(rounds: int) -> None:
    chance = random.Random(rounds)
    names = list(KNOWN)
    vocabularies = {name: toys(name) for name in names}
    for _ in range(rounds):
        name = chance.choice(names)
        toy = chance.choice(vocabularies[name])
        pushes = pushes_of(SAMPLES[name].text, toy)
        place = chance.randrange(len(pushes))
        random_ids = [chance.randrange(toy.vocab_size) for _ in range(chance.randrange(30))]
        pushes[place : place + chance.randrange(9)] = [(each, toy.token_bytes(each)) for each in random_ids]
        reading = Reading(format=KNOWN[name], tools=TOOLS, opened=chance.random() < 0.3)
        parts = parts_of(pushes[: chance.randrange(len(pushes) + 1)], reading, toy)
        assert_in_order(parts)


def assert_in_order(parts: tuple[Part, ...]) -> None:
    """Between a call and its end stand only arguments, and every text is valid."""
    inside = False
    for part in parts:
        part.text.encode()
        if part.kind in (PartKind.CALL, PartKind.ARGUMENTS, PartKind.END):
            assert inside is (part.kind is not PartKind.CALL)
            inside = part.kind is not PartKind.END
        else:
            assert not inside
    assert not inside


@pytest.mark.parametrize("name", ["qwen3", "qwen-xml", "harmony", "gemma4", "mistral", "glm", "dsml", "lfm2"])
def test_call_inside_an_open_thought_is_a_call_and_ends_it(name: str) -> None:
    form, sample = KNOWN[name], SAMPLES[name]
    begin = calls_begin(sample.text, form)
    message = parsed(f"Hm.\n{sample.text[begin:]}", form, TOOLS, opened=True)
    assert message.reasoning == "Hm." and message.content is None
    assert message.calls == sample.message.calls


@pytest.mark.parametrize("name", ["hermes", "gemma4", "mistral", "kimi-k2", "glm", "harmony"])
def test_characters_of_a_marker_without_its_token_are_content(name: str) -> None:
    toy = ToyTokenizer(marker_texts(KNOWN[name]))
    text = SAMPLES[name].text
    pushes = [(byte, bytes([byte])) for byte in text.encode()]
    message = message_of(parts_of(pushes, Reading(format=KNOWN[name], tools=TOOLS), toy))
    assert message.calls == () and message.content == text


MALFORMED = {
    "unknown name": '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
    "prose": "Write <tool_call> and then <tool_call>{ or }.",
    "no name": '<tool_call>\n{"arguments": {"a": "<b>"}}\n</tool_call>',
    "unfinished": 'Hi. <tool_call>\n{"name": "pin',
    "name that goes on": '<tool_call>{"name": "pingpong", "arguments": {}}</tool_call>',
    "not an object": "<tool_call>ping</tool_call>",
    "open marker": "a <tool_cal",
    "white space": "a \n<tool_call>\n\n",
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_text_that_is_no_call_stays_content_in_full(text: str) -> None:
    assert parsed(text, KNOWN["hermes"], TOOLS, ToyTokenizer()) == message_of([Part(PartKind.CONTENT, text)])


def test_call_after_a_malformed_one_is_a_call() -> None:
    text = '<tool_call><tool_call>{"name": "none"}<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    message = parsed(text, KNOWN["hermes"], TOOLS, ToyTokenizer())
    assert message.content == '<tool_call><tool_call>{"name": "none"}' and message.calls == (Call("ping", "{}"),)


def test_begun_call_keeps_its_arguments_and_ends() -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bo'
    reading, toy = Reading(format=KNOWN["hermes"], tools=TOOLS), ToyTokenizer()
    kinds = [(part.kind, part.text) for part in parts_of(pushes_of(text, toy), reading, toy)]
    assert kinds == [(PartKind.CALL, "weather"), (PartKind.ARGUMENTS, '{"city": "Bo'), (PartKind.END, "")]


@pytest.mark.parametrize("name", KNOWN)
def test_cut_output_has_no_markup_and_only_its_last_call_is_incomplete(name: str) -> None:
    """An output that its limit ends anywhere reads as a beginning of the whole one."""
    sample = SAMPLES[name]
    whole, chance = sample.message, random.Random(name)
    for toy in (ToyTokenizer(marker_texts(KNOWN[name])), ToyTokenizer()):
        pushes = pushes_of(sample.text, toy)
        reading = Reading(format=KNOWN[name], tools=TOOLS, opened=sample.opened)
        for size in sorted(chance.sample(range(len(pushes)), min(CUTS, len(pushes)))):
            message = without_ids(message_of(parts_of(pushes[:size], reading, toy, cut=True)))
            said = sample.text[:size]
            assert (whole.reasoning or "").startswith((message.reasoning or "").rstrip(" \n\ufffd")), said
            assert (whole.content or "").startswith((message.content or "").rstrip(" \n\ufffd")), said
            assert len(message.calls) <= len(whole.calls), said
            for each, expected in zip(message.calls, whole.calls, strict=False):
                assert each == expected or each is message.calls[-1], said
                assert each.name == expected.name, said
                assert expected.arguments.startswith(each.arguments.rstrip("\ufffd")), said
                assert each.arguments == expected.arguments or not each.complete, said


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": "a long text',
        '{"ans',
        '{"name": "Alice", "age": 3',
        '{"name": "someone"',
        "[1, 2",
        "[web",
        '{"answer": {}}',
    ],
)
@pytest.mark.parametrize("name", ["llama3-json", "pythonic"])
def test_cut_text_that_no_call_begins_with_is_content(name: str, text: str) -> None:
    toy, reading = ToyTokenizer(), Reading(format=KNOWN[name], tools=TOOLS)
    assert message_of(parts_of(pushes_of(text, toy), reading, toy, cut=True)) == Message(None, text, ())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lfm2", "<|tool_call_start|>[weather(days={})]<|tool_call_end|>"),
        ("gemma4", "<|tool_call>call:weather{{days:{}}}<tool_call|>"),
        ("qwen-xml", "<tool_call>\n<function=weather>\n<parameter=days>\n{}\n</parameter>\n</function>\n</tool_call>"),
    ],
)
def test_integers_of_any_length_stay_integers(name: str, text: str) -> None:
    for digits in ("1" * 5000, "-" + "1" * 5000, "12"):
        [call] = parsed(text.format(digits), KNOWN[name], TOOLS).calls
        assert call.arguments == f'{{"days": {digits}}}'


def test_nothing_is_a_call_without_tools() -> None:
    text = SAMPLES["hermes"].text
    assert parsed(text, KNOWN["hermes"], (), ToyTokenizer()).content == text


def test_special_tokens_add_no_text() -> None:
    toy = ToyTokenizer([*marker_texts(KNOWN["hermes"]), "<|im_end|>"])
    assert parsed("a<|im_end|>b</tool_call>", KNOWN["hermes"], TOOLS, toy).content == "ab"


@pytest.mark.parametrize("name", ["hermes", "qwen-xml", "gemma4", "pythonic", "mistral", "glm", "olmo3"])
def test_strings_of_arguments_stream(name: str) -> None:
    sample, toy = SAMPLES[name], ToyTokenizer(marker_texts(KNOWN[name]))
    parser = OutputParser(Reading(format=KNOWN[name], tools=TOOLS, opened=sample.opened), toy)
    head = sample.text[: re.search(r"Bo\\?.n", sample.text).end()]  # type: ignore[union-attr]
    parts = [part for token, data in pushes_of(head, toy) for part in parser.push(token, data)]
    assert joined_parts(parts)[-1].text == '{"city": "Bo\\"n'


def test_text_is_held_back_only_while_it_may_be_a_marker() -> None:
    parser = OutputParser(Reading(format=KNOWN["qwen3"], tools=TOOLS), ToyTokenizer())
    out = ["".join(part.text for part in parser.push(byte, bytes([byte]))) for byte in b"a < b <tool_box>\n c"]
    assert "".join(out[:5]) == "a < b" and "".join(out) == "a < b <tool_box>\n c"
    assert out[11] == "" and out[12] == " <tool_b"


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("5", {}, 5),
        ("five", {}, "five"),
        ("five", {"type": "integer"}, "five"),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string", "nullable": True}, None),
        ("5", {"type": ["string", "null"]}, "5"),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("b", {"enum": ["a", "b"]}, "b"),
        ("5", {"$ref": "#/$defs/text"}, "5"),
        ("True", {"type": "boolean"}, True),
        ("{'a': None}", {"type": "object"}, {"a": None}),
        ('{"a": [1, NaN]}', {}, '{"a": [1, NaN]}'),
        ("  two\n\nlines ", {"type": "string"}, "  two\n\nlines "),
        ("a</parameter>\nb", {"type": "string"}, "a</parameter>\nb"),
        ("[" * 3000, {}, "[" * 3000),
    ],
)
def test_untyped_values_have_the_types_of_the_schema(text: str, schema: object, value: object) -> None:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": {"text": {"type": "string"}}}
    output = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
    (call,) = parsed(output, KNOWN["qwen-xml"], (Tool(name="f", parameters=json.dumps(whole)),), ToyTokenizer()).calls
    assert json.loads(call.arguments) == {"x": value}


TEXT = {"type": "string"}
PART = {"properties": {"x": TEXT}}


@pytest.mark.parametrize("name", ["qwen-xml", "seed-oss", "glm-4.7", "minimax-m2", "minicpm5"])
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/part"},
        {"allOf": [{"properties": {"y": TEXT}}, PART]},
        {"allOf": [{"$ref": "#/$defs/part"}], "properties": {"y": TEXT}},
        {"anyOf": [PART, {"properties": {"y": {"type": "integer"}}}]},
        {"oneOf": [{"$ref": "#/$defs/part"}, {"properties": {"y": TEXT}}]},
        {"patternProperties": {"^x": TEXT}},
        {"properties": {"y": {"type": "integer"}}, "additionalProperties": TEXT},
        {"properties": {"x": {"allOf": [{"minLength": 1}, TEXT]}}},
        {"properties": {"x": {"$ref": "#/$defs/text", "description": "d"}}},
        {"$ref": "#"} | PART,
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_types_are_found_wherever_a_schema_says_them(name: str, schema: dict[str, object], strict: bool) -> None:
    calls = KNOWN[name].calls
    assert calls is not None
    whole = {**schema, "$defs": {"part": PART, "text": TEXT}}
    tool = Tool(name="f", parameters=json.dumps(whole), strict=strict)
    (call,) = parsed(write_calls(calls, [("f", {"x": "12345"})]), KNOWN[name], (tool,), ToyTokenizer()).calls
    assert json.loads(call.arguments) == {"x": "12345"}


PATCH = 'one "two"\n\\three é 🦀'
CUSTOM = {
    "hermes": f'<tool_call>\n{{"name": "patch", "arguments": {json.dumps({"input": PATCH})}}}\n</tool_call>',
    "llama3-json": f'{{"name": "patch", "parameters": {json.dumps(PATCH)}}}',
    "harmony": f"<|channel|>commentary to=functions.patch<|message|>{json.dumps({'input': PATCH}, ensure_ascii=False)}",
    "qwen-xml": f"<tool_call>\n<function=patch>\n<parameter=input>\n{PATCH}\n</parameter>\n</function>\n</tool_call>",
    "gemma4": f'<|tool_call>call:patch{{input:<|"|>{PATCH}<|"|>}}<tool_call|>',
    "pythonic": f"[patch(input={PATCH!r})]",
}


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_tool_gets_its_text_in_every_style(name: str) -> None:
    for toy in toys(name):
        assert parsed(CUSTOM[name], KNOWN[name], TOOLS, toy).calls == (Call("patch", PATCH),)


def test_lone_surrogates_and_invalid_bytes_become_replacement_characters() -> None:
    text = '<tool_call>{"name": "patch", "arguments": {"input": "\\ud83d\\ud83e\\udd80\\udd80x"}}</tool_call>'
    assert parsed(text, KNOWN["hermes"], TOOLS).calls == (Call("patch", "\ufffd🦀\ufffdx"),)
    assert parsed(b"a\xffb\xc3", KNOWN["hermes"], TOOLS).content == "a\ufffdb\ufffd"


def test_tokens_of_reasoning_are_those_with_its_markers() -> None:
    toy = ToyTokenizer(marker_texts(KNOWN["qwen3"]))
    parser = OutputParser(Reading(format=KNOWN["qwen3"], tools=TOOLS), toy)
    counted = []
    for token, data in pushes_of("<think>\nHm</think>\n\nHi", toy):
        parser.push(token, data)
        counted.append(parser.in_reasoning)
    assert counted == [True] * 5 + [False] * 4


def test_reasoning_that_is_not_separated_is_content() -> None:
    text = "<think>\nHm.\n</think>\n\nHi."
    assert parsed(text, KNOWN["qwen3"], TOOLS, ToyTokenizer(), reasoning=False).content == text
    harmony = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi."
    assert parsed(harmony, KNOWN["harmony"], TOOLS, reasoning=False).content == "Hm.Hi."


def test_several_thoughts_and_a_trailing_one_are_reasoning() -> None:
    message = parsed("<think>a</think>b<think>c</think>d<think>", KNOWN["qwen3"], TOOLS)
    assert (message.reasoning, message.content) == ("ac", "bd")


def test_arguments_before_the_name_and_as_text_are_read() -> None:
    text = '<tool_call>{"id": [1], "arguments": "{\\"city\\": \\"x\\"}", "name": "weather"}</tool_call>'
    assert parsed(text, KNOWN["hermes"], TOOLS).calls == (Call("weather", '{"city": "x"}'),)


@pytest.mark.parametrize("style", CallStyle)
@pytest.mark.parametrize("arguments", ArgumentStyle)
def test_formats_without_any_marker_read_text_to_its_end(style: CallStyle, arguments: ArgumentStyle) -> None:
    calls = Calls(style=style, arguments=Arguments(style=arguments, quote=""))
    form = OutputFormat(name="file", source="file", calls=calls, reasoning=Reasoning(open="", close=""))
    for text in ("{ping", "ping{a:1}", "[ping()]", "text {x", '{"name": "ping"}'):
        assert_in_order(parts_of(pushes_of(text, ToyTokenizer()), Reading(format=form, tools=TOOLS), ToyTokenizer()))


def test_ids_that_models_write_are_kept_if_templates_accept_them() -> None:
    mistral = "[TOOL_CALLS]ping[CALL_ID]{}[ARGS]{{}}"
    ids = [parsed(mistral.format(each), KNOWN["mistral-ids"], TOOLS).calls[0].id for each in ("abcdefgh1", "1", "")]
    assert ids == ["abcdefgh1", "", ""]
    kimi = "<|tool_call_begin|>functions.ping:12<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert parsed(kimi, KNOWN["kimi-k2"], TOOLS).calls[0].id == "functions.ping:12"
    assert parsed(SAMPLES["solar"].text, KNOWN["solar"], TOOLS).calls[1].id == "call00002"


def test_calls_of_qwen_without_their_first_tag_are_calls() -> None:
    text = "Hi.\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call>"
    for toy in toys("qwen-xml"):
        message = parsed(text, KNOWN["qwen-xml"], TOOLS, toy)
        assert (message.content, message.calls) == ("Hi.", (Call("weather", '{"city": "Bonn"}'),))


@pytest.mark.parametrize("name", [name for name, form in KNOWN.items() if form.reasoning is None and not form.prefix])
def test_output_without_calls_is_content_in_full(name: str) -> None:
    chance, toy = random.Random(name), ToyTokenizer()
    pieces = [
        *filter(None, format_texts(KNOWN[name])),
        "ping",
        "pin",
        "{",
        "}",
        '"',
        "(",
        " ",
        "\n",
        "é",
        "[",
        "]",
        ": ",
    ]
    for _ in range(200):
        text = "".join(chance.choices(pieces, k=8))
        message = parsed(text, KNOWN[name], TOOLS, toy)
        assert message.calls or (message.content or "") == without(text, KNOWN[name].ignored)


def without(text: str, ignored: tuple[str, ...]) -> str:
    """Return text without what carries nothing; such texts take the white space next to them along."""
    for each in ignored:
        text = re.sub(rf"\s*{re.escape(each)}\s*", "", text)
    return text
