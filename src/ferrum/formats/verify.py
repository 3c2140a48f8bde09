"""Check that a format explains what a template writes: each probe is written by the format and compared.

Values that are not strings may be spelled in JSON, or as Python writes them: many templates do without `tojson`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferrum.core.output_format import Calls, CallStyle, OutputFormat
from ferrum.formats import probe_conversations as probes
from ferrum.formats.probe_conversations import CONTENT, KEYS, NAMES, REASONING, Named
from ferrum.formats.renderings import NotFoundError, Renderings
from ferrum.formats.turn_analysis import Turn
from ferrum.formats.writing import Spelling, json_spelling, write_calls

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


def verify(renderings: Renderings, format: OutputFormat, turn: Turn, rest: str) -> None:
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


def _written(format: Calls, calls: Sequence[Named], way: tuple[int, bool]) -> str:
    """Return calls in one of the spellings, with the probes' ids or with numbers as ids."""
    ids = () if way[1] else [probes.call_id(place) for place in range(len(calls))]
    return write_calls(format, calls, _spellings(format)[way[0]], ids)


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
