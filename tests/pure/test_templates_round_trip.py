"""What published chat templates write is read back: reasoning, content and calls, by the format found for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ferrum.core.errors import FerrumError
from ferrum.core.output_format import Calls, OutputFormat, Tool
from ferrum.formats import probe_conversations as probes
from ferrum.formats.find import find_format, opens_thought
from ferrum.formats.output_parts import Call, Message
from ferrum.formats.patterns import format_texts
from ferrum.formats.turn_analysis import shared_prefix
from ferrum.grammar.reply_guidance import tool_guidance
from format_kit import ToyTokenizer, marker_texts, parsed
from grammar_kit import ToyMatcher
from real_templates import TEMPLATES

FORMATS = {
    name: found
    for name, template in TEMPLATES.items()
    if (found := find_format(template, None, None).format) is not None and found.calls is not None
}

WITHOUT_CALLS = {"Kimi-K2-Thinking", "ibm-granite-granite-3.3-2B-Instruct"}
"""The first fails to render calls in the sandbox, as in transformers'; the second leaves them out."""

ENDS = (
    *("<|im_end|>", "<EOS>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|END_OF_TURN_TOKEN|>", "<seed:eos>", "<sep>"),
    *("<｜end▁of▁sentence｜>", "<|end_of_text|>", "<|role_end|>", "</assistant>", "<｜hy_eos:opensource｜>"),  # noqa: RUF001
)
"""Texts that end a turn; an engine stops at their tokens."""

RICH: Mapping[str, Any] = {
    probes.KEYS[0]: 'Zürich "x" 漢 🦀 \\ {"a": 1}',
    "whole": -3,
    "real": 2.5,
    "flag": True,
    "object": {"a": [1, None, {"b": "c"}], "d": False, "e": {}},
    "array": ["e", 4, []],
    probes.KEYS[1]: "42",
    probes.KEYS[2]: "true",
}
CALLS: tuple[tuple[probes.Named, ...], ...] = (
    (),
    ((probes.NAMES[0], {}),),
    ((probes.NAMES[0], RICH),),
    ((probes.NAMES[0], {probes.KEYS[0]: "a\nb\n\nc"}), (probes.NAMES[1], RICH)),
    ((probes.NAMES[2], {"object": {}}), (probes.NAMES[0], {"array": []}), (probes.NAMES[1], {probes.KEYS[2]: "3.0"})),
)
TOOLS = tuple(
    Tool(name=tool["function"]["name"], parameters=json.dumps(tool["function"]["parameters"]))
    for tool in probes.tools()
)


def outputs(name: str) -> Iterator[tuple[str, Message, bool]]:
    """Yield outputs as the template writes them, what they mean, and whether the prompt opens reasoning."""
    template, form = TEMPLATES[name], FORMATS[name]
    assert form.calls is not None
    prompt = template.render([probes.user()], tools=probes.tools())
    for calls in CALLS:
        if len(calls) > 1 and not form.calls.parallel:
            continue
        for content, reasoning in (("It rains.", None), (None, None), ("It rains.", "So: rain?"), (None, "So: rain?")):
            said = probes.assistant(calls, content, reasoning)
            if content is None and not calls:
                continue
            try:
                messages = template.prepare([probes.user(), said], moving=False)
                text = template.render(messages, tools=probes.tools(), add_generation_prompt=False)
            except FerrumError:
                assert name == "meetkai-functionary-medium-v3.2", "only this one takes arguments as text alone"
                for call in said["tool_calls"]:
                    call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
                messages = template.prepare([probes.user(), said], moving=False)
                text = template.render(messages, tools=probes.tools(), add_generation_prompt=False)
            start = shared_prefix(text, prompt)
            written = cut(text[len(start) :], form)
            if name == "openai-gpt-oss-120b" and calls:  # writes the content before calls as reasoning
                content, reasoning = None, "\n".join(filter(None, (reasoning, content)))
            shown = [each if each and each in written else None for each in (reasoning, content)]
            yield written, Message(*shown, tuple(map(sorted_call, calls))), opens(prompt, start, shown[0], form)


def opens(prompt: str, start: str, reasoning: str | None, form: OutputFormat) -> bool:
    """Return whether an output begins within reasoning; a past turn may lack what opens it in the prompt."""
    return opens_thought(start, form) or (reasoning is not None and opens_thought(prompt, form))


def cut(text: str, form: OutputFormat) -> str:
    """Return an output without the end of its turn."""
    own = "".join(format_texts(form))
    places = [place for end in ENDS if end not in own and (place := text.find(end)) >= 0]
    return text[: min(places, default=len(text))]


def sorted_call(call: probes.Named) -> Call:
    """Return a call with sorted arguments."""
    return Call(call[0], json.dumps(call[1], sort_keys=True))


def normal(message: Message) -> Message:
    """Return a message with sorted arguments, and without the white space that the turn writes around content."""
    calls = tuple(sorted_call((each.name, json.loads(each.arguments))) for each in message.calls)
    return Message(message.reasoning, message.content and message.content.strip(), calls)


@pytest.mark.parametrize("tokens", [True, False], ids=["marker_tokens", "bytes"])
@pytest.mark.parametrize("name", sorted(FORMATS.keys() - WITHOUT_CALLS))
def test_what_a_template_writes_is_read_back(name: str, tokens: bool) -> None:
    form = FORMATS[name]
    toy = ToyTokenizer(marker_texts(form) if tokens else ())
    count = 0
    for text, meant, opened in outputs(name):
        assert normal(parsed(text, form, TOOLS, toy, opened=opened)) == meant, text
        count += 1
    assert count >= 10


OTHER_TEXTS = {
    "LFM2.5-8B-A1B": "texts without escapes, which Python would not read",
    "Reka-Edge": "escapes for all letters that are not ASCII, which grammars of JSON do not write",
}
"""What some templates write; grammars are held to their other calls."""


def begin_of(calls: Calls) -> str:
    """Return the first line of what calls begin with."""
    return (calls.section_open + calls.open).strip().partition("\n")[0] or "{"


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - WITHOUT_CALLS))
def test_grammar_allows_what_a_template_writes(name: str) -> None:
    form = FORMATS[name]
    assert form.calls is not None
    toy = ToyTokenizer(marker_texts(form))
    guidance = tool_guidance(form, TOOLS, "required", parallel=True, opened=False, budget=None, tokenizer=toy)
    assert guidance is not None and guidance.grammar is not None
    matcher = ToyMatcher(guidance.grammar.source, toy)
    count = 0
    for text, meant, _ in outputs(name):
        if meant.content or meant.reasoning or not meant.calls:
            continue
        if name in OTHER_TEXTS and any(probes.KEYS[0] in call.arguments for call in meant.calls):
            continue
        start = text.index(begin_of(form.calls)) if begin_of(form.calls) in text else 0
        endings = {text[at:].strip() for at in (0, start)} | {text[start:], text.strip("\n")}
        assert any(matcher.accepts(each) or matcher.accepts(f"\n\n{each}") for each in endings), text
        count += 1
    assert count >= 2
