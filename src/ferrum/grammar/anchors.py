"""Anchors of regular expressions: what they mean is written out, since llguidance reads them at the ends only.

An expression becomes up to four without anchors, by whether a match begins where the text does, and ends where it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Final, TypeAlias

MOST_CHARACTERS: Final = 16 * 1024
_ANY: Final = "(?s:.*)"


@dataclass(frozen=True, slots=True)
class Part:
    """An expression without anchors, and whether it matches the empty text."""

    regex: str
    empty: bool


Anchored: TypeAlias = Mapping[tuple[bool, bool], Part]
"""An expression by (a match begins where the text does, and ends where it ends); absent: there is no such match."""

_FREE: Final = (False, False)
NOTHING: Final[Anchored] = MappingProxyType({_FREE: Part("", empty=True)})
START: Final[Anchored] = MappingProxyType({(True, False): Part("", empty=True)})
END: Final[Anchored] = MappingProxyType({(False, True): Part("", empty=True)})


def plain(regex: str) -> Anchored:
    """Return an expression of one character or more, without anchors."""
    return {_FREE: Part(regex, empty=False)}


def one_after_the_other(parts: Iterable[Anchored]) -> Anchored:
    """Return expressions in sequence."""
    found = NOTHING
    for each in parts:
        found = _joined(found, each)
    return found


def _joined(one: Anchored, other: Anchored) -> Anchored:
    found: dict[tuple[bool, bool], list[Part]] = {}
    for ((start, ended), first), ((begun, end), second) in product(one.items(), other.items()):
        # What precedes the start of the text, and what follows its end, is empty.
        if (begun and not first.empty) or (ended and not second.empty):
            continue
        regex = ("" if begun else first.regex) + ("" if ended else second.regex)
        part = Part(regex, (first.empty or begun) and (second.empty or ended))
        found.setdefault((start or begun, ended or end), []).append(part)
    return _united(found)


def either(options: Iterable[Anchored]) -> Anchored:
    """Return one of several expressions."""
    found: dict[tuple[bool, bool], list[Part]] = {}
    for option in options:
        for ends, part in option.items():
            found.setdefault(ends, []).append(part)
    return _united(found)


def _united(found: Mapping[tuple[bool, bool], list[Part]]) -> Anchored:
    united = {}
    for ends, parts in found.items():
        texts = list(dict.fromkeys(each.regex for each in parts))
        regex = texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"
        if len(regex) > MOST_CHARACTERS:
            raise ValueError(f"has more than {MOST_CHARACTERS} characters once its anchors are written out")
        united[ends] = Part(regex, any(each.empty for each in parts))
    return united


def repeated(part: Anchored, least: int, most: int | None) -> Anchored:
    """Return an expression several times; `most` None: without a limit.

    Raises:
        ValueError: an expression with anchors is repeated by a count.
    """
    count = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    count = count or f"{{{least},{'' if most is None else most}}}"
    if part.keys() <= {_FREE}:
        inner = part.get(_FREE, Part("", empty=False))
        if not part:
            return NOTHING if least == 0 else {}
        return {_FREE: Part(f"(?:{inner.regex}){count}", inner.empty or least == 0)}
    if least > 1 or most not in (1, None):
        raise ValueError("has an anchor in a counted repetition, which cannot be enforced")
    options = [part] if least else [NOTHING, part]
    if most is None:
        middle = {_FREE: Part(f"(?:{part[_FREE].regex})*", empty=True)} if _FREE in part else NOTHING
        options.append(one_after_the_other([part, middle, part]))
    return either(options)


def searched(expression: Anchored) -> str:
    """Return the expression of texts in which one matches somewhere.

    Raises:
        ValueError: it matches nothing.
    """
    texts = [f"{'' if start else _ANY}{part.regex}{'' if end else _ANY}" for (start, end), part in expression.items()]
    return _whole(texts)


def matched(expression: Anchored) -> str:
    """Return the expression of texts that one matches as a whole.

    Raises:
        ValueError: it matches nothing.
    """
    return _whole([part.regex for part in expression.values()])


def _whole(texts: list[str]) -> str:
    if not texts:
        raise ValueError("matches no text, because of an anchor in its middle")
    return f"(?:{'|'.join(dict.fromkeys(texts))})"
