"""What an object holds in arrays, found by walking it."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def owned_arrays(root: object) -> Iterator[np.ndarray]:
    """Every array that owns its memory (or maps a file's) and is reachable from `root`, once."""
    seen: set[int] = set()
    pending: list[Any] = [root]
    while pending:
        found = pending.pop()
        if id(found) in seen or isinstance(found, CODE):
            continue
        seen.add(id(found))
        if not isinstance(found, np.ndarray):
            pending += gc.get_referents(found)
        elif isinstance(found.base, np.ndarray):
            pending.append(found.base)
        else:
            yield found
