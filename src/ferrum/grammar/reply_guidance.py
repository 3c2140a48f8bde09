"""What limits the reply to a conversation: its reasoning, a grammar of its content, and one of the calls of tools.

The grammar writes calls as the chat template renders them, so that the next turn finds its prefix. `output_parser`
accepts every text of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from ferrum.core.errors import InvalidGrammar, InvalidSchema, RequestError
from ferrum.core.guidance import Grammar, Guidance, Marker, Thought
from ferrum.core.output_format import (
    Arguments,
    ArgumentStyle,
    Calls,
    CallStyle,
    Header,
    IdPlace,
    OutputFormat,
    Tool,
    ToolKind,
    ValueStyle,
)
from ferrum.core.values import shown
from ferrum.formats.argument_readers import trailing
from ferrum.formats.argument_types import STRING, ArgumentTypes, argument_types
from ferrum.formats.json_text import INPUT
from ferrum.formats.patterns import SPACE, Markers, markers_of
from ferrum.grammar.constraint_grammars import check_grammar
from ferrum.grammar.custom_grammar import custom_grammar
from ferrum.grammar.json_schema import checked_schema
from ferrum.grammar.lark import (
    Lark,
    either,
    joined_by_name,
    json_of,
    list_of,
    literal,
    optional,
    schema_grammar,
    sequence,
)
from ferrum.grammar.literal_grammar import JSON_CONSTANTS, PYTHON_CONSTANTS, Literals, StrictLiterals
from ferrum.grammar.schema_places import pointed
from ferrum.grammar.tag_grammar import StrictTags, Tags
from ferrum.grammar.tools import NO_CHOICE, Mode, ToolChoice
from ferrum.text.tokenizer import Tokenizer

_ID = "/[a-zA-Z0-9]{9}/"
_INDEX = "/[0-9]{1,4}/"


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


class CallGrammar:
    """The grammar of calls of some tools.

    Args:
        many: several calls are allowed, if the format has them.
    """

    def __init__(
        self, form: OutputFormat, calls: Calls, tools: Sequence[Tool], markers: Markers, *, many: bool
    ) -> None:
        self._form = form
        self._calls = calls
        self._tools = tools
        self._markers = markers
        self._many = many and calls.parallel
        self._lark = Lark(markers)

    def required(self) -> Grammar:
        """Return the grammar of an output after its reasoning that has at least one call."""
        calls, lark, form = self._calls, self._lark, self._form
        # A thought leaves the white space after its end, and a new message begins in formats with channels.
        before = ["" if form.prefix else WHITE_SPACE, message_begin(lark, form)]
        starts = [self._spelled(each.removeprefix(form.prefix)) for each in self._starts()]
        start = optional(either(filter(None, starts))) if "" in starts else either(starts)
        body = self._body(opened=not calls.section_open)
        more = ""
        if not calls.section_open and self._many:
            call = lark.rule(sequence(lark.text(calls.open), self._call()))
            more = f"( {sequence(lark.text(calls.between), call)} )*"
        return Grammar(source=lark.grammar(sequence(*before, start, body, more)))

    def _starts(self) -> Iterator[str]:
        """Yield the texts that calls begin with, with the white space that follows them."""
        first = self._calls.section_open or self._calls.open
        yield first
        for text in self._calls.aliases:
            yield text.rstrip(SPACE) + trailing(first)

    def _spelled(self, text: str) -> str:
        """Return an expression of a text that calls begin with; white space may precede all but words of a header."""
        return header_text(self._lark, self._form, text if self._in_header(text) else text.lstrip(SPACE))

    def _in_header(self, text: str) -> bool:
        """Return whether a text is a word of a header, like a recipient."""
        return bool(self._form.content_open) and text.strip(SPACE)[:1].isalpha()

    def lazy(self) -> Grammar | None:
        """Return the grammar that begins where a call does; None if nothing shows where that is."""
        openings = [self._trigger(text.lstrip(SPACE)) for text in self._openings()]
        if not openings:
            return None
        # One grammar follows all triggers, so those of aliases with another rest are left out.
        rest = openings[0][1]
        triggers = dict.fromkeys(marker for marker, each in openings if each.strip(SPACE) == rest.strip(SPACE))
        return Grammar(
            source=self._lark.grammar(sequence(self._lark.text(rest), self._body(opened=not self._calls.section_open))),
            triggers=tuple(triggers),
            repeats=self._many and not self._calls.section_open,
        )

    def _openings(self) -> Iterator[str]:
        """Yield the texts that calls begin with, if nothing else of the format does."""
        for text in (self._calls.section_open or self._calls.open, *self._calls.aliases):
            stripped = text.strip(SPACE)
            if not stripped.strip("[{(") or self._is_shared(stripped):
                continue
            if self._in_header(text):
                yield from (before + text for before in self._form.ignored[:1])
            else:
                yield text

    def _is_shared(self, begin: str) -> bool:
        """Return whether another text of the format begins so."""
        reasoning = self._form.reasoning
        others = [self._form.content_open, *self._form.content_aliases, *self._form.ignored]
        others += [reasoning.open] if reasoning is not None else []
        return any(each.lstrip(SPACE).startswith(begin) for each in others if each)

    def _trigger(self, text: str) -> tuple[Marker, str]:
        """Return what shows that an opening text begins, and the rest of it.

        A token is best, since then only this token needs to be looked for.
        """
        word = text.split(None, 1)[0]
        found = min(((word.find(each), each) for each in self._markers.tokens if each in word), default=None)
        if found is not None and not self._is_shared(word[: found[0]] + found[1]):
            token_text = found[1]
            return Marker(text=token_text, token=self._markers.tokens[token_text]), text[found[0] + len(token_text) :]
        begin = word if word[-1] in ">]" and not self._is_shared(word) else text.rstrip(SPACE)
        return Marker(text=begin), text[len(begin) :]

    def _body(self, *, opened: bool) -> str:
        """Return the calls after the text that opens them."""
        calls, lark = self._calls, self._lark
        if opened:
            return self._call()
        call = lark.rule(sequence(lark.text(calls.open), self._call()))
        return sequence(list_of(call, lark.text(calls.between), many=self._many), lark.text(calls.section_close))

    def _call(self) -> str:
        """Return a call of any of the tools after its opening text."""
        options = [self._lark.rule(self._of(tool)) for tool in self._tools]
        return sequence(either(options), call_close(self._lark, self._calls))

    def _of(self, tool: Tool) -> str:
        calls, lark = self._calls, self._lark
        arguments = arguments_grammar(lark, calls, tool)
        if calls.style is CallStyle.PYTHONIC:
            return sequence(literal(tool.name), arguments)
        if calls.style is CallStyle.OBJECT:
            return self._object(tool, arguments)
        id_text = lark.text(calls.id_separator)
        if calls.id_place is IdPlace.BEFORE:
            head = sequence(_ID, id_text, literal(tool.name), lark.text(calls.after_name))
        elif calls.id_place is IdPlace.AFTER:
            number = _INDEX if calls.id_separator.strip() == ":" else _ID
            head = sequence(literal(tool.name), id_text, number, lark.text(calls.after_name))
        else:
            names = (calls.after_name, *calls.after_name_aliases)
            head = either(header_text(lark, self._form, f"{tool.name}{each}") for each in names)
        return sequence(head, arguments)

    def _object(self, tool: Tool, arguments: str) -> str:
        """Return a call as a JSON object."""
        calls = self._calls
        colon, comma = calls.arguments.key_separator, calls.arguments.item_separator

        def key(name: str) -> str:
            return json.dumps(name) + colon

        parts = [literal("{")]
        for name in calls.first_keys:
            parts += [literal(key(name)), _extra(name), literal(comma)]
        spelled = json.dumps(tool.name, ensure_ascii=False)
        parts += [literal(f"{key(calls.name_key)}{spelled}{comma}{key(calls.arguments_key)}"), arguments]
        for name in calls.extra_keys:
            parts += [literal(f"{comma}{key(name)}"), _extra(name)]
        return sequence(*parts, literal("}"))


def _extra(name: str) -> str:
    """Return the value of a further key of a call's object."""
    options = {"type": literal('"function"'), "id": '/"[a-zA-Z0-9]{9}"/'}
    return options.get(name, '/"[a-zA-Z0-9_-]{1,40}"/')


# Arguments, in the spelling that templates render


def arguments_grammar(lark: Lark, calls: Calls, tool: Tool) -> str:
    """Return an expression of a tool's arguments.

    Raises:
        RequestError: the schema of a strict tool, or the grammar of a custom one, cannot be enforced in this style;
            `param` is `tools`.
    """
    python = calls.style is CallStyle.PYTHONIC
    if python or calls.arguments.style is ArgumentStyle.GEMMA:
        if tool.strict and tool.parameters and tool.kind is ToolKind.FUNCTION:
            return StrictLiterals(lark, calls.arguments, tool, python=python).arguments()
        constants = (*JSON_CONSTANTS, *PYTHON_CONSTANTS) if python else JSON_CONSTANTS
        return Literals(lark, calls.arguments, python=python, constants=constants).arguments(tool)
    if calls.arguments.style is ArgumentStyle.TAGGED:
        return _tagged(lark, calls, tool)
    if tool.kind is ToolKind.FUNCTION:
        return json_of(object_schema(tool), calls.arguments)
    grammar = custom_grammar(tool, escaped=True)
    if grammar is None:
        schema = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
        return json_of({**schema, "additionalProperties": False}, calls.arguments)
    opening = literal(f'{{"{INPUT}"{calls.arguments.key_separator}"')
    return sequence(opening, lark.rule(grammar), literal('"}'))


def object_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments: its own if it is strict, else that of any object."""
    if not tool.strict or not tool.parameters:
        return {"type": "object"}
    schema = json.loads(tool.parameters)
    if not isinstance(schema, dict):
        raise RequestError(f"the schema of the strict tool {shown(tool.name)} must be an object", param="tools")
    return {**schema, "type": "object"}


def call_close(lark: Lark, calls: Calls) -> str:
    """Return an expression of what ends a call."""
    tagged = calls.style is CallStyle.NAMED and calls.arguments.style is ArgumentStyle.TAGGED
    return Tags(lark, calls).call_close() if tagged else lark.text(calls.close)


def _tagged(lark: Lark, calls: Calls, tool: Tool) -> str:
    """Return tagged arguments: in the schema's order for a strict tool, else in any order."""
    arguments, tags = calls.arguments, Tags(lark, calls)
    if tool.kind is ToolKind.CUSTOM:
        grammar = custom_grammar(tool, escaped=False)
        head = sequence(tags.key_open(first=True), tags.key(INPUT, arguments.string_mark))
        if grammar is None:
            return sequence(head, tags.text())
        if tool.syntax == "regex":
            return sequence(head, tags.closed(grammar))
        return sequence(head, lark.rule(grammar), lark.text(arguments.value_close))
    if not tool.strict or not tool.parameters:
        return _any_order(lark, calls, tags, tool)
    return StrictTags(lark, calls.arguments, tags, tool).arguments()


def _any_order(lark: Lark, calls: Calls, tags: Tags, tool: Tool) -> str:
    """Return the arguments of a tool that is not strict: any number, in any order, with other names if they may be."""
    types = argument_types(tool)
    items = [_argument(lark, calls, tags, name, types) for name in (*types.names, *((None,) * (not types.closed)))]
    if not items:
        return tags.empty
    item = lark.rule(either(items))
    found = sequence(tags.key_open(first=True), list_of(item, tags.key_open(first=False)))
    return either([found, tags.empty]) if tags.empty else optional(found)


def _argument(lark: Lark, calls: Calls, tags: Tags, name: str | None, known: ArgumentTypes) -> str:
    """Return an argument from its key to its closing tag; `name` None: any that the schema does not name."""
    arguments = calls.arguments
    types = known.others if name is None else known.get(name)

    def head(mark: str) -> str:
        return tags.other_key(known.names, mark) if name is None else tags.key(name, mark)

    other = sequence(head(arguments.other_mark), _other_value(lark, arguments), lark.text(arguments.value_close))
    if arguments.values is ValueStyle.JSON or (types is not None and "string" not in types):
        return other
    text = sequence(head(arguments.string_mark), tags.text())
    return either([text, other]) if arguments.string_mark and types != STRING else text


def _other_value(lark: Lark, arguments: Arguments) -> str:
    """Return a value that is no string. Templates render some as Python writes them."""
    if arguments.values is ValueStyle.JSON:
        return json_of({}, arguments)
    python = Literals(lark, arguments, python=True, constants=PYTHON_CONSTANTS).any()
    return either([json_of({}, arguments), python])


# Schemas of tools, checked before a request is queued


def forced_schemas(form: OutputFormat | None, options: ChatOptions) -> tuple[ChatOptions, tuple[str, ...]]:
    """Return options with the schemas that a required call is held to, and the names of tools without one."""
    choice = options.choice
    if form is None or form.calls is None or choice.mode != "required":
        return options, ()
    found = {each.name: _enforced(form.calls, each) for each in options.tools if choice.named in (None, each.name)}
    free = tuple(name for name, tool in found.items() if tool is None)
    tools = tuple(found.get(each.name) or each for each in options.tools)
    return replace(options, choice=replace(choice, tools=replace(choice.tools, tools=tools))), free


def check_strict(calls: Calls, tools: tuple[Tool, ...]) -> None:
    """Refuse strict tools whose schema the library cannot compile.

    Raises:
        RequestError: `param` is `tools`; the message has the tool and the JSON pointer.
    """
    for tool in tools:
        if tool.strict and tool.parameters and tool.kind is ToolKind.FUNCTION:
            error = _fault(calls, tool)
            if error is not None:
                raise error


@lru_cache(maxsize=512)
def _fault(calls: Calls, tool: Tool) -> RequestError | None:
    """Return why a strict tool cannot be enforced in a format; None if it can."""
    lark = Lark()
    try:
        source = lark.grammar(arguments_grammar(lark, calls, tool))
        reason = _reason(json.loads(tool.parameters))
        if not reason:
            check_grammar(source)
    except InvalidGrammar as error:
        reason = f"#: {error.message}"
    except RequestError as error:
        return error
    whole = f"the schema of the strict tool {shown(tool.name)}: {reason}"
    return InvalidSchema(whole, param="tools") if reason else None


def _reason(schema: Mapping[str, Any]) -> str:
    """Return why the library refuses a checked schema, after the pointer of the argument that it refuses alone."""
    whole = _refused(schema, schema)
    if not whole:
        return ""
    for name, each in schema.get("properties", {}).items():
        if isinstance(each, Mapping) and (reason := _refused(each, schema)):
            return f"#/properties/{pointed(name)}: {reason}"
    return f"#: {whole}"


def _refused(part: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return why the library refuses a part of a schema; empty if it does not."""
    try:
        check_grammar(schema_grammar({**part, "$defs": schema.get("$defs", {})}))
    except InvalidGrammar as error:
        return error.message
    return ""


@lru_cache(maxsize=512)
def _enforced(calls: Calls, tool: Tool) -> Tool | None:
    """Return a tool as a strict one; None if its schema cannot be enforced in this format."""
    if tool.strict or tool.kind is ToolKind.CUSTOM or not tool.parameters:
        return tool
    try:
        schema = json.dumps(checked_schema(json.loads(tool.parameters), "tools"), ensure_ascii=False)
    except (InvalidSchema, RecursionError):
        return None
    strict = replace(tool, parameters=schema, strict=True)
    return strict if _fault(calls, strict) is None else None


# What formats write around content: headers of messages, and texts that carry nothing

WHITE_SPACE: Final = "/[ \\t\\r\\n]{0,8}/"
"""White space that models write after their reasoning."""

_WORD: Final = re.compile(r"\s*\S+|\s+")
_TYPE: Final = "[A-Za-z][A-Za-z0-9_.+\\/-]{0,31}"


def header_text(lark: Lark, form: OutputFormat, text: str) -> str:
    """Return an expression of a marker's text; before the end of a header a type of content may stand.

    Each word is an expression, since another text may begin with the same words.
    """
    header = form.header
    if header is None:
        return lark.text(text)
    words = sequence(*map(lark.text, _words(text.removesuffix(header.close), header)))
    if not text.endswith(header.close):
        return words
    types = [lark.rule(f"/ {_TYPE}/", terminal=True)]
    after_mark = lark.rule(f"/ ?{_TYPE}/", terminal=True)
    types += [sequence(optional(literal(" ")), lark.text(each), after_mark) for each in header.marks]
    return sequence(words, optional(either(types)), lark.text(header.close))


def _words(text: str, header: Header) -> Iterator[str]:
    """Yield the words of a text and the texts of a header among them."""
    texts = "|".join(map(re.escape, (header.open, header.close, *header.marks)))
    for part in re.split(f"({texts})", text):
        yield from _WORD.findall(part)


def message_begin(lark: Lark, form: OutputFormat) -> str:
    """Return what may begin a further message of an output, in formats with channels."""
    return optional(lark.text(form.ignored[0])) if form.content_open and form.ignored and not form.prefix else ""


def content_start(form: OutputFormat, tokenizer: Tokenizer) -> str:
    """Return a grammar in Lark of an output's content with what may stand around it; `@content` is the content."""
    texts = (form.content_open, *form.content_aliases) if form.content_open else ()
    lark = Lark(markers_of(form, tokenizer))
    opens = [header_text(lark, form, text.removeprefix(form.prefix)) for text in texts]
    ignored = list(map(lark.text, form.ignored))
    if form.prefix:
        before = either(opens)  # the prompt has begun it
    elif opens:
        before = sequence(message_begin(lark, form), optional(either(opens)))
    else:
        before = optional(either(ignored)) if ignored else ""
    closes = [lark.text(form.content_close)] if form.content_close else []
    after = optional(either([*closes, *ignored])) if closes or ignored else ""
    return lark.grammar(sequence(WHITE_SPACE if form.reasoning is not None else "", before, "@content", after))
