"""What limits the reply to a conversation: its reasoning, a grammar of its content, and one of the calls of tools.

The grammar writes calls as the chat template renders them, so that the next turn finds its prefix. `output_parser`
accepts every text of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ferrum.core.errors import RequestError
from ferrum.core.guidance import Grammar, Guidance, Marker, Thought
from ferrum.core.output_format import OutputFormat, Tool
from ferrum.core.values import shown
from ferrum.formats.patterns import SPACE, markers_of
from ferrum.grammar.call_grammar import CallGrammar
from ferrum.grammar.constraint_grammars import check_grammar
from ferrum.grammar.lark import joined_by_name
from ferrum.grammar.reply_headers import content_start
from ferrum.grammar.strict_tools import check_strict, enforced
from ferrum.grammar.tools import NO_CHOICE, Mode, ToolChoice
from ferrum.text.tokenizer import Tokenizer


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


def reply_guidance(
    form: OutputFormat | None,
    tokenizer: Tokenizer,
    options: ChatOptions,
    source: str | None,
    *,
    opened: bool,
    closed: bool,
    reason: str,
) -> Guidance | None:
    """Return what limits the reply to a prompt; None if nothing does.

    Args:
        form: of the model's output; None if it is not known, for this `reason`.
        options: with the schemas that `forced_schemas` returned.
        source: the grammar of the content, or None.
        opened, closed: the prompt has begun the reasoning, or ended it.

    Raises:
        RequestError: calls or reasoning cannot be read in this format, or a strict tool cannot be enforced.
    """
    if options.calls and (form is None or form.calls is None):
        raise RequestError(f"this model's tool calls cannot be read: {reason}", param="tools")
    if form is None:
        if options.budget is not None:
            raise RequestError(f"this model's reasoning cannot be read: {reason}", param="thinking_token_budget")
        return _content_guidance(None, source)
    thought = thought_of(form, tokenizer, opened=opened, budget=options.budget)
    if source is not None:
        source = joined_by_name(content_start(form, tokenizer), {"content": source})
    content = _content_guidance(thought, source, closed=closed)
    if not options.calls:
        return content
    must_call = options.choice.mode == "required"
    calls = tool_guidance(
        form,
        options.tools,
        "required" if must_call or (content is not None and content.grammar is not None) else "auto",
        named=options.choice.named,
        parallel=options.parallel,
        opened=opened,
        closed=closed,
        budget=options.budget,
        tokenizer=tokenizer,
    )
    return calls if must_call else _either(calls, content)


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


def thought_of(form: OutputFormat, tokenizer: Tokenizer, *, opened: bool, budget: int | None) -> Thought | None:
    """Return the reasoning before the rest of an output; None if the format has none.

    Args:
        opened: the prompt ends within reasoning.
        budget: see `Thought`.
    """
    if form.reasoning is None:
        return None
    markers = markers_of(form, tokenizer)
    # Models write the white space before the marker if the template does: the prompt ends without it.
    opening, close = form.reasoning.open.rstrip(SPACE), form.reasoning.close.strip(SPACE)
    first = markers.translated(opening)[:1]
    token = next((each for each, char in markers.chars.items() if char == first), None)
    return Thought(
        open=Marker(text=opening, token=token),
        close=Marker(text=close, token=markers.tokens.get(close)),
        opened=opened,
        budget=budget,
        end=form.reasoning.close,
    )


def tool_guidance(
    form: OutputFormat,
    tools: tuple[Tool, ...],
    mode: Mode,
    *,
    named: str | None = None,
    parallel: bool,
    opened: bool,
    closed: bool = False,
    budget: int | None,
    tokenizer: Tokenizer,
) -> Guidance | None:
    """Return the guidance of a request with tools; None if nothing is limited.

    Args:
        mode: whether a tool must be called.
        named: the tool that must be called, whatever the mode; a tool may be named like a mode.
        parallel: several calls are allowed.
        opened, budget: see `thought_of`.
        closed: the prompt has ended the reasoning: none can precede a call that must come.

    Raises:
        RequestError: a strict schema or a custom tool's grammar cannot be enforced in this format; `param` is `tools`.
            Or no tool has the name.
    """
    thought = thought_of(form, tokenizer, opened=opened, budget=budget)
    limited = thought if budget is not None else None
    without = Guidance(thought=limited) if limited is not None else None
    if form.calls is None or not tools or (mode == "none" and named is None):
        return without
    chosen = tools if named is None else tuple(tool for tool in tools if tool.name == named)
    if not chosen:
        raise RequestError(f"names no tool: {shown(named)}", param="tool_choice")
    check_strict(form.calls, chosen)
    grammar = CallGrammar(form, form.calls, chosen, markers_of(form, tokenizer), many=parallel and named is None)
    if mode == "required" or named is not None:
        return Guidance(thought=None if closed else thought, grammar=grammar.required())
    lazy = grammar.lazy()
    return without if lazy is None else Guidance(thought=limited, grammar=lazy)


def forced_schemas(form: OutputFormat | None, options: ChatOptions) -> tuple[ChatOptions, tuple[str, ...]]:
    """Return options with the schemas that a required call is held to, and the names of tools without one."""
    choice = options.choice
    if form is None or form.calls is None or choice.mode != "required":
        return options, ()
    found = {each.name: enforced(form.calls, each) for each in options.tools if choice.named in (None, each.name)}
    free = tuple(name for name, tool in found.items() if tool is None)
    tools = tuple(found.get(each.name) or each for each in options.tools)
    return replace(options, choice=replace(choice, tools=replace(choice.tools, tools=tools))), free
