"""Quantised weights: matrices in a format of `block_format.py`, in rows or in panels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32, Int32
from ferrum.kernels.reference.fused_sums import add_pairs, flushed_fused, fused
from ferrum.kernels.reference.reference_math import input_bf16, product, round_whole
from ferrum.quant.block_format import BlockFormat
from ferrum.quant.low_bits import Decoded, LowBits
from ferrum.quant.panels import (
    blocks_of_panels,
    output_scales_of,
    panel_shape,
    panels_of,
    panels_of_blocks,
    rows_of,
    with_output_scales,
)

_TERMS: Final = 1 << 20
"""Terms of a product computed at a time."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockRows:
    """Rows of a matrix as their format stores them: N outputs of B blocks, with G groups in all blocks together.

    Attributes:
        codes: stored codes, uint8 [N, G, group].
        d: scales of the blocks [N, B], in the format's dtype.
        m: minima of the blocks [N, B] (`minima` without `sub`), or the scales of the groups' minima; None without.
        sub: integer scales of the groups [N, G], of the dtype `sub`; None without.
        sub_m: uint8 [N, G], integers of the groups' minima; None without.
    """

    codes: NDArray[np.uint8]
    d: NDArray[Any]
    m: NDArray[Any] | None = None
    sub: NDArray[Any] | None = None
    sub_m: NDArray[np.uint8] | None = None

    def part(self, rows: slice | NDArray[Any]) -> BlockRows:
        """Return some of the rows."""
        held = ((field.name, getattr(self, field.name)) for field in fields(self))
        parts: dict[str, Any] = {name: None if array is None else array[rows] for name, array in held}
        return BlockRows(**parts)

    def folded(self, rows: int) -> BlockRows:
        """Return the same blocks as more and shorter rows."""
        held = ((field.name, getattr(self, field.name)) for field in fields(self))
        parts: dict[str, Any] = {
            name: None if array is None else array.reshape(rows, -1, *array.shape[2:]) for name, array in held
        }
        return BlockRows(**parts)

    @classmethod
    def joined(cls, parts: Sequence[BlockRows]) -> BlockRows:
        """Return the rows of matrices of one format, one after another."""
        held = ((field.name, [getattr(part, field.name) for part in parts]) for field in fields(cls))
        whole: dict[str, Any] = {name: None if arrays[0] is None else np.concatenate(arrays) for name, arrays in held}
        return cls(**whole)

    def scales(self) -> F32:
        """Return the scales of the groups, f32 [N, G]."""
        return _times(self.d, self.sub, self.codes.shape[1])

    def minima(self) -> F32 | None:
        """Return the minima of the groups, f32 [N, G], or None."""
        if self.m is None:
            return None
        minima = _times(self.m, self.sub_m, self.codes.shape[1])
        return minima if self.sub_m is None else -minima


def _times(blocks: NDArray[Any], groups: NDArray[Any] | None, count: int) -> F32:
    """Return numbers of blocks [N, B], for each group times that of the group [N, G], which is exact."""
    floats: F32 = np.repeat(blocks.astype(np.float32), count // blocks.shape[1], axis=1)
    if groups is None:
        return floats
    with np.errstate(invalid="ignore"):
        product: F32 = floats * groups.astype(np.float32)
    return product


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BlockWeight(ABC):
    """A quantised `Weight`.

    Attributes:
        kind: the format.
        shape: (N, K): outputs, inputs. Numbers after K complete the last block; inputs there are zeros.
    """

    kind: BlockFormat
    shape: tuple[int, int]

    @property
    def format(self) -> str:
        """Name of the format."""
        return self.kind.name

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales in panels."""
        return math.prod(panel_shape(self.kind, self.shape))

    @property
    def panels(self) -> NDArray[np.uint8]:
        """The matrix in panels, uint8 [panels, blocks, bytes]."""
        return panels_of(self.kind, self.stored(slice(None)))

    @property
    def gguf(self) -> tuple[str, NDArray[np.uint8]] | None:
        """The type and the blocks of a GGUF file that the matrix comes from, or None."""
        return None

    @abstractmethod
    def stored(self, rows: slice | NDArray[Any]) -> BlockRows:
        """Return some rows as they are stored."""

    def decoded(self, rows: slice | NDArray[Any]) -> Decoded:
        """Return the integers, scales and minima of some rows."""
        part = self.stored(rows)
        return Decoded(self.kind.integers(part.codes), part.scales(), part.minima())

    def select(self, rows: slice | NDArray[Any]) -> BlockWeight:
        """Return the matrix of some rows."""
        return row_weight(self.kind, self.shape[1], self.stored(rows))

    def folded(self, width: int) -> BlockWeight:
        """Return the numbers as rows of a smaller width, a whole number of blocks that divides K."""
        rows = self.shape[0] * (self.shape[1] // width)
        return row_weight(self.kind, width, self.stored(slice(None)).folded(rows))

    def matmul(self, x: F32) -> F32:
        """Multiply x [M, K] f32 -> [M, N] f32 by the arithmetic at the end of this file."""
        if self.kind.floats:
            return product(x, self.dequantize())
        groups = self.kind.blocks(self.shape[1]) * self.kind.groups
        multiply = self._products(x, groups)
        out = np.empty((len(x), self.shape[0]), np.float32)
        step = max(1, _TERMS // max(1, len(x) * groups, self.shape[1]))
        for begin in range(0, self.shape[0], step):
            out[:, begin : begin + step] = multiply(self.decoded(slice(begin, begin + step)))
        return out

    def _products(self, x: F32, groups: int) -> Callable[[Decoded], F32]:
        """Return what multiplies x [M, K] by some rows."""
        if self.kind.float8:
            return partial(float8_product, pair_rows(x, self.kind.group, groups))
        rows = round_rows(x, self.kind.group, groups)
        return lambda part: _scaled(block_product(rows, part.integers, part.scales, part.minima), part.outputs)

    def rows(self, ids: Int32) -> F32:
        """Return the given rows, [len(ids), K] f32: the numbers of `block_format.py`."""
        return self._numbers(self.decoded(ids))

    def part(self, begin: int, end: int) -> BlockWeight:
        """Return rows `begin` to `end` - 1."""
        return self.select(slice(begin, end))

    def dequantize(self) -> F32:
        """Return the matrix [N, K] as f32."""
        return self._numbers(self.decoded(slice(None)))

    def _numbers(self, part: Decoded) -> F32:
        with np.errstate(invalid="ignore", over="ignore"):
            numbers = part.integers.astype(np.float32) * _scaled(part.scales.T, part.outputs).T[..., None]
            if part.minima is not None:
                numbers += part.minima[..., None]
        return numbers.reshape(len(numbers), -1)[:, : self.shape[1]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowWeight(BlockWeight):
    """A `BlockWeight` over rows.

    Attributes:
        whole: all rows.
    """

    whole: BlockRows

    def stored(self, rows: slice | NDArray[Any]) -> BlockRows:
        return self.whole.part(rows)


def row_weight(kind: BlockFormat, inputs: int, rows: BlockRows) -> RowWeight:
    """Return the weight over these rows [N, inputs]."""
    return RowWeight(kind=kind, shape=(len(rows.codes), inputs), whole=rows)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PanelWeight(BlockWeight):
    """A `BlockWeight` over panels, without copies: from the native library, or mapped from a packed directory."""

    panels: NDArray[np.uint8]

    def stored(self, rows: slice | NDArray[Any]) -> BlockRows:
        return BlockRows(**rows_of(self.kind, self.panels, np.arange(self.shape[0], dtype=np.int32)[rows]))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FileWeight(BlockWeight):
    """A `BlockWeight` over blocks of a file whose bytes panels keep: see `low_bits.py`.

    Attributes:
        blocks: uint8 [N, B, bytes]; may be a read-only view of a mapped file.
        outputs: factors and divisors of outputs, f32 [N, 2], if the format has them.
    """

    blocks: NDArray[np.uint8]
    outputs: F32 | None = None

    @property
    def gguf(self) -> tuple[str, NDArray[np.uint8]] | None:
        return (self.kind.name.upper(), self.blocks) if self.outputs is None else None

    @property
    def panels(self) -> NDArray[np.uint8]:
        panels = panels_of_blocks(_low(self.kind), self.blocks)
        return panels if self.outputs is None else with_output_scales(panels, self.outputs)

    def stored(self, rows: slice | NDArray[Any]) -> BlockRows:
        raise NotImplementedError("blocks of low_bits.py have no stored codes; see `decoded`")

    def decoded(self, rows: slice | NDArray[Any]) -> Decoded:
        blocks = self.blocks[rows]
        found = _low(self.kind).decode(blocks.reshape(-1, blocks.shape[2]))
        minima = None if found.minima is None else found.minima.reshape(len(blocks), -1)
        integers = found.integers.reshape(len(blocks), -1, self.kind.group)
        outputs = None if self.outputs is None else self.outputs[rows]
        return Decoded(integers, found.scales.reshape(len(blocks), -1), minima, outputs)

    def select(self, rows: slice | NDArray[Any]) -> FileWeight:
        outputs = None if self.outputs is None else self.outputs[rows]
        return file_weight(self.kind, self.blocks[rows], self.shape[1], outputs)

    def folded(self, width: int) -> FileWeight:
        parts = self.shape[1] // width
        outputs = None if self.outputs is None else np.repeat(self.outputs, parts, axis=0)
        blocks = self.blocks.reshape(self.shape[0] * parts, -1, self.blocks.shape[2])
        return file_weight(self.kind, blocks, outputs=outputs)


def file_weight(
    kind: BlockFormat, blocks: NDArray[np.uint8], inputs: int | None = None, outputs: F32 | None = None
) -> FileWeight:
    """Return the matrix of blocks [N, B, bytes]; without `inputs`, they are complete.

    Args:
        outputs: factors and divisors of outputs, f32 [N, 2], of a format that has them.
    """
    assert kind.output_scales == (outputs is not None), "scales of outputs as the format has them"
    shape = len(blocks), blocks.shape[1] * kind.block if inputs is None else inputs
    return FileWeight(kind=kind, shape=shape, blocks=blocks, outputs=outputs)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FilePanelWeight(PanelWeight):
    """A `PanelWeight` of a format of `low_bits.py`."""

    def decoded(self, rows: slice | NDArray[Any]) -> Decoded:
        return self.select(rows).decoded(slice(None))

    def select(self, rows: slice | NDArray[Any]) -> FileWeight:
        ids, low = np.arange(self.shape[0], dtype=np.int32)[rows], _low(self.kind)
        panels, outputs = output_scales_of(low, self.panels, ids) if self.kind.output_scales else (self.panels, None)
        return file_weight(self.kind, blocks_of_panels(low, panels, ids), self.shape[1], outputs)

    def folded(self, width: int) -> FileWeight:
        return self.select(slice(None)).folded(width)


def _scaled(numbers: F32, outputs: F32 | None) -> F32:
    """Multiply and divide numbers [..., n] of n outputs by their scales [n, 2], if there are any."""
    if outputs is None:
        return numbers
    with np.errstate(all="ignore"):
        scaled: F32 = numbers * outputs[:, 0] / outputs[:, 1]
    return scaled


def _low(kind: BlockFormat) -> LowBits:
    assert kind.low is not None, "a format of low_bits.py"
    return kind.low


def over_panels(panels: NDArray[np.uint8], kind: BlockFormat, shape: tuple[int, int]) -> PanelWeight:
    """Return the weight [N, K] over these panel bytes."""
    made = PanelWeight if kind.low is None else FilePanelWeight
    return made(kind=kind, shape=shape, panels=panels.reshape(panel_shape(kind, shape)))


# ---- Products of weights in blocks. Native kernels reproduce them bit for bit ----
#
#     1. Cut each row of inputs into 32 consecutive numbers. Round them to int8 with one float32 scale, by `round_whole`
#        with 127 levels. If they are not finite the scale is NaN, which makes every output of the row NaN.
#     2. For each group of the weight take the exact integer sum of input code x weight integer, and for a format with
#        minima the exact sum of the input codes.
#     3. y starts at 0 and adds the groups in ascending order:
#            y = fused(float32(sum), weight scale x input scale, y)
#            y = fused(minimum, float32(sum of codes) x input scale, y)     with minima only
#        where x is a rounded product and fused(a, b, c) is a * b + c with one rounding. All sums are below 2^24.
#
# No result depends on the number of rows.

PRODUCTS_ID: Final = "blocks-2"
"""Version of this arithmetic. Packed directories record it; another version refuses to load them."""

ROUNDED: Final = 32
"""Inputs of a row that share a scale: a multiple of every group."""

_LEVELS: Final = 127


@dataclass(frozen=True, slots=True, eq=False)
class RoundedRows:
    """Rows of inputs as integers.

    Attributes:
        codes: int8 [M, G, group] with the G groups of the weight.
        scales: f32 [M, G].
    """

    codes: NDArray[np.int8]
    scales: F32


def round_rows(x: F32, group: int, groups: int) -> RoundedRows:
    """Run step 1 on x [M, K] f32. Zeros pad rows to `groups` groups of the weight."""
    parts = -(-groups * group // ROUNDED)
    whole = np.zeros((len(x), parts * ROUNDED), np.float32)
    whole[:, : x.shape[1]] = x
    codes, scales = round_whole(whole.reshape(len(x), parts, ROUNDED), _LEVELS)
    in_groups = np.ascontiguousarray(codes, np.int8).reshape(len(x), parts * (ROUNDED // group), group)
    return RoundedRows(in_groups[:, :groups], np.repeat(scales, ROUNDED // group, axis=1)[:, :groups])


def block_product(x: RoundedRows, integers: NDArray[np.int8], scales: F32, minima: F32 | None) -> F32:
    """Run steps 2 and 3.

    Args:
        x: M rows.
        integers: int8 [n, G, group] of n outputs.
        scales: f32 [n, G].
        minima: f32 [n, G], or None.

    Returns:
        f32 [M, n].
    """
    left = np.ascontiguousarray(x.codes.transpose(1, 0, 2), np.float32)  # [G, M, group]
    right = np.ascontiguousarray(integers.transpose(1, 2, 0), np.float32)  # [G, group, n]
    sums = left @ right  # [G, M, n]: exact in any order of additions, because every partial sum is exact
    code_sums = left.sum(axis=2)
    total = np.zeros(sums.shape[1:], np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for group, factor in enumerate(x.scales.T[..., None]):  # [M, 1]
            total = fused(sums[group], scales[:, group] * factor, total)
            if minima is not None:
                total = fused(minima[:, group][None, :], code_sums[group][:, None] * factor, total)
    return total


# ---- Products of the format fp8 ----
#
#     1. Round inputs to bfloat16; subnormal ones are 0.
#     2. For each group of 128 inputs, start at 0 and add the pairs of terms input x FP8 number as `add_pairs` does.
#     3. y starts at 0 and adds the groups in ascending order by `flushed_fused`: y becomes sum x scale + y, rounded
#        once, where subnormal numbers count as zeros of their sign.


def pair_rows(x: F32, group: int, groups: int) -> F32:
    """Run step 1 on x [M, K] f32 -> [G, M, group]. Zeros pad rows to `groups` groups of the weight."""
    whole = np.zeros((len(x), groups * group), np.float32)
    whole[:, : x.shape[1]] = input_bf16(x)
    return np.ascontiguousarray(whole.reshape(len(x), groups, group).transpose(1, 0, 2))


def float8_product(x: F32, part: Decoded) -> F32:
    """Run steps 2 and 3 on x [G, M, group] and n outputs -> [M, n]."""
    numbers = np.ascontiguousarray(part.integers.transpose(1, 2, 0), np.float32)  # [G, group, n]
    total = np.zeros((x.shape[1], numbers.shape[2]), np.float32)
    for group, scales in enumerate(part.scales.T):
        total = flushed_fused(add_pairs(np.zeros_like(total), x[group], numbers[group]), scales, total)
    return total
