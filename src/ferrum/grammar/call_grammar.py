"""The grammar of calls of tools, as the chat template renders them, so that the next turn finds its prefix."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ferrum.core.guidance import Grammar, Marker
from ferrum.core.output_format import Calls, CallStyle, IdPlace, OutputFormat, Tool
from ferrum.formats.argument_readers import trailing
from ferrum.formats.patterns import SPACE, Markers
from ferrum.grammar.call_arguments import arguments_grammar, call_close
from ferrum.grammar.lark import Lark, either, list_of, literal, optional, sequence
from ferrum.grammar.reply_headers import WHITE_SPACE, header_text, message_begin

_ID = "/[a-zA-Z0-9]{9}/"
_INDEX = "/[0-9]{1,4}/"


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
