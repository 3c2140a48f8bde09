"""Analyse a chat template: render it with chosen differences and read the markers of its output format off them."""

from __future__ import annotations

from dataclasses import replace

from ferrum.core.output_format import OutputFormat
from ferrum.formats.calls_found import find_calls
from ferrum.formats.renderings import NotFoundError, Renderings
from ferrum.formats.thoughts import find_turn
from ferrum.formats.verify import verify
from ferrum.text.chat_template import ChatTemplate


def analyse(template: ChatTemplate) -> tuple[OutputFormat | None, str]:
    """Return the format that a template writes, and why there is none or it has no calls."""
    found = None
    try:
        renderings = Renderings(template)
        turn = find_turn(renderings, template.source_for_tools)
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
        return (found if found is not None and found.reasoning else None), str(error)
    return complete, ""
