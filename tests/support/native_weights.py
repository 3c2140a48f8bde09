"""Matrices of every format and input rows for the tests of native products."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ferrum.kernels.operations import Weight
from ferrum.quant.block_format import BLOCK_FORMATS, BlockFormat
from ferrum.quant.block_weight import BlockRows, FileWeight, RowWeight, file_weight
from ferrum.quant.dense import DenseWeight
from ferrum.quant.low_bits import LowBits, with_scales
from native_twin import normal

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
ALIKE = ("q4_m128", "q4_z64", "q4_z128", "q3_z32", "q3_z128", "q2_z32", "q2_z64")
"""Formats that differ from another one only by the inputs with a common scale. The self-check has them, too."""
BLOCKS = tuple(name for name in BLOCK_FORMATS if name not in ALIKE)
INTEGERS = tuple(name for name in BLOCKS if not BLOCK_FORMATS[name].float8 and not BLOCK_FORMATS[name].floats)
"""Formats whose products round inputs to integers."""


def dense(rng, outputs, inputs, dtype) -> DenseWeight:
    return DenseWeight((normal(rng, outputs, inputs) / np.sqrt(inputs)).astype(dtype))


def weight_of(rng, outputs, inputs, format) -> Weight:
    """Return a weight of any format: a float dtype, or the name of a block format."""
    if format in BLOCK_FORMATS:
        kind = BLOCK_FORMATS[format]
        if kind.low is not None:
            return low_weight(rng, kind, kind.low, outputs, inputs)
        return RowWeight(kind=kind, shape=(outputs, inputs), whole=block_rows(rng, kind, outputs, inputs))
    return dense(rng, outputs, inputs, format)


def low_weight(rng, kind: BlockFormat, low: LowBits, outputs, inputs) -> FileWeight:
    """Return random blocks of a file, with scales of very different magnitudes."""
    blocks = rng.integers(0, 256, (outputs, kind.blocks(inputs), low.nbytes), np.uint8)
    scales = np.ldexp(normal(rng, *blocks.shape[:2]), rng.integers(-12, 4, blocks.shape[:2]))
    own = normal(rng, outputs, 2) if kind.output_scales else None
    return file_weight(kind, with_scales(low, blocks, scales), inputs, own)


def block_rows(rng, kind: BlockFormat, outputs, inputs) -> BlockRows:
    """Return rows of random codes; scales have very different magnitudes and both zeros."""
    blocks = kind.blocks(inputs)
    groups = blocks * kind.groups

    def scales() -> np.ndarray:
        numbers = np.ldexp(normal(rng, outputs, blocks), rng.integers(-20, 4, (outputs, blocks)))
        numbers.flat[:3] = -0.0, 0.0, 6e-8
        return numbers.astype(kind.scale)

    subs = None if kind.sub is None else rng.integers(0, 256, (outputs, groups), np.uint8)
    return BlockRows(
        codes=rng.integers(0, 1 << kind.bits, (outputs, groups, kind.group), np.uint8),
        d=scales(),
        m=scales() if kind.minima else None,
        sub=None if subs is None else subs.view(kind.sub),
        sub_m=rng.integers(0, 256, (outputs, groups), np.uint8) if kind.minima and subs is not None else None,
    )


def wild(rng, rows, inputs) -> np.ndarray:
    """Return rows of very different magnitudes, with zeros and a block of zeros."""
    x = normal(rng, rows, inputs) * np.exp(8 * rng.standard_normal((rows, 1))).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = 0
    x[:, : inputs // 3 : 2] *= np.float32(1e-20)
    x[rows // 2 :, 128:256] = 0
    return x


EXPONENTS = {"normal": (0, 0), "large": (62, 64), "small": (-62, -64)}
"""Binary exponents of inputs and weights, by the name of a size; float16 weights have exponents from -14 to 0."""


def extreme(rng, rows, inputs, outputs, dtype, size) -> tuple[np.ndarray, DenseWeight]:
    """Return rows and a matrix with products of one magnitude: pairs that cancel, pairs that repeat, zeros."""
    left, right = EXPONENTS[size]
    if dtype == np.float16:
        left, right = (left + right - 3, 0) if size == "large" else (left + right + 10, -10)
    x, w = normal(rng, rows, inputs), normal(rng, outputs, inputs)
    x = np.ldexp(x, left).astype(np.float32)
    w = np.ldexp(w, right + rng.integers(-3, 3, (outputs, 1))).astype(dtype)
    w[::5, 1::2] = -w[::5, ::2]  # pairs that cancel
    x[:, 1::2][:, ::3] = x[:, ::2][:, ::3]
    w[3::7, ::4] = 0
    return x, DenseWeight(w)
