"""Replies as models write them, and walks of them through the guide of a request, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from ferrum.client.chat_prompt import chat_prompt
from ferrum.client.model_client import ModelClient
from ferrum.core.output_format import OutputFormat, Reading, Tool
from ferrum.core.params import SamplingParams
from ferrum.core.structured_outputs import StructuredOutputs
from ferrum.formats.find import FoundFormat
from ferrum.formats.output_parts import Message, message_of
from ferrum.formats.writing import write_calls
from ferrum.grammar.constraint_grammars import constraint_grammar
from ferrum.grammar.reply_guidance import ChatOptions
from ferrum.grammar.tools import Mode, ToolChoice, Tools
from ferrum.guides.guide_program import GrammarTokens, program_of
from ferrum.guides.guide_state import GuideState
from format_kit import ToyTokenizer, parts_of

END = 256
CONTENT = '{"k": 1}'
SCHEMA = '{"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}'
TOOL = Tool(name="ping", parameters='{"type": "object", "properties": {"a": {"type": "string"}}}')


def thoughts(form: OutputFormat) -> Iterator[str]:
    """Yield no reasoning, and some."""
    yield ""
    if form.reasoning is not None:
        yield f"{form.reasoning.open}Hm.{form.reasoning.close}"


def contents(form: OutputFormat, content: str = CONTENT) -> Iterator[str]:
    """Yield content in each spelling of a format."""
    if not form.content_open:
        yield content
        if len(form.ignored) == 2:
            yield f"{form.ignored[0]}{content}{form.ignored[1]}"
        return
    for text in (form.content_open, *form.content_aliases):
        yield text.removeprefix(form.prefix) + content + form.content_close
        header = form.header
        if header is not None and text.endswith(header.close):
            for type_ in (" json", *(f"{space}{mark}json" for mark in header.marks for space in ("", " "))):
                yield f"{text.removesuffix(header.close)}{type_}{header.close}{content}"


def calls(form: OutputFormat, tool: Tool = TOOL) -> Iterator[str]:
    """Yield a call in each spelling of a format."""
    assert form.calls is not None
    text = write_calls(form.calls, [(tool.name, {"a": "x"})], ids=["abcdefgh1" if form.name != "kimi-k2" else "0"])
    yield text.removeprefix(form.prefix)
    first = form.calls.section_open or form.calls.open
    for alias in form.calls.aliases:
        if form.name != "harmony":
            yield alias + text.removeprefix(first.rstrip() if not alias[-1:].isspace() else first)
    if form.header is not None:
        for name in ("commentary", "analysis"):
            for type_ in ("", " json", " <|constrain|>json"):
                yield f'<|channel|>{name} to=functions.ping{type_}<|message|>{{"a": "x"}}<|call|>'
                yield f' to=functions.ping<|channel|>{name}{type_}<|message|>{{"a": "x"}}<|call|>'


def replies(form: OutputFormat, bodies: Iterator[str]) -> Iterator[str]:
    """Yield what comes after each kind of reasoning; in formats with channels after a header, too."""
    for body in bodies:
        for thought in thoughts(form):
            header = form.ignored[0] if thought and form.content_open and form.name != "command-r7b" else ""
            yield thought + header + body


class Chats:
    """Requests to a model with a format, which has no weights."""

    def __init__(self, form: OutputFormat, tokenizer: ToyTokenizer) -> None:
        self._form, self._tokenizer = form, tokenizer
        self._vocabulary = GrammarTokens(tokenizer, tokenizer.vocab_size)
        client = SimpleNamespace(
            tokenizer=tokenizer,
            render=lambda *_, **__: "",
            output_format=lambda *_, **__: FoundFormat(form),
            input_processor=SimpleNamespace(grammar_of=lambda outputs, _: constraint_grammar(outputs)),
        )
        self._client = cast(ModelClient, client)

    def guide(self, mode: Mode, *, schema: bool, named: str | None = None, tool: Tool = TOOL) -> GuideState:
        """Return the guide of a request."""
        outputs = StructuredOutputs(json=SCHEMA) if schema else None
        params = SamplingParams(structured_outputs=outputs)
        tools = Tools((tool,), ({"type": "function", "function": {"name": tool.name}},))
        options = ChatOptions(choice=ToolChoice(tools, mode, named))
        messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
        guidance = chat_prompt(self._client, messages, params, options).guidance
        assert guidance is not None and guidance.grammar is not None
        matcher = self._vocabulary.matcher(guidance.grammar.source)
        return GuideState(program_of(guidance, self._vocabulary, matcher, (END,)))

    def refused(self, guide: GuideState, text: str) -> str | None:
        """Return the part of a reply before the first token that the guide does not allow; None if it allows all."""
        written: list[int] = []
        state = guide.copy()
        for token in [*self._tokenizer.encode(text), END]:
            mask = state.mask()
            allowed = mask is None or mask[token >> 3] >> (token & 7) & 1
            if not allowed or not state.take(token):
                return self._tokenizer.decode(written, skip_special_tokens=False)
            written.append(token)
        return None

    def read(self, text: str, tool: Tool = TOOL) -> Message:
        """Return the message that a reply is read as."""
        toy, reading = self._tokenizer, Reading(format=self._form, tools=(tool,))
        return message_of(parts_of([(each, toy.token_bytes(each)) for each in toy.encode(text)], reading, toy))
