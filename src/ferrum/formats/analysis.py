"""Analyse a chat template: render it with chosen differences and read the markers of its output format off them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrum.core.json_record import JsonRecord
from ferrum.core.output_format import Calls, OutputFormat, Reasoning
from ferrum.formats import probe_conversations as probes
from ferrum.formats.call_analysis import find_calls
from ferrum.formats.call_ids import written_id
from ferrum.formats.known_formats import known_by_template
from ferrum.formats.renderings import NotFoundError, Renderings
from ferrum.formats.turn_analysis import find_turn
from ferrum.formats.verify import verify
from ferrum.formats.writing import write_calls
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
        verify(renderings, complete, turn, calls.rest)
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
    sent = (ids[0], written_id(known.calls, call[0], 0))
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
