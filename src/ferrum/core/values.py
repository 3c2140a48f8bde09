"""Quoting of values in messages, integers from callers, numpy's included, and numbers of JSON that Python cannot hold.

Checks of spans are in `core/span_checks.py`, of options in `core/option_fields.py`.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter, index
from typing import Any, Final, TypeVar

from ferrum.core.errors import RequestError

MOST_BITS: Final = 256
"""Size limit of integers from callers. Python refuses to write integers of thousands of digits, so no message could."""


MOST_DIGITS: Final = 4300
"""Digits of the integers that Python reads and writes (`sys.int_info.default_max_str_digits`)."""

_JSON_NUMBERS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|-?[0-9][0-9.eE+-]*+', re.DOTALL)
"""Strings of JSON, which may contain digits, and numbers."""


def readable_json(text: str) -> str:
    """Return JSON whose numbers every parser can read: those beyond Python's limits become strings of their digits."""
    return _JSON_NUMBERS.sub(_readable, text)


def _readable(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == '"' or (len(text) <= MOST_DIGITS and not ("e" in text.lower() and _is_infinite(text))):
        return text
    return f'"{text}"'


def _is_infinite(text: str) -> bool:
    try:
        return math.isinf(float(text))
    except ValueError:
        return False


def is_huge(value: object) -> bool:
    """Whether a value is an integer beyond the size limit."""
    return isinstance(value, int) and value.bit_length() > MOST_BITS


class _Quotes(reprlib.Repr):
    """A `repr` that shortens long values and gives huge integers as powers of ten."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100

    def repr_int(self, number: int, level: int) -> str:  # noqa: ARG002 - as `Repr` calls it
        if not is_huge(number):
            return repr(number)
        return f"about {'-' if number < 0 else ''}10**{math.log10(abs(number)):.0f}"


shown: Final = _Quotes().repr
"""Quote a value in a message: its `repr`, with the middle left out if long."""


def listed(value: Any) -> Any:
    """Return an array as lists and an array scalar as a number; any other value as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def integer(value: Any) -> int:
    """Return a value as a plain int. Raises TypeError for anything else, truth values included."""
    if isinstance(value, bool):
        raise TypeError(f"{value} is a truth value")
    return index(value)


def whole(param: str, value: Any, *, least: int | None = None) -> int:
    """Return a value as a plain int; `param` is its name.

    Raises RequestError for no integer, a huge one, or one below `least`.
    """
    try:
        number = integer(value)
    except TypeError:
        raise RequestError(f"must be an integer, not {shown(value)}", param=param) from None
    if is_huge(number):
        raise RequestError(f"must be an integer of at most {MOST_BITS} bits, not {shown(number)}", param=param)
    if least is not None and number < least:
        raise RequestError(f"must be at least {least}, not {number}", param=param)
    return number


def kept_length(param: str, value: Any, length: int) -> int:
    """Return how many of `length` tokens to keep, as a plain int. Raises RequestError outside of [0, length]."""
    kept = whole(param, value)
    if not 0 <= kept <= length:
        raise RequestError(f"{kept} is not in [0, {length}], the stored length", param=param)
    return kept


# ---- Fast pickling of messages that cross to another process in great numbers ----

Message = TypeVar("Message")


def pickled_by_fields(kind: type[Message]) -> type[Message]:
    """Pickle a dataclass of two or more fields as one call with all of them, in C.

    Frozen dataclasses with slots would loop over their fields in Python, two to three times slower on both sides.
    """
    read: Callable[[Message], tuple[Any, ...]] = attrgetter(*(each.name for each in fields(kind)))  # type: ignore[arg-type]

    def reduce(self: Message) -> tuple[type[Message], tuple[Any, ...]]:
        return kind, read(self)

    kind.__reduce__ = reduce  # type: ignore[method-assign, assignment]
    return kind
