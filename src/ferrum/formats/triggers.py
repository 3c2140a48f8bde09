"""What a parser looks for in each state of an output, derived from a format. Reading it is in `parser`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from ferrum.core.output_format import ArgumentStyle, Calls, CallStyle, Header, OutputFormat
from ferrum.formats.argument_readers import TaggedPlan, tagged_plan
from ferrum.formats.literals import QuotePlan, quote_plan
from ferrum.formats.patterns import Choice, Markers, Pattern, choice


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


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The markers within calls; None if the format has none.

    Attributes:
        open: before a call of a section.
        close: each part of what ends a call.
        after: after a call of a section: the section closes (0), or another call follows.
        after_name: between the name and arguments.
        id_separator: between id and name.
        tagged, quote: see `tagged_plan` and `quote_plan`.
    """

    open: Choice | None
    close: tuple[Choice, ...]
    after: Choice | None
    after_name: Choice | None
    id_separator: Choice | None
    tagged: TaggedPlan | None
    quote: QuotePlan | None


def call_plan(calls: Calls, markers: Markers, header: Header | None = None) -> CallPlan:
    """Return the markers within a format's calls; `header` is that of the format."""

    def one(*texts: str) -> Choice | None:
        patterns = [markers.pattern(text) for text in texts if text.strip()]
        return choice(patterns) if patterns else None

    after_name = one(calls.after_name, *calls.after_name_aliases)
    if header is not None and calls.after_name.endswith(header.close):
        after_name = choice([markers.header(header, "", header.close)])
    tagged = calls.arguments.style is ArgumentStyle.TAGGED and calls.style is CallStyle.NAMED
    return CallPlan(
        open=one(calls.open),
        close=tuple(choice([each]) for each in markers.words(calls.close)),
        after=one(calls.section_close, calls.between) if calls.section_close.strip() else None,
        after_name=after_name,
        id_separator=one(calls.id_separator),
        tagged=tagged_plan(calls, markers) if tagged else None,
        quote=quote_plan(calls.arguments.quote, markers) if calls.arguments.style is ArgumentStyle.GEMMA else None,
    )


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
