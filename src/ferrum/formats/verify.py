"""Check that a format explains what a template writes: each probe is written by the format and compared.

Values that are not strings may be spelled in JSON, or as Python writes them: many templates do without `tojson`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ferrum.core.output_format import Calls, CallStyle, OutputFormat
from ferrum.formats import probes
from ferrum.formats.call_sites import sites
from ferrum.formats.probes import CONTENT, KEYS, NAMES, REASONING, Named
from ferrum.formats.renderings import NotFoundError, Renderings
from ferrum.formats.thoughts import Turn
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
    spellings = list(_spellings(format.calls))
    for calls in _CONVERSATIONS:
        if len(calls) > 1 and not format.calls.parallel:
            continue
        for content, reasoning in ((None, None), (CONTENT, None), (CONTENT, REASONING)):
            text = renderings.turn(probes.assistant(calls, content, reasoning))
            if text is None:
                raise NotFoundError(f"the chat template does not render {len(calls)} calls")
            text = _without_extras(text, calls, format.calls, spellings[0])
            spellings = [each for each in spellings if _explains(text, calls, format, turn, rest, each)]
            if not spellings:
                raise NotFoundError("the chat template writes calls in a form that is not known")


def _spellings(calls: Calls) -> Iterator[Spelling]:
    plain, ascii_only = json_spelling(calls.arguments), json_spelling(calls.arguments, ascii_only=True)
    yield plain
    yield ascii_only
    yield lambda value: plain(value) if isinstance(value, dict | list) else str(value)
    yield str


def _without_extras(text: str, calls: Sequence[Named], format: Calls, spell: Spelling) -> str:
    """Return the text with only name and arguments in the objects of calls, if they have further keys."""
    if format.style is not CallStyle.OBJECT or not format.extra_keys:
        return text
    keys = [*format.extra_keys, format.name_key, format.arguments_key]
    for site in reversed(sites(text, calls)):
        if sorted(site.value) != sorted(keys):
            raise NotFoundError("the chat template writes calls with different keys")
        value = {key: site.value[key] for key in (format.name_key, format.arguments_key)}
        text = text[: site.start] + spell(value) + text[site.end :]
    return text


def _explains(text: str, calls: Sequence[Named], format: OutputFormat, turn: Turn, rest: str, spell: Spelling) -> bool:
    assert format.calls is not None
    ending = write_calls(format.calls, calls, spell) + rest
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
