"""Parameters on the device: matrices in the panels of the CPU, vectors, rope tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ferrum.core.errors import Unsupported
from ferrum.kernels.cpu.weights import OrderedMatrix, native_weight, weight_panels
from ferrum.kernels.cuda.device_memory import DeviceMemory, DeviceRows
from ferrum.kernels.group_weights import PANEL
from ferrum.kernels.operations import F32, Int32, Weight

CHUNK: Final = 1024
"""Positions of a rope table that are filled at once."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWeight:
    """A `Weight` in panels on the device.

    Attributes:
        panels: address.
        format: of the original weight, or "float32" for one that the library does not know.
        shape: (N, K): outputs, inputs.
        nbytes: of the panels.
        order: address of int32 [K], the input of each stored column; 0 if they are in order.
        owner: what keeps the memory alive, and multiplies eagerly: the kernels.
    """

    panels: int
    format: str
    shape: tuple[int, int]
    nbytes: int
    order: int
    owner: Any

    def matmul(self, x: F32) -> F32:
        """Multiply x [M, K] f32 -> [M, N] f32."""
        (product,) = self.owner.linear(x, (self,), (None,))
        numbers: F32 = self.owner.host(product)
        return numbers

    def rows(self, ids: Int32) -> F32:
        """Return the given rows, [len(ids), K] f32."""
        numbers: F32 = self.owner.rows(self, ids)
        return numbers

    def part(self, begin: int, end: int) -> DeviceWeight:
        """Return rows `begin` to `end` - 1, which are whole panels."""
        assert begin % PANEL == 0, "parts are whole panels"
        panel = self.nbytes // -(-self.shape[0] // PANEL)
        count = -(-(end - begin) // PANEL)
        at = self.panels + begin // PANEL * panel
        return DeviceWeight(at, self.format, (end - begin, self.shape[1]), count * panel, self.order, self.owner)

    def dequantize(self) -> F32:
        """Return the matrix [N, K] as f32."""
        return self.rows(np.arange(self.shape[0], dtype=np.int32))


def device_weight(owner: Any, memory: DeviceMemory, library: Any, runtime: Any, weight: Weight) -> DeviceWeight:
    """Return a weight on the device. Raises MemoryError.

    Args:
        owner: the kernels.
        memory: of the device.
        library, runtime: the compiled module of the CPU and a `Runtime` of it, which lays out panels.
        weight: of any format; one that is on the device is returned unchanged.
    """
    if isinstance(weight, DeviceWeight):
        return weight
    order = 0
    if isinstance(weight, OrderedMatrix):
        if len(weight.order) > 1:
            raise Unsupported("device=cuda", "an order of inputs for each expert (act-order): load it on the CPU")
        order = memory.uploaded(np.ascontiguousarray(weight.order[0], np.int32))
        weight = weight.stored
    format, panels = weight_panels(library, runtime, weight)
    return DeviceWeight(memory.uploaded(panels), format, weight.shape, panels.nbytes, order, owner)


def planned_weight(owner: Any, memory: DeviceMemory, library: Any, runtime: Any, weight: Weight) -> DeviceWeight:
    """Return the size of a weight on the device. Arguments as `device_weight`."""
    if isinstance(weight, OrderedMatrix):
        weight = weight.stored
    sized = native_weight(library, runtime, weight, blank=True)
    return DeviceWeight(memory.take(sized.nbytes), sized.format, sized.shape, sized.nbytes, 0, owner)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceVector:
    """A norm weight or bias on the device: f32 [size] at an address."""

    address: int
    size: int

    def __len__(self) -> int:
        return self.size


class DeviceRope:
    """A rope table at fixed addresses, filled in chunks as positions are reached.

    Args:
        memory: of the device.
        fill: writes cosines and sines of rows from a position on: (frequencies, scaling, first, cosines, sines).
        frequencies, scaling, length: see `Kernels.rope_table`.

    Attributes:
        cosines, sines: addresses of f32 [length, pairs].
        pairs: columns.
        filled: number of leading rows that are defined.
    """

    def __init__(
        self, memory: DeviceMemory, fill: Any, frequencies: tuple[float, ...], scaling: float, length: int
    ) -> None:
        self._memory, self._fill = memory, fill
        self._frequencies, self._scaling, self._length = np.asarray(frequencies, np.float32), scaling, length
        self.pairs, self.filled = len(frequencies), 0
        self.nbytes = 2 * 4 * length * self.pairs
        self.cosines = memory.take(self.nbytes // 2)
        self.sines = memory.take(self.nbytes // 2)

    def reach(self, position: int) -> None:
        """Fill the table up to a position."""
        if position < self.filled:
            return
        end = min(self._length, (position // CHUNK + 1) * CHUNK)
        parts = [np.empty((end - self.filled, self.pairs), np.float32) for _ in range(2)]
        self._fill(self._frequencies, self._scaling, self.filled, *parts)
        for part, address in zip(parts, (self.cosines, self.sines), strict=True):
            self._memory.upload(part, address + 4 * self.filled * self.pairs)
        self.filled = end

    def __iter__(self) -> Iterator[DeviceRows]:
        """Yield cosines and sines, as other backends hold them."""
        for address in (self.cosines, self.sines):
            yield DeviceRows(self._memory, address, (self._length, self.pairs), owner=self)
