"""GGUF's block types that the integer formats hold exactly, moved into them without a change of any number."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.quant.gguf_blocks import nibbles
from ferrum.quant.int4 import Int4Weight, pack_nibbles
from ferrum.quant.int8 import Int8Weight
from ferrum.quant.weight import GroupedWeight

HELD: Final = {"Q8_0": "int8", "Q4_0": "int4"}
"""The integer format, in groups of 32, that holds a type's numbers."""


def integers_of(kind: str, blocks: NDArray[np.uint8]) -> GroupedWeight:
    """Return a matrix of a type in `HELD`.

    Args:
        kind: the type.
        blocks: uint8 [rows, blocks, bytes].
    """
    rows, count, _ = blocks.shape
    scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0]
    if kind == "Q8_0":
        codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(rows, -1)
        return Int8Weight(scales=scales, inputs=32 * count, group=32, codes=codes)
    packed = pack_nibbles(nibbles(blocks[:, :, 2:]).view(np.int8) - np.int8(8))
    return Int4Weight(scales=scales, inputs=32 * count, group=32, packed=packed)
