"""Locate a probe's calls in a rendered text: as a JSON object, or by name with arguments after it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrum.core.output_format import CallStyle, IdPlace
from ferrum.formats.probe_conversations import Named, call_id
from ferrum.formats.renderings import NotFoundError

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
