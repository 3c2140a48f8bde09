"""Copies of adapters' numbers in memory: their files may change or end while a model uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ferrum.kernels.adapters import Change


def in_memory(changes: Mapping[str, Change]) -> dict[str, Change]:
    """Return the changes with copies of all arrays. An array that several of them share stays one."""
    copies = dict[int, tuple[Any, Any]]()
    return {name: _copy(change, copies) for name, change in changes.items()}


def _copy(value: Any, copies: dict[int, tuple[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        if id(value) not in copies:
            copies[id(value)] = value, value.copy()  # with the original, so that its id stays taken
        return copies[id(value)][1]
    if isinstance(value, tuple):
        return tuple(_copy(each, copies) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{each.name: _copy(getattr(value, each.name), copies) for each in fields(value)})
    return value
