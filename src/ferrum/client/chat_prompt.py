"""`ChatPrompt`: a conversation as a prompt, with what limits its output and how the output is read.

All dialects of the server and `LLM.chat` come here. Formats are found and turned into grammars in `formats`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrum.client.adapter_registry import NamedAdapter
from ferrum.client.input_processor import API_NAMES, FieldNames, RequestOptions
from ferrum.client.model_client import Message, ModelClient
from ferrum.core.errors import RequestError
from ferrum.core.guidance import Grammar, Guidance, Thought
from ferrum.core.logging import warn_once
from ferrum.core.output_format import OutputFormat, Reading, Tool
from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.formats.find import FoundFormat, closes_thought, opens_thought
from ferrum.grammar.constraint_grammars import check_grammar
from ferrum.grammar.lark import joined_by_name
from ferrum.grammar.tool_grammar import content_start, forced_tools, thought_of, tool_guidance
from ferrum.grammar.tools import NO_CHOICE, ToolChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a client wants of the reply to a conversation, besides sampling parameters.

    Attributes:
        choice: the tools, and whether one must be called.
        parallel: several calls are allowed.
        budget: largest number of reasoning tokens; None: unlimited.
    """

    choice: ToolChoice = NO_CHOICE
    parallel: bool = True
    budget: int | None = None

    @property
    def calls(self) -> bool:
        """Whether the reply may have calls."""
        return bool(self.tools) and self.choice.mode != "none"

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        return self.choice.tools.tools


DEFAULT_CHAT: Final = ChatOptions()


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation.

    Attributes:
        text: of the prompt, special tokens included.
        guidance: limits on the reply's tokens, or None.
        reading: how the reply is read; None: all of it is content.
        rendering: the arguments of `ModelClient.render` that it was rendered from.
        free: names of the tools whose schema is not enforced although one of them must be called.
    """

    text: str
    guidance: Guidance | None
    reading: Reading | None
    rendering: Mapping[str, Any]
    free: tuple[str, ...] = ()


def chat_prompt(
    client: ModelClient,
    messages: Sequence[Message],
    params: SamplingParams,
    options: ChatOptions,
    *,
    chat_template: str | None = None,
    untrusted: bool = False,
    names: FieldNames = API_NAMES,
    **rendering: Any,
) -> ChatPrompt:
    """Render a conversation, and find how its reply is limited and read.

    Args:
        client: of the model.
        messages: the conversation.
        params: of the request; `structured_outputs` limits its content.
        options: tools and reasoning.
        chat_template, untrusted, rendering: see `ModelClient.render`.
        names: of the fields in errors.

    Raises:
        RequestError: as `ModelClient.render`; `tools` if the format of the model's calls is not known; a schema or
            grammar that cannot be enforced.
        Unsupported: as `ModelClient.render`.
    """
    rendering |= {
        "messages": messages,
        "chat_template": chat_template,
        "untrusted": untrusted,
        "tools": options.choice.tools.descriptions or None,
    }
    text = client.render(**rendering)
    found = client.output_format(chat_template, untrusted=untrusted)
    source = None
    if params.structured_outputs is not None:
        source = client.input_processor.grammar_of(params.structured_outputs, names)
    continued = _final_text(messages) if rendering.get("continue_final_message") else None
    opened = found.format is not None and opens_thought(text, found.format, continued)
    closed = found.format is not None and closes_thought(text, found.format, continued)
    options, free = _forced(found.format, options)
    guidance, reading = _limits(client, found, source, options, opened=opened, closed=closed)
    return ChatPrompt(text, guidance, reading, rendering, free)


def chat_request(
    client: ModelClient,
    messages: Sequence[Message],
    params: SamplingParams,
    options: ChatOptions,
    adapters: tuple[NamedAdapter, ...] = (),
    **rendering: Any,
) -> tuple[Request, str]:
    """Return the engine's request for a conversation, and its text. Arguments and errors as of `chat_prompt`."""
    prompt = chat_prompt(client, messages, params, options, **rendering)
    if prompt.free:
        warn_once(f"the schema of {', '.join(map(repr, prompt.free))} cannot be enforced: its arguments are any JSON")
    about = RequestOptions(
        add_special_tokens=False, guidance=prompt.guidance, reading=prompt.reading, adapters=adapters
    )
    return client.input_processor.process(prompt.text, params, about), prompt.text


def _forced(format: OutputFormat | None, options: ChatOptions) -> tuple[ChatOptions, tuple[str, ...]]:
    """Return options with the schemas that a required call is held to, and the names of tools without one."""
    choice = options.choice
    if format is None or format.calls is None or choice.mode != "required":
        return options, ()
    tools, free = forced_tools(format.calls, choice.tools.tools, choice.named)
    return replace(options, choice=replace(choice, tools=replace(choice.tools, tools=tools))), free


def _final_text(messages: Sequence[Message]) -> str | None:
    """Return the text of the final message that the reply continues."""
    content = messages[-1].get("content")
    if isinstance(content, str):
        return content
    texts = [part["text"] for part in content or () if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    return "".join(texts) or None


def _limits(
    client: ModelClient, found: FoundFormat, source: str | None, options: ChatOptions, *, opened: bool, closed: bool
) -> tuple[Guidance | None, Reading | None]:
    """Return what limits the reply to a prompt, and how it is read.

    Args:
        source: the grammar of its content.
        opened, closed: what the prompt has done with the reasoning.
    """
    format, tokenizer = found.format, client.tokenizer
    assert tokenizer is not None, "`render` refuses conversations without one"
    if options.calls and (format is None or format.calls is None):
        raise RequestError(f"this model's tool calls cannot be read: {found.reason}", param="tools")
    if format is None:
        if options.budget is not None:
            raise RequestError(f"this model's reasoning cannot be read: {found.reason}", param="thinking_token_budget")
        return _content_guidance(None, source), None
    thought = thought_of(format, tokenizer, opened=opened, budget=options.budget)
    if source is not None:
        source = joined_by_name(content_start(format, tokenizer), {"content": source})
    guidance = _content_guidance(thought, source, closed=closed)
    if options.calls:
        required = options.choice.mode == "required" or (guidance is not None and guidance.grammar is not None)
        calls = tool_guidance(
            format,
            options.tools,
            "required" if required else "auto",
            named=options.choice.named,
            parallel=options.parallel,
            opened=opened,
            closed=closed,
            budget=options.budget,
            tokenizer=tokenizer,
        )
        guidance = calls if options.choice.mode == "required" else _either(calls, guidance)
    return guidance, _reading(format, options, opened=opened)


def _reading(format: OutputFormat, options: ChatOptions, *, opened: bool) -> Reading | None:
    if format.reasoning is None and not options.calls and not format.content_open:
        return None
    return Reading(format=format, tools=options.tools if options.calls else (), opened=opened)


def _content_guidance(thought: Thought | None, source: str | None, *, closed: bool = False) -> Guidance | None:
    """Return the limits of a reply without calls; without a thought if the prompt has ended it.

    Args:
        source: the grammar of its content, with what the format writes around it.
    """
    if source is None:
        return Guidance(thought=thought) if thought is not None and thought.budget is not None else None
    return Guidance(thought=None if closed else thought, grammar=Grammar(source=source))


def _either(calls: Guidance | None, content: Guidance | None) -> Guidance | None:
    """Return the limits of a reply that is either calls or content."""
    if calls is None or calls.grammar is None or content is None or content.grammar is None:
        return calls or content
    source = joined_by_name("start: @calls | @reply", {"calls": calls.grammar.source, "reply": content.grammar.source})
    check_grammar(source)
    return replace(calls, grammar=replace(calls.grammar, source=source))
