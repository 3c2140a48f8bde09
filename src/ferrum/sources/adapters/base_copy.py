"""Copies of the base model's embedding that adapters hold: whether they are copies."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockWeight, over_panels
from ferrum.quant.dense import FORMATS
from ferrum.sources.checkpoint import Checkpoint, TensorStore

_ROUNDING: Final = 0.25
"""Largest error of a quantised matrix, as a share of its numbers' root mean square."""

_ROWS: Final = 1024


def differs(store: TensorStore, name: str, copy: NDArray[Any]) -> bool:
    """Return whether a matrix differs from the model's by more than the formats of both explain.

    Args:
        store: has the matrix.
        name: of the matrix in the store.
        copy: of the same shape.
    """
    blocks, info = _blocks(store, name, copy.shape), store.tensors[name]
    rounded = blocks is not None or info.nbytes != math.prod(info.shape) * _item(info.format)
    whole = None if blocks is not None else store.read(name)
    for begin in range(0, len(copy), _ROWS):
        theirs = copy[begin : begin + _ROWS]
        if blocks is None:
            assert whole is not None
            ours = whole[begin : begin + _ROWS]
        else:
            ours = blocks.rows(np.arange(begin, begin + len(theirs), dtype=np.int32))
        if rounded:
            error = np.square(ours.astype(np.float32) - theirs.astype(np.float32)).mean()
            if error > _ROUNDING**2 * np.square(ours.astype(np.float32)).mean():
                return True
        elif not np.array_equal(ours.astype(theirs.dtype), theirs) and not np.array_equal(
            theirs.astype(ours.dtype), ours
        ):
            return True
    return False


def _item(format: str | None) -> int:
    return 0 if format is None else FORMATS[format].itemsize


def _blocks(store: TensorStore, name: str, shape: tuple[int, ...]) -> BlockWeight | None:
    """Return a matrix of quantised blocks, or None for floats."""
    if store.mapped:
        format = store.config["quantization_config"]["blocks"].get(name)
        if format is not None and isinstance(store, Checkpoint):
            return over_panels(store.read_bytes(name), BLOCK_FORMATS[format], (shape[0], shape[1]))
    return store.blocks(name) if store.block_format(name) is not None else None
