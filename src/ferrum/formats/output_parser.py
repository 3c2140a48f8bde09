"""`OutputReader` and `OutputParser`: tokens of an output to parts, as they come.

The reader adds stop strings to the parser; `Detokenizer` is its counterpart for outputs that are plain text. The parser
is a generator that waits for text; calls are read in `call_reader`. The parts depend on bytes and markers alone: not on
how bytes are cut into tokens, or tokens into pushes.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import cast

from ferrum.core.output_format import Calls, OutputFormat, Reading
from ferrum.formats.call_reader import CallPlan, CallReader, Names, call_plan
from ferrum.formats.output_parts import Part, PartKind, joined_parts
from ferrum.formats.patterns import (
    SPACE,
    Choice,
    Markers,
    Pattern,
    Reader,
    Steps,
    choice,
    choose,
    markers_of,
    peek,
    space,
    until,
)
from ferrum.text.detokenizer import StopScanner
from ferrum.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReadParts:
    """The effect of pushed tokens.

    Attributes:
        parts: those that are now final; they may lag behind the tokens.
        kept: number of pushed tokens in the output: all, or those up to the end of a stop string.
        stop: the stop string that ended the output, or None.
    """

    parts: tuple[Part, ...]
    kept: int
    stop: str | None = None

    @property
    def content(self) -> str:
        """The content among the parts."""
        return "".join([part.text for part in self.parts if part.kind is PartKind.CONTENT])


class OutputReader:
    """The parts of one generated sequence, independent of how tokens are grouped into pushes.

    Args:
        reading: how the output is read.
        tokenizer: gives the bytes of tokens, and the tokens of markers.
        stop: strings that end the output where they stand in the content. Reasoning and calls may contain them.
        include_stop: keep the stop string at the end of the content.
        min_tokens: stop strings are ignored in this many first tokens.
        skip_special_tokens: control tokens that are no markers add no text.

    Attributes:
        reasoning_tokens: kept tokens of reasoning, its markers included.
        num_calls: calls that have begun.
    """

    def __init__(
        self,
        reading: Reading,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self.reasoning_tokens = self.num_calls = 0
        self._tokenizer = tokenizer
        self._parser = OutputParser(reading, tokenizer)
        self._stops = StopScanner(stop, include_stop=include_stop) if stop else None
        self._spared = min_tokens
        self._skip_special = skip_special_tokens
        self._ended = False

    def push(self, token_ids: Sequence[int], *, hide_last: bool = False) -> ReadParts:
        """Take the next tokens. After a complete stop string, none are kept.

        Args:
            token_ids: the tokens.
            hide_last: the last one adds no text, unless it is a marker.
        """
        found: list[Part] = []
        for kept, token_id in enumerate(() if self._ended else token_ids, 1):
            self._spared -= 1
            hidden = hide_last and kept == len(token_ids)
            stop = self._add(self._parser.push(token_id, b"" if hidden else self._bytes(token_id)), found)
            self.reasoning_tokens += self._parser.in_reasoning
            if stop is not None:
                self._ended = True
                return ReadParts(joined_parts(found), kept, stop)
        return ReadParts(joined_parts(found), 0 if self._ended else len(token_ids))

    def finish(self, *, cut: bool = False) -> tuple[Part, ...]:
        """Return the parts held back. What did not become a call is content, unless the output was `cut` in it."""
        found: list[Part] = []
        if not self._ended:
            self._ended = True
            stop = self._add(self._parser.finish(cut=cut), found)
            if self._stops is not None and stop is None:
                found.append(Part(PartKind.CONTENT, self._stops.finish()))
        return joined_parts(found)

    def _add(self, parts: Iterable[Part], found: list[Part]) -> str | None:
        """Append parts up to the first stop string in the content; return it."""
        for part in parts:
            self.num_calls += part.kind is PartKind.CALL
            if part.kind is not PartKind.CONTENT or self._stops is None:
                if self._stops is not None and part.kind is PartKind.CALL:
                    found.append(Part(PartKind.CONTENT, self._stops.finish()))
                found.append(part)
                continue
            text, stop = self._stops.push(part.text, spared=self._spared >= 0)
            found.append(Part(PartKind.CONTENT, text))
            if stop is not None:
                return stop
        return None

    def _bytes(self, token_id: int) -> bytes:
        if self._skip_special and self._tokenizer.is_special(token_id):
            return b""
        return self._tokenizer.token_bytes(token_id)


# The parser of one output


class OutputParser:
    """Reads the output of one request. No input raises; text that is no call is content.

    A marker that the vocabulary has as one token counts only as that token; special tokens add no text. White space
    next to markers is the template's and belongs to no part.
    """

    def __init__(self, reading: Reading, tokenizer: Tokenizer) -> None:
        form = reading.format
        self._form = form
        self._markers: Markers = markers_of(form, tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[Part] = []
        self._reader = Reader()
        self._with_calls = bool(reading.tools) and form.calls is not None
        self._with_reasoning = form.reasoning is not None and (reading.reasoning or bool(form.content_open))
        self._thoughts = PartKind.REASONING if reading.reasoning else PartKind.CONTENT
        self._reasoning = self._with_reasoning and reading.opened
        self._start = True
        self._called = False
        self._fresh = self._reasoning or bool(form.content_open)
        self._held: list[str] = []
        self._in_reasoning = self._reasoning
        self._calls = self._call_reader(reading) if self._with_calls else None
        self._steps = self._run()
        next(self._steps)
        if form.prefix and not self._reasoning:
            self._feed(self._markers.translated(form.prefix))

    @property
    def in_reasoning(self) -> bool:
        """Whether the token that was pushed last belongs to reasoning, markers included."""
        return self._in_reasoning

    def push(self, token_id: int, data: bytes) -> list[Part]:
        """Take in a token with its bytes, and return the parts that are now certain."""
        before = self._reasoning
        char = self._markers.chars.get(token_id)
        if char is not None:
            self._feed(self._decoder.decode(b"", final=True) + char)
            self._decoder.reset()
        elif token_id not in self._markers.special and (text := self._decoder.decode(data)):
            self._feed(text)
        self._in_reasoning = before or self._reasoning
        parts, self._parts = self._parts, []
        return parts

    def finish(self, *, cut: bool = False) -> list[Part]:
        """End the output and return the remaining parts. Further calls do nothing.

        Args:
            cut: the model had more to say. The begin of a marker or of a call at the end is left out, and a call whose
                arguments are not complete has no END.
        """
        if not self._reader.ended:
            reader = self._reader
            reader.ended, reader.cut = True, cut
            # The begin of a character does not make text of what may be a marker or a call.
            waits = reader.at < len(reader.text) or reader.raw is not None
            self._feed("" if cut and waits else self._decoder.decode(b"", final=True))
        parts, self._parts = self._parts, []
        return parts

    def _feed(self, text: str) -> None:
        self._reader.add(text)
        next(self._steps, None)

    def _call_reader(self, reading: Reading) -> CallReader:
        calls = reading.format.calls
        assert calls is not None
        plans = self._markers.plans
        if calls not in plans:
            plans[calls] = call_plan(calls, self._markers, reading.format.header)
        plan = cast(CallPlan, plans[calls])
        names = Names(reading.tools, calls.style)
        return CallReader(self._reader, calls, plan, self._markers, names, self._parts_append, self._begin_call)

    def _parts_append(self, part: Part) -> None:
        self._parts.append(part)

    def _triggers(self) -> Triggers:
        key = (State(self._reasoning, self._start, self._called), self._with_reasoning, self._with_calls)
        plans = self._markers.plans
        if key not in plans:
            plans[key] = triggers(
                self._form, self._markers, key[0], reasoning=self._with_reasoning, calls=self._with_calls
            )
        return cast(Triggers, plans[key])

    def _run(self) -> Steps[None]:
        """Read the output to its end."""
        reader = self._reader
        while True:
            if self._start:
                self._text((yield from space(reader)))
                if not (yield from peek(reader)):
                    break
            found = self._triggers()
            if self._start:
                index = yield from choose(reader, found.options)
                if index < 0:
                    self._start = False
                    continue
            else:
                index = yield from until(reader, found.options, self._text)
                if index < 0:
                    break
            yield from self._act(found.roles[index])
        if not reader.left_out:
            self._emit("".join(self._held))

    def _act(self, role: Role) -> Steps[None]:
        """Do what a marker does, which was read."""
        if role in (Role.SECTION, Role.OPENED):
            yield from self._read_calls(section=role is Role.SECTION)
        elif role is Role.THINK:
            self._turn(reasoning=True)
        elif role is Role.CONTENT:
            self._turn(reasoning=False)
            self._start = False
        elif role is Role.IGNORED:
            self._turn(reasoning=False if self._form.content_open else self._reasoning)
        else:
            self._turn(reasoning=False)

    def _turn(self, *, reasoning: bool) -> None:
        """Begin a stretch of text after a marker."""
        self._reasoning = reasoning
        self._held.clear()
        self._start = self._fresh = True

    def _begin_call(self) -> None:
        """Leave text: a call was recognised."""
        self._reader.raw = None
        self._called = True
        self._turn(reasoning=False)

    def _read_calls(self, *, section: bool) -> Steps[None]:
        """Read the calls of a section, or one call; what is no call is text."""
        reader, calls = self._reader, self._calls
        assert calls is not None
        reader.raw, marked = [reader.matched], bool(reader.matched.strip())
        plan = cast(CallPlan, self._markers.plans[self._form.calls])
        self._start = False  # what is no call is text
        while (yield from calls.read(opened=not section)):
            if not section:
                return
            reader.raw = []
            yield from space(reader)
            if plan.after is not None and (yield from choose(reader, plan.after)) == 0:
                reader.raw = None
                return
        raw, reader.raw = reader.raw, None
        if reader.cut and reader.starved and (marked or not calls.doubtful):
            reader.left_out = True
        else:
            self._text("".join(raw or ()))

    def _text(self, text: str) -> None:
        """Take in text of the current kind; white space waits for what follows."""
        if self._fresh:
            text = text.lstrip(SPACE)
            self._fresh = not text
        body = text.rstrip(SPACE)
        if body:
            self._start = False
            self._emit("".join((*self._held, body)))
            self._held = [text[len(body) :]] if len(body) < len(text) else []
        elif text:
            self._held.append(text)

    def _emit(self, text: str) -> None:
        text = self._markers.visible(text)
        if text:
            self._parts.append(Part(self._thoughts if self._reasoning else PartKind.CONTENT, text))


# The markers that count in a state


class Role(StrEnum):
    """What a marker does: it begins or ends reasoning or content, carries nothing, or begins calls or one call.

    A call that is opened begins with its name or object; before another, its opening text comes first.
    """

    THINK = "think"
    END_THINKING = "end thinking"
    CONTENT = "content"
    END_CONTENT = "end content"
    IGNORED = "ignored"
    SECTION = "section"
    OPENED = "opened"


@dataclass(frozen=True, slots=True)
class State:
    """Where in an output text stands.

    Attributes:
        reasoning: within reasoning.
        start: no text since the last marker.
        called: after a call.
    """

    reasoning: bool
    start: bool
    called: bool


@dataclass(frozen=True, slots=True)
class Triggers:
    """Markers that count in a state, and their roles."""

    options: Choice
    roles: tuple[Role, ...]


def triggers(form: OutputFormat, markers: Markers, state: State, *, reasoning: bool, calls: bool) -> Triggers:
    """Return the markers that count in a state.

    Args:
        reasoning: of the format counts.
        calls: of the format count.
    """
    barred = form.calls.open.strip() if calls and form.calls is not None else ""
    pairs = list(_message(form, partial(_header_pattern, form, markers, barred), state, reasoning))
    if state.start and form.header is not None and form.header.recipient:
        pairs.append((markers.recipient(form.header, barred), Role.IGNORED))
    if calls and form.calls is not None:
        pairs += _calls(form, form.calls, markers, state)
    pairs = [each for each in pairs if each[0].firsts]  # a marker without text marks nothing
    return Triggers(choice(pattern for pattern, _ in pairs), tuple(role for _, role in pairs))


def _is_word(text: str) -> bool:
    """Return whether a text looks like prose, so that it marks something only where a message begins."""
    return text.strip()[:1].isalpha()


def _header_pattern(form: OutputFormat, markers: Markers, without: str, text: str) -> Pattern:
    """Return the pattern of a text; a whole header may have more words, but not `without`, which calls begin with."""
    header = form.header
    if header is None or not (text.startswith(header.open) and text.endswith(header.close)):
        return markers.pattern(text)
    return markers.header(header, text.removesuffix(header.close), header.close, without=without)


def _message(
    form: OutputFormat, pattern: Callable[[str], Pattern], state: State, reasoning: bool
) -> Iterator[tuple[Pattern, Role]]:
    channels = bool(form.content_open)
    if form.reasoning is not None and reasoning:
        if state.start or (not state.reasoning and not _is_word(form.reasoning.open)) or channels:
            yield pattern(form.reasoning.open), Role.THINK
        if state.reasoning or state.start:
            yield pattern(form.reasoning.close), Role.END_THINKING
    if channels:
        other = () if form.header is None else (form.header.open + form.header.close,)
        for text in (form.content_open, *form.content_aliases, *other):
            yield pattern(text), Role.CONTENT
        if form.content_close and not state.reasoning:
            yield pattern(form.content_close), Role.END_CONTENT
    if channels or not state.reasoning:
        for text in form.ignored:
            yield pattern(text), Role.IGNORED


def _calls(form: OutputFormat, calls: Calls, markers: Markers, state: State) -> Iterator[tuple[Pattern, Role]]:
    if calls.section_open.strip():
        begins = [(text, Role.SECTION) for text in (calls.section_open, *calls.aliases)]
        if calls.open.strip():
            begins.append((calls.open, Role.OPENED))
    else:
        begins = [(text, Role.OPENED) for text in (calls.open, *calls.aliases)]
    if form.header is not None:
        yield markers.header(form.header, form.header.open, calls.open), Role.OPENED
    for text, role in begins:
        if not text.strip(" \n[{("):
            if state.start and not state.reasoning:
                yield _bare(text, markers), role
        elif state.start or not (form.content_open and _is_word(text)):
            yield markers.pattern(text), role
    if state.called and not state.reasoning:
        for text in (calls.section_close, *calls.close.split()):
            if text.strip():
                yield markers.pattern(text), Role.IGNORED
        if calls.between.strip() and state.start and not calls.section_open.strip():
            yield markers.pattern(calls.between, follow=(markers.pattern(calls.open or "{"),)), Role.IGNORED


def _bare(text: str, markers: Markers) -> Pattern:
    """Return the pattern of a marker that is only a bracket, or of an object without any marker."""
    return markers.pattern(text) if text.strip() else Pattern((), (Pattern(("{",)),))
