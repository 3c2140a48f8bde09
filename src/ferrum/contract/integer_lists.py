"""Token ids, masks and positions from callers: nested lists or arrays as immutable tuples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, TypeAlias

from ferrum.core.errors import InvalidToken, RequestError
from ferrum.core.values import integer, listed, shown

Matrix: TypeAlias = tuple[tuple[int, ...], ...]
"""[B, S] integers."""


def token_row(name: str, value: Any) -> tuple[int, ...]:
    """Return a list or array [S] of token ids, possibly empty, as a tuple. Raises as `token_matrix`."""
    row = listed(value)
    return () if isinstance(row, Sequence) and not row else only_row(name, row)


def token_matrix(name: str, value: Any) -> Matrix:
    """Return a list or array [B, S] or [S] of token ids as tuples.

    Raises InvalidToken or RequestError, with `name` as param.
    """
    return _matrix(name, value, _token)


def integer_matrix(name: str, value: Any) -> Matrix:
    """Return a list or array [B, S] or [S] of integers as tuples. Raises RequestError, with `name` as param."""
    return _matrix(name, value, _number)


def only_row(name: str, value: Any) -> tuple[int, ...]:
    """Return the tokens of one sequence, [S] or [1, S]. Raises as `token_matrix`."""
    first, *others = token_matrix(name, value)
    if others:
        raise RequestError(f"must be the tokens of one sequence, not of {len(others) + 1}", param=name)
    return first


def _matrix(name: str, value: Any, number: Callable[[str, int, Any], int]) -> Matrix:
    rows = listed(value)
    if not _is_list(rows):
        raise RequestError(f"must be a list of integers or a list of such lists, not {shown(value)}", param=name)
    rows = [listed(row) for row in rows]
    if not any(_is_list(row) for row in rows):
        rows = [rows]
    if not all(_is_list(row) for row in rows):
        raise RequestError("mixes numbers and lists", param=name)
    matrix = tuple(tuple(number(name, position, item) for position, item in enumerate(row)) for row in rows)
    if len({len(row) for row in matrix}) != 1:
        raise RequestError("all rows must have the same length", param=name)
    if not matrix[0]:
        raise RequestError("must hold at least one number", param=name)
    return matrix


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _token(name: str, position: int, item: Any) -> int:
    try:
        token = integer(item)
    except TypeError:
        token = -1
    if token < 0:
        raise InvalidToken(f"{shown(item)} at position {position} is not a token id", param=name)
    return token


def _number(name: str, position: int, item: Any) -> int:
    """Return a position or mask bit: any integer."""
    try:
        return index(item)
    except TypeError:
        raise RequestError(f"{shown(item)} at position {position} is not an integer", param=name) from None
