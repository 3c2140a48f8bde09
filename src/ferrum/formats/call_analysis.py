"""Read the form of calls off renderings with one and two calls. `verify` checks it on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ferrum.core.output_format import Calls, CallStyle
from ferrum.formats import probe_conversations as probes
from ferrum.formats.call_arguments import json_arguments, marked, tagged
from ferrum.formats.call_frames import Gaps, frame
from ferrum.formats.call_sites import Site, key_of, sites
from ferrum.formats.probe_conversations import KEYS, NAMES, NUMBER, TEXTS, Named
from ferrum.formats.renderings import NotFoundError, Renderings
from ferrum.formats.turn_analysis import Turn

_FULL: Final = dict(zip(KEYS, TEXTS, strict=True))
_ONE: Final[tuple[Named, ...]] = ((NAMES[0], _FULL),)
_TWO: Final[tuple[Named, ...]] = ((NAMES[0], _FULL), (NAMES[1], {KEYS[0]: TEXTS[0]}))


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A turn with calls, cut at the calls' objects or names."""

    text: str
    sites: Sequence[Site]

    @property
    def after(self) -> str:
        """The text from the end of the first call's object or name to the second call, or to the end."""
        end = self.sites[1].start if len(self.sites) > 1 else None
        return self.text[self.sites[0].end : end]


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """The form of calls, and the text that follows them at the end of a turn."""

    calls: Calls
    rest: str


def find_calls(renderings: Renderings, turn: Turn) -> FoundCalls:
    """Return the form of calls. Raises NotFoundError."""
    one = _render(renderings, _ONE)
    if one is None:
        raise NotFoundError("the chat template renders no tool calls")
    two = _render(renderings, _TWO, optional=True)
    calls, length = _call(renderings, one)
    gap = two.after[length:] if two else None
    found = frame(Gaps(_before(renderings, turn, one), gap, one.after[length:], turn.end))
    calls = replace(
        calls,
        section_open=_shared_space(renderings, turn, one) + found.section_open if found.section_open else "",
        open=found.open,
        close=found.close,
        between=found.between,
        section_close=found.section_close,
        id_place=one.sites[0].id_place,
        id_separator=one.sites[0].id_separator,
        parallel=two is not None,
    )
    if calls.style is CallStyle.NAMED and not calls.open.strip():
        raise NotFoundError("the chat template writes the names of calls without a marker before them")
    return FoundCalls(calls, found.rest)


def _render(renderings: Renderings, calls: Sequence[Named], optional: bool = False) -> _Rendered | None:
    text = renderings.turn(probes.assistant(calls))
    if text is None or (optional and any(name not in text for name, _ in calls)):
        return None
    return _Rendered(text, sites(text, calls))


def _before(renderings: Renderings, turn: Turn, one: _Rendered) -> str:
    """Return the text between the content, or the header if content is left out, and the first call."""
    text = _after_content(renderings, turn)
    return _after_header(turn, one) if text is None else text


def _after_content(renderings: Renderings, turn: Turn) -> str | None:
    """Return the text between content and a call; None if the template leaves content out."""
    both = renderings.turn(probes.assistant(_ONE, content=probes.CONTENT))
    if both is None or both.count(probes.CONTENT) != 1:
        return None
    _, _, after = both.partition(probes.CONTENT)
    after = after.removeprefix(turn.content_close)
    return after[: sites(after, _ONE)[0].start] if NAMES[0] in after else None


def _after_header(turn: Turn, one: _Rendered) -> str:
    """Return the text between the header and a call without content."""
    text = one.text[: one.sites[0].start]
    leads = (turn.header + empty for empty in turn.empty)
    lead = max((each for each in leads if text.startswith(each)), key=len, default=turn.header)
    return text[len(lead) :]


def _shared_space(renderings: Renderings, turn: Turn, one: _Rendered) -> str:
    """Return the white space before the first call, if it is the same with and without content."""
    texts = (_after_header(turn, one), _after_content(renderings, turn) or "")
    spaces = {text[: len(text) - len(text.lstrip())] for text in texts}
    return spaces.pop() if len(spaces) == 1 else ""


def _call(renderings: Renderings, one: _Rendered) -> tuple[Calls, int]:
    """Return the form of a call, and the length of its arguments with the text before them, if they follow it."""
    site, after = one.sites[0], one.after
    if site.style is CallStyle.OBJECT:
        return _object(site, one.text[site.start : site.end]), 0
    if after.startswith(f"({KEYS[0]}="):
        return Calls(style=CallStyle.PYTHONIC), _python_end(after)
    brace = after.find("{")
    end = after.find("}", brace) + 1
    arguments = json_arguments(after[brace:end], _FULL) if brace >= 0 else None
    if arguments is not None:
        return Calls(style=CallStyle.NAMED, after_name=after[:brace], arguments=arguments), end
    empty = _render(renderings, ((NAMES[0], {}),))
    if empty is None:
        raise NotFoundError("the chat template does not render calls without arguments")
    after_name, arguments, close = tagged(empty.after, after)
    typed = _render(renderings, ((NAMES[0], {"whole": NUMBER, KEYS[1]: TEXTS[1]}),))
    if typed is not None:
        arguments = marked(arguments, typed.after)
    return Calls(style=CallStyle.NAMED, after_name=after_name, arguments=arguments), len(after) - len(close)


def _object(site: Site, text: str) -> Calls:
    arguments = json_arguments(text, site.value)
    if arguments is None:
        raise NotFoundError("the chat template writes calls in an unusual spelling of JSON")
    name_key, arguments_key = key_of(site.value, NAMES[0]), key_of(site.value, _FULL)
    keys = list(site.value)
    last = keys.index(arguments_key)
    if name_key not in keys[:last] or keys[keys.index(name_key) + 1] != arguments_key:
        raise NotFoundError("the chat template writes the arguments of a call before its name")
    return Calls(
        style=CallStyle.OBJECT,
        name_key=name_key,
        arguments_key=arguments_key,
        first_keys=tuple(keys[: last - 1]),
        extra_keys=tuple(keys[last + 1 :]),
        arguments=arguments,
    )


def _python_end(after: str) -> int:
    """Return the end of the parenthesis that a text begins with; the probes' texts have none."""
    end = after.find(")") + 1
    if not end:
        raise NotFoundError("the chat template writes arguments in a form that is not known")
    return end
