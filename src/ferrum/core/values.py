"""How messages quote what they are about: briefly, and whatever it is.

Integers as callers give them: of any type, numpy's too, but never True or False.
"""

from __future__ import annotations

import math
import reprlib
from operator import index
from typing import Any, Final

from ferrum.core.errors import RequestError

MOST_BITS: Final = 256
"""Of an integer that anybody can mean. Python refuses to write those of thousands of digits: no message could name
them, no log and no record.
"""


def is_huge(value: object) -> bool:
    """Whether a value is an integer that nobody can mean."""
    return isinstance(value, int) and value.bit_length() > MOST_BITS


class _Quotes(reprlib.Repr):
    """Quotes integers by their size where that is all that can be told of them."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100

    def repr_int(self, number: int, level: int) -> str:  # noqa: ARG002 - as `Repr` calls it
        """See `reprlib.Repr`."""
        if not is_huge(number):
            return repr(number)
        return f"about {'-' if number < 0 else ''}10**{math.log10(abs(number)):.0f}"


shown: Final = _Quotes().repr
"""A value for a message: its `repr`, without the middle where that is long."""


def listed(value: Any) -> Any:
    """An array as lists, and its scalars as plain numbers; all else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def integer(value: Any) -> int:
    """As a plain int. Raises TypeError for what is none."""
    if isinstance(value, bool):
        raise TypeError(f"{value} is a truth value")
    return index(value)


def whole(param: str, value: Any) -> int:
    """As a plain int. Raises RequestError for what is none, or huge; `param` is the caller's name for it."""
    try:
        number = integer(value)
    except TypeError:
        raise RequestError(f"must be an integer, not {shown(value)}", param=param) from None
    if is_huge(number):
        raise RequestError(f"must be an integer of at most {MOST_BITS} bits, not {shown(number)}", param=param)
    return number


def kept_length(param: str, value: Any, length: int) -> int:
    """How many of `length` tokens are to be kept, as a plain int. Raises RequestError where there are not so many."""
    kept = whole(param, value)
    if not 0 <= kept <= length:
        raise RequestError(f"{kept} is not in [0, {length}], the length", param=param)
    return kept
