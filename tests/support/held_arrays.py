"""Arrays reachable from an object."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def owned_arrays(root: object) -> Iterator[np.ndarray]:
    """Return each array reachable from `root` that owns memory or maps a file."""
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
