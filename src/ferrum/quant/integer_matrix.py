"""Matrices of integers with a scale and a zero point for each group, as GPTQ, AWQ and compressed-tensors have them.

    weight[n, k] = (code[n, k] - zero[n, g]) * scale[n, g]      g = k // group, or the group that a file names

Such a matrix becomes a block format if one holds exactly its numbers, else float32. If the inputs of a group are
scattered over the row, its columns are sorted by group, see `ordered_weight.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32, Bytes, Int32
from ferrum.quant.block_format import BLOCK_FORMATS, BlockFormat
from ferrum.quant.block_weight import BlockRows, BlockWeight, FileWeight, RowWeight, file_weight
from ferrum.quant.dense import by_rows
from ferrum.quant.panels import panel_shape
from ferrum.quant.zero_points import ZERO_POINTS, blocks_of

_GROUP: Final = 32
"""Inputs of a group of the block formats used here."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IntegerMatrix:
    """A matrix as a file stores it. Its arrays are read when they are used.

    Attributes:
        shape: (N, K).
        bits: of a code: 2, 3, 4 or 8.
        group: inputs with a common scale; the last group may be incomplete.
        codes: returns the codes, uint8 [N, K].
        zeros: returns the zero points, uint8 [N, G]; None if all are half of the codes' range.
        scales: returns the scales, floats [N, G].
        groups: returns the group of each input, int32 [K]; None if groups are consecutive.
    """

    shape: tuple[int, int]
    bits: int
    group: int
    codes: Callable[[], Bytes]
    zeros: Callable[[], Bytes] | None
    scales: Callable[[], NDArray[Any]]
    groups: Callable[[], NDArray[Any]] | None = None

    def obstacle(self) -> str | None:
        """Return why no block format holds the matrix; None if one does."""
        if self.groups is not None and not np.array_equal(np.sort(self.groups()), self._consecutive()):
            return "groups of other sizes than config.json has (g_idx)"
        if self.group % _GROUP and self.group < self.shape[1]:
            return f"groups of {self.group} inputs"
        if not fits_float16(self.scales()):
            return "scales that float16 does not hold"
        if self.bits == 8 and not self._centred() and not self._fits_int8():
            return "integers that int8 does not hold"
        return None

    def format(self) -> str | None:
        """Return the name of the block format that holds the matrix in the fewest bytes, or None."""
        if self.obstacle() is not None:
            return None
        if self.bits == 8:
            return "q8_0"
        plain = ["q4_0", "q4_128"]
        if self.bits == 4 and self._centred():
            return smallest(plain, self.group, self.shape[1])
        names = [name for name in ZERO_POINTS if name.startswith(f"q{self.bits}_")]
        return smallest([*names, *(["q5_0"] if self.bits == 4 else plain)], self.group, self.shape[1])

    def order(self) -> Int32 | None:
        """Return the input of each column of `blocks`, int32 [1, K]; None if columns are in the order of the inputs."""
        if self.groups is None:
            return None
        groups = self.groups()
        if np.array_equal(groups, self._consecutive()):
            return None
        return np.argsort(groups, kind="stable").astype(np.int32)[None]

    def blocks(self) -> BlockWeight:
        """Return the matrix in its block format, which it must have, with columns in the order of `order`."""
        found = self.format()
        assert found is not None, "a block format holds the matrix"
        kind, order = BLOCK_FORMATS[found], self.order()
        codes = self.codes() if order is None else self.codes()[:, order[0]]
        return self._low_blocks(kind, codes) if kind.low is not None else self._plain_blocks(kind, codes)

    def _plain_blocks(self, kind: BlockFormat, stored: Bytes) -> RowWeight:
        """Return blocks of integers that have the format's offset."""
        (outputs, inputs), count = self.shape, kind.blocks(self.shape[1])
        codes = np.full((outputs, count * kind.block), kind.offset, np.uint8)
        codes[:, :inputs] = stored
        if self.bits < 4 or not self._centred():
            codes[:, :inputs] += spread(np.uint8(kind.offset) - self._zeros(), self.group, inputs)
        scales = spread(self.scales().astype(np.float16), -(-self.group // kind.block), count)
        rows = BlockRows(codes=codes.reshape(outputs, count * kind.groups, _GROUP), d=scales)
        return RowWeight(kind=kind, shape=self.shape, whole=rows)

    def _low_blocks(self, kind: BlockFormat, stored: Bytes) -> FileWeight:
        """Return blocks of codes, of as many bits, and their zero points."""
        (outputs, inputs), count, own = self.shape, kind.blocks(self.shape[1]), scaled_inputs(kind)
        codes = np.zeros((outputs, count * kind.block), np.uint8)
        codes[:, :inputs] = stored
        zeros = spread(self._zeros(), -(-self.group // _GROUP), count * kind.groups).reshape(outputs, count, -1)
        scales = spread(self.scales().astype(np.float16), -(-self.group // own), count * (kind.block // own))
        made = blocks_of(codes.reshape(outputs, count, -1), zeros, scales.reshape(outputs, count, -1), self.bits)
        return file_weight(kind, made, inputs)

    def floats(self) -> F32:
        """Return the matrix, f32 [N, K]; products are rounded once."""
        codes, zeros, scales = self.codes(), self._zeros(), self.scales().astype(np.float32)
        groups = self._consecutive() if self.groups is None else self.groups()

        def convert(rows: slice) -> F32:
            integers = codes[rows].astype(np.int16) - zeros[rows][:, groups]
            return integers.astype(np.float32) * scales[rows][:, groups]

        return by_rows(self.shape, convert)

    def _consecutive(self) -> NDArray[Any]:
        """Return the group of each input if groups are consecutive."""
        return np.arange(self.shape[1]) // self.group

    def _zeros(self) -> Bytes:
        groups = -(-self.shape[1] // self.group)
        return np.full((self.shape[0], groups), self._centre, np.uint8) if self.zeros is None else self.zeros()

    @property
    def _centre(self) -> int:
        return 1 << (self.bits - 1)

    def _centred(self) -> bool:
        """Whether all zero points are half of the codes' range."""
        return self.zeros is None or bool((self.zeros() == self._centre).all())

    def _fits_int8(self) -> bool:
        integers = self.codes().astype(np.int16) - spread(self._zeros(), self.group, self.shape[1])
        return bool(integers.min() >= -128 and integers.max() <= 127)


def spread(numbers: NDArray[Any], times: int, count: int) -> NDArray[Any]:
    """Repeat the numbers of groups [N, G] for each of `count` inputs, or blocks; zeros follow the last one."""
    repeated = np.repeat(numbers, times, axis=1)[:, :count]
    return np.pad(repeated, ((0, 0), (0, count - repeated.shape[1])))


def fits_float16(numbers: NDArray[Any]) -> bool:
    """Whether float16 holds the numbers exactly."""
    wide = numbers.astype(np.float32)
    with np.errstate(over="ignore"):
        return np.array_equal(wide.astype(np.float16).astype(np.float32), wide, equal_nan=True)


def scaled_inputs(kind: BlockFormat) -> int:
    """Return the inputs with a common scale."""
    return kind.block if kind.low is None else kind.block // len(kind.low.halves)


def smallest(names: list[str], group: int, inputs: int) -> str:
    """Return the first of the formats with the fewest bytes for rows of that many inputs.

    Args:
        names: of `BLOCK_FORMATS`; one has a scale for each 32 inputs.
        group: inputs with a common scale in a file: all of a row, or a multiple of 32.
        inputs: of a row.
    """
    kinds = [BLOCK_FORMATS[name] for name in names]
    fitting = [kind for kind in kinds if group >= inputs or group % scaled_inputs(kind) == 0]
    return min(fitting, key=lambda kind: math.prod(panel_shape(kind, (1, inputs)))).name
