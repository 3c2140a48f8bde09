"""Memory of a device: pieces that are used again, and rows of a step in them."""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import FerrumError
from ferrum.kernels.cuda.driver import Driver, Event

_ALIGNMENT: Final = 256
"""Bytes. Each piece begins on a multiple."""

STAGE: Final = 16 << 20
"""Bytes that go to the device at a time, through memory that it reads directly."""


class DeviceMemory:
    """Pieces of the memory of a device, and of the host's that it reads directly. All are freed with this object.

    What is given back is given out again: all work is on one stream, in order.

    Args:
        driver: of the device.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._pieces: list[int] = []
        self._pinned: list[int] = []
        weakref.finalize(self, _free, driver, self._pieces, self._pinned).atexit = False
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._stages: list[tuple[NDArray[np.uint8], Event]] = []
        self._turn = 0

    def take(self, nbytes: int) -> int:
        """Return the address of a piece. Raises MemoryError."""
        size = _rounded(nbytes)
        if self._free[size]:
            return self._free[size].pop()
        address = self.driver.created("cuMemAlloc_v2", size)
        self._pieces.append(address)
        return address

    def pinned(self, count: int, dtype: Any) -> NDArray[Any]:
        """Return an array of the host that the device reads and writes directly. Raises MemoryError."""
        nbytes = max(1, count * np.dtype(dtype).itemsize)
        address = self.driver.created("cuMemHostAlloc", nbytes, 0)
        self._pinned.append(address)
        data = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (nbytes,))
        return data[: count * np.dtype(dtype).itemsize].view(dtype)

    def give_back(self, address: int, nbytes: int) -> None:
        """Free a piece from `take`."""
        self._free[_rounded(nbytes)].append(address)

    def zeros(self, nbytes: int) -> int:
        """Return the address of a piece of zeros. Raises MemoryError."""
        address = self.take(nbytes)
        self.driver.call("cuMemsetD8Async", address, 0, _rounded(nbytes), self.driver.stream)
        return address

    def uploaded(self, array: NDArray[Any]) -> int:
        """Return the address of a copy of an array, which may be mapped from a file. Raises MemoryError."""
        address = self.take(array.nbytes)
        self.upload(array, address)
        return address

    def upload(self, array: NDArray[Any], address: int) -> None:
        """Copy an array to the device, piece by piece through pinned memory: two pieces are on their way at once."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for begin in range(0, len(data), STAGE):
            part = data[begin : begin + STAGE]
            stage, done = self._stage()
            stage[: len(part)] = part
            self.driver.call("cuMemcpyHtoDAsync_v2", address + begin, stage.ctypes.data, len(part), self.driver.stream)
            done.record()

    def _stage(self) -> tuple[NDArray[np.uint8], Event]:
        """Return pinned memory that nothing reads any more, and the event to record after its copy."""
        if len(self._stages) < 2:
            self._stages.append((self.pinned(STAGE, np.uint8), Event.of(self.driver)))
            return self._stages[-1]
        self._turn ^= 1
        stage = self._stages[self._turn]
        stage[1].wait()
        return stage

    def download(self, address: int, out: NDArray[Any]) -> None:
        """Copy bytes of the device to a contiguous array, and wait for all work before."""
        if out.nbytes:
            self.driver.call("cuMemcpyDtoHAsync_v2", out.ctypes.data, address, out.nbytes, self.driver.stream)
        self.driver.synchronize()

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes within the device."""
        if nbytes:
            self.driver.call("cuMemcpyDtoDAsync_v2", target, source, nbytes, self.driver.stream)


class DeviceRows:
    """An array of rows on the device, or one row.

    Args:
        memory: that it is in.
        address: of the first number.
        shape: [rows, columns], or [columns].
        dtype: of the numbers.
        owned: bytes that belong to this array and are freed with it; 0: they belong to another one.
        owner: the array that a part belongs to.
    """

    __array_ufunc__ = None

    def __init__(
        self,
        memory: DeviceMemory,
        address: int,
        shape: tuple[int, ...],
        dtype: Any = np.float32,
        *,
        owned: int = 0,
        owner: Any = None,
    ) -> None:
        self.memory, self.address, self.shape, self.dtype = memory, address, shape, np.dtype(dtype)
        self._owned, self._owner = owned, owner

    @classmethod
    def empty(cls, memory: DeviceMemory, shape: tuple[int, ...], dtype: Any = np.float32) -> DeviceRows:
        """Return an array in a new piece of memory. Raises MemoryError."""
        nbytes = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return cls(memory, memory.take(nbytes), shape, dtype, owned=nbytes)

    @classmethod
    def of(cls, memory: DeviceMemory, array: NDArray[Any]) -> DeviceRows:
        """Return a copy of an array of the host. Raises MemoryError."""
        rows = cls.empty(memory, array.shape, array.dtype)
        memory.upload(array, rows.address)
        return rows

    def __del__(self) -> None:
        if self._owned:
            self.memory.give_back(self.address, self._owned)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return int(np.prod(self.shape)) * int(self.dtype.itemsize)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: int | slice) -> DeviceRows:
        row = self.nbytes // self.shape[0] if self.shape[0] else 0
        if isinstance(which, slice):
            chosen = range(self.shape[0])[which]
            assert chosen.step == 1, "rows one after another"
            shape, first = (len(chosen), *self.shape[1:]), chosen.start
        else:
            shape, first = self.shape[1:], int(range(self.shape[0])[which])
        return DeviceRows(self.memory, self.address + first * row, shape, self.dtype, owner=self)

    def copy(self) -> DeviceRows:
        """Return a copy in memory that later steps leave as it is."""
        made = DeviceRows.empty(self.memory, self.shape, self.dtype)
        self.memory.copy(made.address, self.address, self.nbytes)
        return made

    def host(self) -> NDArray[Any]:
        """Return the numbers, once they are computed."""
        out = np.empty(self.shape, self.dtype)
        self.memory.download(self.address, out)
        return out

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError("rows are on the device: use Kernels.host")


def _free(driver: Driver, pieces: list[int], pinned: list[int]) -> None:
    """Free all memory, unless the device is lost or belongs to another process."""
    with suppress(FerrumError):
        driver.enter()
        driver.synchronize()
        for call, addresses in (("cuMemFree_v2", pieces), ("cuMemFreeHost", pinned)):
            for address in addresses:
                driver.call(call, address)


def _rounded(nbytes: int) -> int:
    return max(1, -(-nbytes // _ALIGNMENT)) * _ALIGNMENT
