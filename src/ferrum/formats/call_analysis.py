"""Read the form of calls off renderings with one and two calls: their places, markers, and arguments.

`analysis` checks it on further conversations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ferrum.core.output_format import Arguments, ArgumentStyle, Calls, CallStyle, IdPlace, ValueStyle
from ferrum.formats import probe_conversations as probes
from ferrum.formats.probe_conversations import KEYS, NAMES, NUMBER, TEXTS, Named, NotFoundError, Renderings, call_id
from ferrum.formats.turn_analysis import Turn, shared_prefix, shared_suffix

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


# Where the calls stand in a text

_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Site:
    """Where a call stands: from its object or name on, to the end of the object or name.

    Attributes:
        style: OBJECT, or NAMED for the other two styles.
        start, end: in the text, with the id next to a name.
        value: the object, for OBJECT.
        id_place, id_separator: of `Calls`.
    """

    style: CallStyle
    start: int
    end: int
    value: Mapping[str, Any] = field(default_factory=dict)
    id_place: IdPlace = IdPlace.NONE
    id_separator: str = ""


def sites(text: str, calls: Sequence[Named]) -> list[Site]:
    """Return the places of calls in their order.

    Raises:
        NotFoundError: a name is missing or repeated, or styles differ.
    """
    found: list[Site] = []
    start = 0
    for number, (name, arguments) in enumerate(calls):
        if text.count(name) != 1:
            problem = (
                "writes the name of a call more than once" if name in text else "does not write the names of calls"
            )
            raise NotFoundError(f"the chat template {problem}")
        place = text.index(name)
        site = _object_around(text, start, place, name, arguments)
        found.append(site or _name_with_id(text, start, place, place + len(name), number))
        start = found[-1].end
    if len({(site.style, site.id_place, site.id_separator) for site in found}) > 1:
        raise NotFoundError("the chat template writes calls of one message in different ways")
    if [site.start for site in found] != sorted(site.start for site in found):
        raise NotFoundError("the chat template changes the order of calls")
    return found


def _object_around(text: str, start: int, place: int, name: str, arguments: Mapping[str, Any]) -> Site | None:
    """Return the smallest JSON object with this name and these arguments."""
    brace = place
    while (brace := text.rfind("{", start, brace)) >= 0:
        try:
            value, end = _DECODER.raw_decode(text, brace)
        except ValueError:
            continue
        if end > place and isinstance(value, dict) and key_of(value, name) and key_of(value, arguments):
            return Site(CallStyle.OBJECT, brace, end, value)
    return None


def _name_with_id(text: str, start: int, place: int, end: int, number: int) -> Site:
    """Return the place of a name with the id before or after it; an id after it may be the call's number."""
    id_ = call_id(number)
    before = text.find(id_, start, place)
    if before >= 0:
        return Site(CallStyle.NAMED, before, end, id_place=IdPlace.BEFORE, id_separator=text[before + len(id_) : place])
    found = re.compile(rf"([^\w\s{{(]+|\[[A-Z_]+\])(?:{id_}|{number})(?=[<\[])").match(text, end)
    if found is None:
        return Site(CallStyle.NAMED, place, end)
    return Site(CallStyle.NAMED, place, found.end(), id_place=IdPlace.AFTER, id_separator=found[1])


def key_of(value: Mapping[str, Any], wanted: Any) -> str:
    """Return the key with this value, or an empty text."""
    return next((key for key, each in value.items() if each == wanted and type(each) is type(wanted)), "")


# The markers around calls


@dataclass(frozen=True, slots=True)
class Gaps:
    """The texts around and between the calls of a message.

    Attributes:
        before: from the end of the content to the first call.
        between: from one call to the next; None if the template writes one call only.
        after: from the last call to the end.
        end: what follows a message without calls.
    """

    before: str
    between: str | None
    after: str
    end: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The markers of `Calls` with the same names, and what follows the last one."""

    section_open: str
    open: str
    close: str
    between: str
    section_close: str
    rest: str


def frame(gaps: Gaps) -> Frame:
    """Return the markers that the gaps consist of.

    The texts before the first and between two calls end with the `open` of a call; those between two and after the last
    begin with its `close`. White space between them belongs to the section and to `between`.
    """
    before = gaps.before.lstrip()
    if gaps.between is None:
        end = shared_suffix(gaps.after, gaps.end)
        return Frame("", before, gaps.after[: len(gaps.after) - len(end)].rstrip(), "", "", end)
    open_ = shared_suffix(before, gaps.between).lstrip()
    close = shared_prefix(gaps.between, gaps.after).rstrip()
    if len(open_) + len(close) > len(gaps.between):  # both would take the same text: it ends a call
        open_ = open_[len(open_) + len(close) - len(gaps.between) :]
    between = gaps.between[len(close) : len(gaps.between) - len(open_)]
    section_open = before[: len(before) - len(open_)]
    after = gaps.after[len(close) :]
    if not section_open:
        return Frame("", open_, close, between, "", after)
    end = shared_suffix(after, gaps.end)
    section_close = after[: len(after) - len(end)]
    trimmed = section_close.rstrip()
    end = section_close[len(trimmed) :] + end
    if between and not between.strip() and trimmed.startswith(between):  # every call ends so
        close, between, trimmed = close + between, "", trimmed.removeprefix(between)
    return Frame(section_open, open_, close, between, trimmed, end)


# The form of arguments after a name

SEPARATORS = ((", ", ": "), (",", ":"), (", ", ":"), (",", ": "))
"""Spellings of JSON that are tried: of items and keys."""


def json_arguments(text: str, value: object) -> Arguments | None:
    """Return the separators with which a JSON text of a value is written, or None for another spelling."""
    for items, keys in SEPARATORS:
        for ascii_only in (False, True):
            if json.dumps(value, ensure_ascii=ascii_only, separators=(items, keys)) == text:
                return Arguments(item_separator=items, key_separator=keys)
    return None


def tagged(empty: str, full: str) -> tuple[str, Arguments, str]:
    """Return what follows the name, the form of the arguments, and what follows the last one.

    Args:
        empty: the text after the name of a call without arguments.
        full: that of a call with texts of the probes under three keys.
    """
    places = []
    start = 0
    for word in (part for pair in zip(KEYS, TEXTS, strict=True) for part in pair):
        place = full.find(word, start)
        if place < 0 or full.count(word) != 1:
            raise NotFoundError("the chat template writes arguments in a form that is not known")
        places.append((place, place + len(word)))
        start = place + len(word)
    first, key_to_value, ends = full[: places[0][0]], full[places[0][1] : places[1][0]], full[places[-1][1] :]
    turn = full[places[1][1] : places[2][0]]
    if any(
        full[places[n][1] : places[n + 1][0]] != text for n, text in ((2, key_to_value), (3, turn), (4, key_to_value))
    ):
        raise NotFoundError("the chat template writes arguments in different ways")
    after_name = shared_prefix(first, empty)
    key_open, close = first[len(after_name) :], empty[len(after_name) :]
    if not ends.endswith(close) or not turn.endswith(key_open):
        raise NotFoundError("the chat template writes calls without arguments in another way")
    value_close = ends[: len(ends) - len(close)]
    middle = turn[: len(turn) - len(key_open)]
    if not middle.startswith(value_close):
        value_close = shared_prefix(value_close, middle)
        close = ends[len(value_close) :]
    quoted = key_to_value.endswith('"') and value_close.startswith('"')
    if quoted:
        key_to_value, value_close = key_to_value[:-1], value_close[1:]
        middle = middle[1:]
    between = middle[len(value_close) :]
    if between and not between.strip() and close.startswith(between):  # every argument ends so, if there are any
        value_close, between, close = value_close + between, "", close.removeprefix(between)
    if not key_open or not value_close:
        raise NotFoundError("the chat template writes arguments without markers")
    found = Arguments(
        style=ArgumentStyle.TAGGED,
        key_open=key_open,
        key_close=key_to_value,
        value_close=value_close,
        between=between,
        empty=empty[len(after_name) : len(empty) - len(close)],
        values=ValueStyle.JSON if quoted else ValueStyle.RAW,
    )
    return after_name, _split_keys(found), close


def _split_keys(arguments: Arguments) -> Arguments:
    """Divide the text between key and value at the begin of the value's own tag, if there is one."""
    text = arguments.key_close
    place = text.find("<", 1)
    if place < 0:
        return arguments
    return replace(arguments, key_close=text[:place], value_open=text[place:])


def marked(arguments: Arguments, typed: str) -> Arguments:
    """Return the arguments with the words that say whether a value is a string, if there are any.

    Args:
        arguments: as strings are written.
        typed: the text after the name of a call whose first value is `NUMBER`, under the key `whole`.
    """
    place = typed.find(arguments.key_open + "whole") + len(arguments.key_open + "whole")
    end = typed.find(str(NUMBER), place)
    as_string, as_number = arguments.key_close + arguments.value_open, typed[place:end]
    if end < 0 or as_string == as_number:
        return arguments
    words = [list(re.finditer(r"\w+", text)) for text in (as_string, as_number)]
    for string, number in zip(*words, strict=False):
        if string[0] != number[0]:
            key_close, value_open = as_string[: string.start()], as_string[string.end() :]
            if as_number == key_close + number[0] + value_open:
                return replace(
                    arguments, key_close=key_close, string_mark=string[0], other_mark=number[0], value_open=value_open
                )
    return arguments
