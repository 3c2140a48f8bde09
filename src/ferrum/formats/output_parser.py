"""`OutputParser`: tokens of an output to parts, as they come.

The parser is a generator that waits for text. Which markers count in which state is in `triggers`; calls are read in
`call_reader`. The parts depend on bytes and markers alone: not on how bytes are cut into tokens, or tokens into pushes.
"""

from __future__ import annotations

import codecs
from typing import cast

from ferrum.core.output_format import Reading
from ferrum.formats.call_reader import CallReader, Names
from ferrum.formats.output_parts import Part, PartKind
from ferrum.formats.patterns import SPACE, Markers, markers_of
from ferrum.formats.reader import Reader, Steps, choose, peek, space, until
from ferrum.formats.triggers import CallPlan, Role, State, Triggers, call_plan, triggers
from ferrum.text.tokenizer import Tokenizer


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
