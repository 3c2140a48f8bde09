"""Integers as callers give them: of any type, numpy's too, but never True or False."""

from __future__ import annotations

from operator import index
from typing import Any

from ferrum.core.errors import RequestError
from ferrum.core.shown import MOST_BITS, is_huge, shown


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
