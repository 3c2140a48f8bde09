"""Matrices whose columns are stored in another order than their inputs.

GPTQ and compressed-tensors may quantise the most important inputs first (`g_idx`): the inputs of a group are then
scattered over a row. With its columns sorted by group, such a matrix is one of blocks. A product first gathers its row
of inputs in that order, then rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ferrum.kernels.operations import F32, Int32
from ferrum.quant.block_weight import BlockWeight


@dataclass(frozen=True, slots=True, eq=False)
class OrderedWeight:
    """A `Weight` with an order of inputs.

    Attributes:
        stored: the matrix [N, K] as it is stored.
        order: the input of each stored column, int32 [runs, K]: one for all outputs, or one for each of several equal
            runs of outputs, as experts have them.
    """

    stored: BlockWeight
    order: Int32

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs, inputs."""
        return self.stored.shape

    @property
    def format(self) -> str:
        """Name of the format."""
        return self.stored.format

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix and of its orders."""
        return self.stored.nbytes + self.order.nbytes

    def matmul(self, x: F32) -> F32:
        """Multiply x [M, K] f32 -> [M, N] f32, with the arithmetic of the format on gathered inputs."""
        size = self.shape[0] // len(self.order)
        parts = [self.stored.part(at * size, (at + 1) * size).matmul(x[:, own]) for at, own in enumerate(self.order)]
        return np.concatenate(parts, axis=1)

    def rows(self, ids: Int32) -> F32:
        """Return the given rows, [len(ids), K] f32, in the order of the inputs."""
        columns, numbers = self.stored.rows(ids), np.empty((len(ids), self.shape[1]), np.float32)
        np.put_along_axis(numbers, self.order[self._runs(ids)], columns, axis=1)
        return numbers

    def part(self, begin: int, end: int) -> OrderedWeight:
        """Return rows `begin` to `end` - 1, which are of one run or whole runs."""
        runs = self._runs(np.array([begin, max(begin, end - 1)], np.int32))
        return OrderedWeight(self.stored.part(begin, end), self.order[runs[0] : runs[1] + 1])

    def dequantize(self) -> F32:
        """Return the matrix [N, K] as f32."""
        return self.rows(np.arange(self.shape[0], dtype=np.int32))

    def _runs(self, ids: Int32) -> Int32:
        return ids // (self.shape[0] // len(self.order))


def ordered(stored: BlockWeight, order: Int32 | None) -> BlockWeight | OrderedWeight:
    """Return a matrix with its order of inputs, if it has one."""
    return stored if order is None else OrderedWeight(stored, order)
