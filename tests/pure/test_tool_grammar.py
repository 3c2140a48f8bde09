"""Grammars of tool calls: their texts are read as calls, and they hold to schemas, names and choices."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest

from ferrum.core.errors import RequestError
from ferrum.core.guidance import Marker
from ferrum.core.output_format import OutputFormat, Reading, Tool, ToolKind
from ferrum.formats.known_formats import KNOWN
from ferrum.formats.output_parts import Message, message_of
from ferrum.formats.writing import write_calls
from ferrum.grammar.custom_grammar import escaped_regex
from ferrum.grammar.reply_guidance import thought_of, tool_guidance
from ferrum.grammar.tools import Mode
from format_kit import ToyTokenizer, marker_texts, parsed, parts_of
from grammar_kit import ToyMatcher

APPLY_PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""The grammar of Codex's tool for edits (openai/codex, Apache 2.0)."""

PATCH = '*** Begin Patch\n*** Update File: a/"b".py\n@@ def f():\n-\tpast \\n é\n+new "x"\n*** End Patch\n'

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {"type": "object"}},
    "required": ["city"],
}
STRICT = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "kind": {"type": "string", "enum": ["rain", "a b"]},
        "hours": {"type": "array", "items": {"type": "number"}},
    },
    "required": ["city", "kind"],
    "additionalProperties": False,
}
TOOLS = (
    Tool(name="weather", parameters=json.dumps(WEATHER)),
    Tool(name="weather_at", parameters=json.dumps(STRICT), strict=True),
    Tool(name="ping"),
    Tool(name="text", kind=ToolKind.CUSTOM),
    Tool(
        name="lines",
        kind=ToolKind.CUSTOM,
        syntax="lark",
        definition='start: "*" LF line+ "end"\nline: ("+"|"-") /(.{0,5})/ LF\n%import common.LF\n',
    ),
    Tool(name="letters", kind=ToolKind.CUSTOM, syntax="regex", definition=r'[a-c"\n]{1,4}/x'),
)
CUSTOM_TEXTS = {
    "text": r"(?s).*",
    "lines": r"\*\n([+-].{0,5}\n)+end",
    "letters": r'[a-c"\n]{1,4}/x',
}


def guided(
    name: str, choice: str = "required", tools: tuple[Tool, ...] = TOOLS, *, parallel: bool = True, tokens: bool = True
) -> tuple[ToyMatcher, tuple[Marker, ...], ToyTokenizer]:
    """Return a matcher of the grammar of a format, its triggers, and the vocabulary."""
    toy = ToyTokenizer(marker_texts(KNOWN[name]) if tokens else ())
    mode: Mode = "auto" if choice == "auto" else "required"
    named = None if choice in ("auto", "required") else choice
    guidance = tool_guidance(
        KNOWN[name], tools, mode, named=named, parallel=parallel, opened=False, budget=None, tokenizer=toy
    )
    assert guidance is not None and guidance.grammar is not None
    return ToyMatcher(guidance.grammar.source, toy), guidance.grammar.triggers, toy


def begun(form: OutputFormat, trigger: Marker) -> str:
    """Return the text of a call up to a trigger."""
    assert form.calls is not None
    openings = (form.calls.section_open or form.calls.open, *form.calls.aliases)
    opening = next((each.lstrip() for each in openings if trigger.text in each), trigger.text)
    return opening[: opening.index(trigger.text)] + trigger.text


def check_calls(message: Message, text: str) -> None:
    assert message.calls and message.content is None, text
    for call in message.calls:
        if call.name in CUSTOM_TEXTS:
            assert re.fullmatch(CUSTOM_TEXTS[call.name], call.arguments), text
            continue
        arguments = json.loads(call.arguments)
        assert isinstance(arguments, dict)
        if call.name == "weather_at":
            assert isinstance(arguments["city"], str) and arguments["kind"] in ("rain", "a b"), text
            assert isinstance(arguments.get("days", 0), int) and arguments.keys() <= STRICT["properties"].keys()


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "bytes"])
@pytest.mark.parametrize("choice", ["auto", "required", "weather_at"])
@pytest.mark.parametrize("name", KNOWN)
def test_every_text_of_a_grammar_is_read_as_calls(name: str, choice: str, tokens: bool) -> None:
    if name == "functionary-3.2" and choice == "auto":
        return  # its calls begin as its content does
    form = KNOWN[name]
    matcher, triggers, toy = guided(name, choice, tokens=tokens)
    assert form.calls is not None
    arguments = form.calls.arguments
    ends = (
        form.calls.close,
        form.calls.section_close,
        arguments.value_close.lstrip(),
        arguments.quote,
        form.calls.between,
    )
    hints = [each for each in (*ends, '"', '"}', "}", ")", "'", "]", "end") if each]
    chance = random.Random(name + choice)
    for _ in range(4):
        walk = matcher.walk(chance, hints)
        if walk is None:
            continue
        ids = [*(toy.encode(begun(form, chance.choice(triggers))) if triggers else ()), *walk]
        parts = parts_of([(each, toy.token_bytes(each)) for each in ids], Reading(format=form, tools=TOOLS), toy)
        check_calls(message_of(parts), toy.decode(ids, skip_special_tokens=False))


def test_named_tool_is_the_only_one() -> None:
    matcher, _, _ = guided("hermes", "ping")
    assert matcher.accepts('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>')
    assert matcher.refused_at('<tool_call>\n{"name": "weather"').endswith('"name": "')


def test_one_call_is_all_without_parallel_calls() -> None:
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    assert guided("hermes")[0].accepts(f"{call}\n{call}")
    assert not guided("hermes", parallel=False)[0].accepts(f"{call}\n{call}")
    section = "[TOOL_CALLS][" + '{"name": "ping", "arguments": {}, "id": "abcdefgh1"}'
    assert guided("mistral-list")[0].accepts(f"{section}, {section[13:]}]")
    assert not guided("mistral-list", parallel=False)[0].accepts(f"{section}, {section[13:]}]")


def test_triggers_are_tokens_where_the_vocabulary_has_them() -> None:
    assert guided("qwen-xml", "auto")[1] == (
        Marker(text="<tool_call>", token=guided("qwen-xml")[2].ids["<tool_call>"]),
    )
    assert guided("qwen-xml", "auto", tokens=False)[1] == (Marker(text="<tool_call>"),)
    assert Marker(text="<|channel|>commentary to=functions.") in guided("harmony", "auto")[1]


def test_names_are_escaped_and_forty_tools_compile() -> None:
    names = ['a"b\\c', "größe", "x", "xy", *(f"tool_{index}.v-{index}" for index in range(36))]
    tools = tuple(Tool(name=name, parameters=json.dumps(WEATHER)) for name in names)
    for form in ("hermes", "mistral", "qwen-xml", "gemma4", "pythonic"):
        matcher, _, toy = guided(form, tools=tools)
        assert matcher.matcher.compute_bitmask()
        assert toy.vocab_size
    text = f'<tool_call>\n{{"name": {json.dumps(names[0])}, "arguments": {{}}}}\n</tool_call>'
    assert guided("hermes", tools=tools)[0].accepts(text)
    assert parsed(text, KNOWN["hermes"], tools).calls[0].name == names[0]


@pytest.mark.parametrize("name", ["hermes", "qwen-xml", "gemma4", "pythonic", "harmony", "mistral-list", "dsml"])
def test_apply_patch_is_held_to_its_grammar(name: str) -> None:
    tool = Tool(name="apply_patch", kind=ToolKind.CUSTOM, syntax="lark", definition=APPLY_PATCH)
    matcher, _, toy = guided(name, "apply_patch", (tool,))
    text = {
        "hermes": '<tool_call>\n{"name": "apply_patch", "arguments": {"input": PATCH}}\n</tool_call>',
        "qwen-xml": (
            "<tool_call>\n<function=apply_patch>\n<parameter=input>\nPATCH\n</parameter>\n</function>\n</tool_call>"
        ),
        "gemma4": '<|tool_call>call:apply_patch{input:<|"|>PATCH<|"|>}<tool_call|>',
        "pythonic": "[apply_patch(input=PATCH)]",
        "harmony": ' to=functions.apply_patch<|channel|>commentary json<|message|>{"input": PATCH}<|call|>',
        "mistral-list": '[TOOL_CALLS][{"name": "apply_patch", "arguments": {"input": PATCH}, "id": "call00001"}]',
        "dsml": (
            '\n\n<\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke name="apply_patch">\n'
            '<\uff5cDSML\uff5cparameter name="input" string="true">PATCH</\uff5cDSML\uff5cparameter>\n'
            "</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5cfunction_calls>"
        ),
    }[name]
    raw = name in ("qwen-xml", "gemma4", "dsml")
    for patch, right in ((PATCH, True), (PATCH.replace("@@", "@"), False), (PATCH.replace("+new", "new"), False)):
        written = text.replace("PATCH", patch if raw else json.dumps(patch, ensure_ascii=False))
        assert matcher.accepts(written) is right, matcher.refused_at(written)
    written = text.replace("PATCH", PATCH if raw else json.dumps(PATCH, ensure_ascii=False))
    assert parsed(written, KNOWN[name], (tool,), toy).calls[0].arguments == PATCH


@pytest.mark.parametrize("name", ["hermes", "qwen-xml", "gemma4", "pythonic", "minicpm5"])
@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^a$", ["a"], ["b", "^a$"]),
        (r"\Aa\z", ["a"], ["aa"]),
        (r"\Aa\Z", ["a"], ["aa"]),
        (r"^(?P<year>\d{4})-(?<month>\d\d)$", ["2024-05"], ["2024", "2024-05-01"]),
        ("^a$|^b$", ["a", "b"], ["ab"]),
        ("^a|b$", ["a", "b"], ["ab"]),
        ("(^a|b)c", ["ac", "bc"], ["c"]),
        (r"[a-z\n]+", ["a\n", "\n"], ["A"]),
        (r'"?\x{61}\u{62}/.*?', ['"ab/d', "ab/"], ["b/"]),
    ],
)
def test_custom_text_is_what_the_whole_expression_matches(
    pattern: str, yes: list[str], no: list[str], name: str
) -> None:
    tool = Tool(name="f", kind=ToolKind.CUSTOM, syntax="regex", definition=pattern)
    matcher, _, _ = guided(name, "f", (tool,))
    calls = KNOWN[name].calls
    assert calls is not None
    texts = {text: matcher.accepts(write_calls(calls, [("f", {"input": text})])) for text in [*yes, *no]}
    assert texts == {**dict.fromkeys(yes, True), **dict.fromkeys(no, False)}


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r'a"b\\c', ['a"b\\c']),
        (r"[^x]+", ['"', "\\", "\n\t", "é🦀"]),
        (r"(?s).*", ["a\nb", '"\\"', "\x01"]),
        (r".", ['"', "a", "\\"]),
        (r"(?:a|\n){2,3}", ["a\n", "\n\na"]),
        (r"\d+\s\w", ["12\tx", "1 _"]),
        (r"(?i)ab\n", ["AB\n", "aB\n"]),
        (r"[\x00-\x1f\"]", ["\x1f", '"', "\b"]),
    ],
)
def test_regular_expressions_match_escaped_texts(pattern: str, texts: list[str]) -> None:
    matcher = ToyMatcher(f"start: /{escaped_regex(pattern, 't')}/", ToyTokenizer())
    for text in texts:
        assert matcher.accepts(json.dumps(text, ensure_ascii=False)[1:-1])
        assert not matcher.accepts(text) or json.dumps(text, ensure_ascii=False)[1:-1] == text


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("start: /a(?=b)/", "assert"),
        ("start: /a$b/", "anchor in its middle"),
        ("start: <|x|>", "<|x|>"),
        ("start: A & B", "&"),
        ("%import common.NONE\nstart: NONE", "common.NONE"),
    ],
)
def test_grammars_that_cannot_stand_in_json_are_refused(definition: str, reason: str) -> None:
    tool = Tool(name="t", kind=ToolKind.CUSTOM, syntax="lark", definition=definition)
    with pytest.raises(RequestError) as caught:
        guided("hermes", tools=(tool,))
    assert caught.value.param == "tools" and reason in str(caught.value)


def test_thoughts_have_their_markers_and_their_own_end() -> None:
    toy = ToyTokenizer(marker_texts(KNOWN["qwen3"]))
    thought = thought_of(KNOWN["qwen3"], toy, opened=True, budget=5)
    assert thought is not None and thought.opened and thought.budget == 5
    assert thought.open == Marker(text="<think>", token=toy.ids["<think>"])
    assert thought.close == Marker(text="</think>", token=toy.ids["</think>"])
    assert thought.end == "\n</think>\n\n"
    glm = thought_of(KNOWN["glm"], toy, opened=False, budget=None)
    assert glm is not None and glm.open == Marker(text="\n<think>")
    assert thought_of(KNOWN["hermes"], toy, opened=False, budget=None) is None


def test_choices_that_limit_nothing_have_no_guidance() -> None:
    toy = ToyTokenizer()
    for choice, tools in (("none", TOOLS), ("auto", ())):
        arguments = {"parallel": True, "opened": False, "tokenizer": toy}
        assert tool_guidance(KNOWN["qwen3"], tools, choice, budget=None, **arguments) is None  # type: ignore[arg-type]
        limited = tool_guidance(KNOWN["qwen3"], tools, choice, budget=9, **arguments)  # type: ignore[arg-type]
        assert limited is not None and limited.grammar is None and limited.thought is not None


@pytest.mark.parametrize("strict", [True, False])
def test_text_between_tagged_arguments_is_written_and_read(strict: bool) -> None:
    known = KNOWN["glm-4.7"]
    assert known.calls is not None
    form = replace(known, calls=replace(known.calls, arguments=replace(known.calls.arguments, between=" ; ")))
    whole = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    tools, toy = (Tool(name="f", parameters=json.dumps(whole), strict=strict),), ToyTokenizer()
    guidance = tool_guidance(
        form, tools, "required", named="f", parallel=False, opened=False, budget=None, tokenizer=toy
    )
    assert guidance is not None and guidance.grammar is not None
    matcher = ToyMatcher(guidance.grammar.source, toy)
    tags = {key: f"<arg_key>{key}</arg_key><arg_value>{each}</arg_value>" for key, each in (("a", "x"), ("b", 5))}
    for keys in ("", "a", "b", "ab"):
        text = f"<tool_call>f{' ; '.join(tags[key] for key in keys)}</tool_call>"
        assert matcher.accepts(text), matcher.refused_at(text)
        assert json.loads(parsed(text, form, tools, toy).calls[0].arguments).keys() == set(keys)
