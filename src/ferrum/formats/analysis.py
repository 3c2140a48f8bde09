"""Analyse a chat template: render it with chosen differences and read the markers of its output format off them.

Turns are read in `turn_analysis` and calls in `call_analysis`; the format must then write further conversations as the
template does. Values that are not strings may be spelled in JSON, or as Python writes them: many templates do without
`tojson`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrum.core.json_record import JsonRecord
from ferrum.core.output_format import Calls, CallStyle, OutputFormat, Reasoning
from ferrum.formats import probe_conversations as probes
from ferrum.formats.call_analysis import find_calls
from ferrum.formats.known_formats import known_by_template
from ferrum.formats.output_parts import id_text
from ferrum.formats.probe_conversations import CONTENT, KEYS, NAMES, REASONING, Named, NotFoundError, Renderings
from ferrum.formats.turn_analysis import Turn, find_turn
from ferrum.formats.writing import Spelling, json_spelling, write_calls
from ferrum.text.chat_template import ChatTemplate

_SWITCHES: Final[Mapping[str, tuple[Any, ...]]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning_effort": ("low", "medium", "high"),
}
"""Variables of templates about reasoning, with values between which the prompt may differ."""

_WORDS: Final = (probes.NAMES[0], probes.KEYS[0], probes.TEXTS[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts(JsonRecord):
    """What the analysis of a chat template finds.

    Attributes:
        format: that of its answers; None if nothing is known about them.
        reason: why the format has no calls; empty if it has.
        renders_tools: the template writes tools into the prompt; otherwise the format has no calls.
        variables: those of `_SWITCHES` that change the prompt.
    """

    format: OutputFormat | None
    reason: str
    renders_tools: bool = False
    variables: tuple[str, ...] = ()


def analyse(template: ChatTemplate, *, use_known: bool = True) -> TemplateFacts:
    """Return the facts about a template.

    Args:
        template: is rendered about 40 times, with few steps each and for two seconds at most.
        use_known: consult the hand-written formats: for templates that do not show how calls are written, and for what
            no template shows, such as other texts that models write in place of a marker.
    """
    source = template.source_for_tools
    known = known_by_template(source) if use_known else None
    try:
        renderings = Renderings(template)
        variables = _variables(renderings)
        renders_tools = _renders_tools(renderings)
    except NotFoundError as error:
        return TemplateFacts(format=None, reason=str(error))
    format, reason = _found(renderings, source)
    if known is not None:
        if format is not None and format.calls is not None:
            format = _completed(format, known, source)
        elif not _contradicts(renderings, known):
            format, reason = _instead(format, known, source), ""
    if not renders_tools:
        reason = "the chat template does not write tools into the prompt"
        format = None if format is None else replace(format, calls=None)
    return TemplateFacts(format=format, reason=reason, renders_tools=renders_tools, variables=variables)


def _found(renderings: Renderings, source: str) -> tuple[OutputFormat | None, str]:
    """Return the format that renderings show, and why it has no calls."""
    found = None
    try:
        turn = find_turn(renderings, source)
        found = OutputFormat(
            name="template",
            source="template",
            reasoning=turn.reasoning,
            content_open=turn.content_open,
            content_close=turn.content_close,
        )
        calls = find_calls(renderings, turn)
        complete = replace(found, calls=calls.calls)
        check_format(renderings, complete, turn, calls.rest)
    except NotFoundError as error:
        return (found if found is not None and found.reasoning is not None else None), str(error)
    return complete, ""


def _completed(found: OutputFormat, known: OutputFormat, source: str) -> OutputFormat:
    """Return a found format with what only the hand-written one with the same first marker knows."""
    calls, other = found.calls, known.calls
    assert calls is not None
    if other is None or other.style is not calls.style or first_marker(other) != first_marker(calls):
        return found
    calls = replace(calls, aliases=other.aliases, after_name_aliases=other.after_name_aliases)
    aliases = {*known.content_aliases, known.content_open} - {found.content_open, ""} if found.content_open else ()
    return replace(
        found,
        name=known.name,
        calls=calls,
        reasoning=_reasoning_of(found, known, source),
        content_close=found.content_close or known.content_close,
        content_aliases=tuple(sorted(aliases)),
        ignored=known.ignored,
        header=known.header,
    )


def _instead(found: OutputFormat | None, known: OutputFormat, source: str) -> OutputFormat:
    """Return a hand-written format, for a template that does not show how calls are written."""
    shown = found.reasoning if found is not None else None
    return replace(known, reasoning=_reasoning_in(known, source) or shown)


def _reasoning_of(found: OutputFormat, known: OutputFormat, source: str) -> Reasoning | None:
    """Return the reasoning that was found; the hand-written one if none was, or if they differ by an ignored text."""
    written = _reasoning_in(known, source)
    if found.reasoning is None or written is None:
        return found.reasoning or written
    closes = {written.close + text for text in known.ignored}
    return written if found.reasoning.close in closes else found.reasoning


def _reasoning_in(known: OutputFormat, source: str) -> Reasoning | None:
    """Return the reasoning of a hand-written format if a template has its end: not all models of a kind reason."""
    return known.reasoning if known.reasoning is not None and known.reasoning.close.strip() in source else None


def first_marker(calls: Calls) -> str:
    """Return the text that begins calls, without white space."""
    return (calls.section_open + calls.open).strip()


def _contradicts(renderings: Renderings, known: OutputFormat) -> bool:
    """Return whether the template renders a call, but not as a hand-written format writes it."""
    assert known.calls is not None
    call = (probes.NAMES[0], {probes.KEYS[0]: probes.TEXTS[0]})
    ids = (probes.call_id(0), "0")
    written = ["".join(write_calls(known.calls, [call], ids=[each]).split()) for each in ids]
    # Some templates write the id of a call only, in which models of this format write the name.
    sent = (ids[0], id_text(known.calls, call[0], "0"))
    texts = [renderings.turn(probes.assistant([call], ids=[each])) or "" for each in sent]
    shown = ["".join(text.split()) for text in texts if any(word in text for word in _WORDS)]
    return bool(shown) and not any(each in text for each in written for text in shown)


def _renders_tools(renderings: Renderings) -> bool:
    """Return whether tools change the prompt; if no prompt renders at all, the first answer will show why."""
    texts = [renderings.whole([probes.user()], tools=tools, prompt=True) for tools in (True, False)]
    return texts[0] is not None and texts[0] != texts[1]


def _variables(renderings: Renderings) -> tuple[str, ...]:
    """Return the variables about reasoning that change the prompt."""
    return tuple(
        name
        for name, values in _SWITCHES.items()
        if len({renderings.whole([probes.user()], prompt=True, variables={name: value}) for value in values}) > 1
    )


# Whether a format explains what the template writes for further conversations

_RICH: Final[Mapping[str, Any]] = {
    KEYS[0]: 'Zürich "x" 漢',
    "whole": 3,
    "real": 2.5,
    "flag": True,
    "object": {"a": [1, None, {"b": "c"}], "d": False},
    "array": ["e", 4],
    KEYS[1]: "42",
}
_CONVERSATIONS: Final[tuple[tuple[Named, ...], ...]] = (
    ((NAMES[0], _RICH),),
    ((NAMES[0], {"whole": -7}),),
    ((NAMES[0], {"object": {"a": {}}, "flag": False}), (NAMES[1], _RICH)),
    ((NAMES[2], {}), (NAMES[0], {KEYS[2]: "a\nb"}), (NAMES[1], {"array": []})),
)


def check_format(renderings: Renderings, format: OutputFormat, turn: Turn, rest: str) -> None:
    """Compare what the template and the format write for several conversations. Raises NotFoundError."""
    assert format.calls is not None
    ways = [(place, numbered) for place in range(len(_spellings(format.calls))) for numbered in (False, True)]
    for calls in _CONVERSATIONS:
        if len(calls) > 1 and not format.calls.parallel:
            continue
        for content, reasoning in ((None, None), (CONTENT, None), (CONTENT, REASONING)):
            text = renderings.turn(probes.assistant(calls, content, reasoning))
            if text is None:
                raise NotFoundError(f"the chat template does not render {len(calls)} calls")
            ways = [way for way in ways if _explains(text, _written(format.calls, calls, way), rest, format, turn)]
            if not ways:
                raise NotFoundError("the chat template writes calls in a form that is not known")


def _written(form: Calls, calls: Sequence[Named], way: tuple[int, bool]) -> str:
    """Return calls in one of the spellings, with the probes' ids or with numbers as ids."""
    ids = () if way[1] else [probes.call_id(place) for place in range(len(calls))]
    return write_calls(form, calls, _spellings(form)[way[0]], ids)


def _spellings(calls: Calls) -> tuple[Spelling, ...]:
    """Return the spellings that are tried."""
    plain = json_spelling(calls.arguments)
    if calls.style is CallStyle.PYTHONIC:
        return (
            repr,
            lambda value: plain(value) if isinstance(value, dict) else repr(value),
            lambda value: plain(value) if isinstance(value, dict) else _unescaped(value),
        )
    return (
        plain,
        json_spelling(calls.arguments, ascii_only=True),
        lambda value: plain(value) if isinstance(value, dict | list) else str(value),
        lambda value: plain(value) if isinstance(value, dict) else str(value),
        str,
    )


def _unescaped(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else repr(value)


def _explains(text: str, written: str, rest: str, format: OutputFormat, turn: Turn) -> bool:
    """Return whether a turn ends with the calls, and has only content and reasoning of the probes before."""
    ending = written + rest
    if not text.endswith(ending):
        return False
    before = text[: len(text) - len(ending)].removeprefix(turn.header).rstrip()
    leads = {"", *(each.strip() for each in turn.empty)}
    before = before.removesuffix(format.content_close.rstrip())
    if before.endswith(CONTENT):
        before = before.removesuffix(CONTENT).rstrip()
        before = before.removesuffix(format.content_open).rstrip()
    if format.reasoning is not None and REASONING in before:
        opened, _, closed = before.partition(REASONING)
        return (
            opened.strip() in {format.reasoning.open.strip(), ""} and closed.strip() == format.reasoning.close.strip()
        )
    return before.strip() in leads
