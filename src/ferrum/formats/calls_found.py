"""Read the form of calls off renderings, and check that it explains further ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ferrum.core.output_format import Arguments, ArgumentStyle, Calls, CallStyle
from ferrum.formats import probes
from ferrum.formats.call_arguments import is_pythonic, json_arguments, tagged
from ferrum.formats.call_frames import Frame, Gaps, frame
from ferrum.formats.call_sites import Site, key_of, sites
from ferrum.formats.probes import KEYS, NAMES, TEXTS, Named
from ferrum.formats.renderings import NotFoundError, Renderings
from ferrum.formats.thoughts import Turn

_FULL: Final = dict(zip(KEYS, TEXTS, strict=True))
_ONE: Final[tuple[Named, ...]] = ((NAMES[0], _FULL),)
_TWO: Final[tuple[Named, ...]] = ((NAMES[0], _FULL), (NAMES[1], {KEYS[0]: TEXTS[0]}))


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A turn with calls, cut at the calls' objects or names."""

    text: str
    sites: Sequence[Site]

    def after(self, place: int) -> str:
        """Return the text from a call's end to the next one, or to the end."""
        end = self.sites[place + 1].start if place + 1 < len(self.sites) else None
        return self.text[self.sites[place].end : end]


def find_calls(renderings: Renderings, turn: Turn) -> Calls:
    """Return the form of calls. Raises NotFoundError."""
    one = _render(renderings, _ONE)
    if one is None:
        raise NotFoundError("the chat template does not render tool calls")
    two = _render(renderings, _TWO, optional=True)
    before = _before(renderings, turn, one)
    if one.sites[0].style is CallStyle.OBJECT:
        return _object(one, two, before, turn)
    if is_pythonic(one.after(0)):
        return _pythonic(renderings, one, two, before, turn)
    return _named(renderings, one, two, before, turn)


def _render(renderings: Renderings, calls: Sequence[Named], optional: bool = False) -> _Rendered | None:
    text = renderings.turn(probes.assistant(calls))
    if text is None or (optional and any(name not in text for name, _ in calls)):
        return None
    return _Rendered(text, sites(text, calls))


def _before(renderings: Renderings, turn: Turn, one: _Rendered) -> str:
    """Return the text between the content, or the header if content is left out, and the first call."""
    both = renderings.turn(probes.assistant(_ONE, content=probes.CONTENT))
    if both is not None and both.count(probes.CONTENT) == 1:
        _, _, after = both.partition(probes.CONTENT)
        if all(after.count(name) == 1 for name, _ in _ONE):
            return after.removeprefix(turn.content_close)[: sites(after, _ONE)[0].start - len(turn.content_close)]
    text = one.text[: one.sites[0].start]
    for empty in sorted(turn.empty, key=len, reverse=True):
        if text.startswith(turn.header + empty):
            return text[len(turn.header + empty) :]
    return text[len(turn.header) :]


def _object(one: _Rendered, two: _Rendered | None, before: str, turn: Turn) -> Calls:
    between = two.after(0) if two else None
    found = frame(Gaps(before, between, one.after(0), turn.end))
    value = one.sites[0].value
    text = one.text[one.sites[0].start : one.sites[0].end]
    arguments = json_arguments(text, value)
    if arguments is None:
        raise NotFoundError("the chat template writes calls in an unusual spelling of JSON")
    name_key, arguments_key = key_of(value, NAMES[0]), key_of(value, _FULL)
    extra = tuple(key for key in value if key not in (name_key, arguments_key))
    return _calls(
        found,
        style=CallStyle.OBJECT,
        name_key=name_key,
        arguments_key=arguments_key,
        extra_keys=extra,
        arguments=arguments,
        parallel=two is not None,
    )


def _named(renderings: Renderings, one: _Rendered, two: _Rendered | None, before: str, turn: Turn) -> Calls:
    after = one.after(0)
    brace = after.find("{")
    empty = _render(renderings, ((NAMES[0], {}),))
    if empty is None:
        raise NotFoundError("the chat template does not render calls without arguments")
    for spelling in (", ", ","), (": ", ":"):
        del spelling
    inner = _json_after(after, brace)
    if inner is not None:
        arguments, length = inner
        after_name = after[:brace]
        gap = two.after(0)[brace + length :] if two else None
        found = frame(Gaps(before, gap, after[brace + length :], turn.end))
    else:
        shared = two.after(1) if two else after
        del shared
        after_name, arguments, found = _tagged(empty, one, two, before, turn)
    return _calls(found, style=CallStyle.NAMED, after_name=after_name, arguments=arguments, parallel=two is not None)


def _json_after(after: str, brace: int) -> tuple[Arguments, int] | None:
    """Return the spelling and length of the JSON object of `_FULL` at a place."""
    if brace < 0:
        return None
    end = after.find("}", brace) + 1
    arguments = json_arguments(after[brace:end], _FULL)
    return None if arguments is None else (arguments, end - brace)


def _tagged(
    empty: _Rendered, one: _Rendered, two: _Rendered | None, before: str, turn: Turn
) -> tuple[str, Arguments, Frame]:
    after_name, arguments, close = tagged(empty.after(0), one.after(0))
    gap = None
    if two:
        rest = two.after(0)
        gap = rest[rest.index(TEXTS[-1]) + len(TEXTS[-1] + arguments.value_close) :]
    found = frame(Gaps(before, gap, close, turn.end))
    return after_name, arguments, found


def _pythonic(renderings: Renderings, one: _Rendered, two: _Rendered | None, before: str, turn: Turn) -> Calls:
    del renderings
    after = one.after(0)
    gap = two.after(0)[_python_end(two.after(0)) :] if two else None
    found = frame(Gaps(before, gap, after[_python_end(after) :], turn.end))
    return _calls(found, style=CallStyle.PYTHONIC, arguments=Arguments(), parallel=two is not None)


def _python_end(after: str) -> int:
    """Return the end of the parenthesis that a text begins with; the probes' texts have none."""
    end = after.find(")") + 1
    if not end:
        raise NotFoundError("the chat template writes arguments in a form that is not known")
    return end


def _calls(found: Frame, **fields: object) -> Calls:
    return Calls(
        section_open=found.section_open,
        open=found.open,
        close=found.close,
        between=found.between,
        section_close=found.section_close,
        **fields,  # type: ignore[arg-type]
    )


__all__ = ["ArgumentStyle", "find_calls"]
