"""Launches of kernels, and what they compute on: the form to which operations are lowered.

A module is a file of `native/cuda`, or one of its formats: "rows", "products:q8_0".
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ferrum.kernels.cuda.driver import THREADS, Driver


class Launch(NamedTuple):
    """A launch of a kernel.

    Attributes:
        module, kernel: names.
        grid: blocks in x, y and z.
        values: the fields of the kernel's argument, 8 bytes each: an int is an address or an `Int`, a float a `Real`.
    """

    module: str
    kernel: str
    grid: tuple[int, int, int]
    values: tuple[int | float, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """The memory of an operation's argument or result.

    Attributes:
        address: of contiguous memory [capacity, columns].
        columns: of a row.
        count: address of the int32 number of rows in this step.
        capacity: the most rows of any step that the launch is for.
    """

    address: int
    columns: int
    count: int
    capacity: int


class Images(Protocol):
    """Where the code of modules comes from."""

    def image(self, module: str) -> bytes:
        """Return what `cuModuleLoadData` takes, with a zero at its end."""


class Launcher:
    """The kernels of a device. Modules are loaded when a launch of theirs is prepared.

    Args:
        driver: of the device.
        images: of its modules.
    """

    def __init__(self, driver: Driver, images: Images) -> None:
        self._driver = driver
        self._images = images
        self._modules: dict[str, int] = {}
        self._functions: dict[tuple[str, str], int] = {}

    def prepared(self, launches: Sequence[Launch]) -> PreparedLaunches:
        """Return launches that can be run again and again."""
        return PreparedLaunches(self._driver, [(self._function(each), each) for each in launches])

    def run(self, launches: Sequence[Launch]) -> None:
        """Run launches once."""
        self.prepared(launches).run()

    def _function(self, launch: Launch) -> int:
        key = launch.module, launch.kernel
        if key not in self._functions:
            if launch.module not in self._modules:
                image = self._images.image(launch.module)
                self._modules[launch.module] = self._driver.created("cuModuleLoadData", image)
            module = self._modules[launch.module]
            self._functions[key] = self._driver.created("cuModuleGetFunction", module, launch.kernel.encode())
        return self._functions[key]


class PreparedLaunches:
    """Launches with their arguments in memory.

    Args:
        driver: of the device.
        launches: with the handles of their functions.
    """

    def __init__(self, driver: Driver, launches: Sequence[tuple[int, Launch]]) -> None:
        self._driver = driver
        self._held = [_argument(launch.values) for _, launch in launches]
        stream = driver.stream
        self._calls = [
            (function, *launch.grid, THREADS, 1, 1, 0, stream, None, extra)
            for (function, launch), (_, _, extra) in zip(launches, self._held, strict=True)
        ]

    def run(self) -> None:
        """Launch all of them, in order."""
        for call in self._calls:
            self._driver.call("cuLaunchKernel", *call)


def _argument(
    values: Sequence[int | float],
) -> tuple[ctypes.Array[ctypes.c_char], ctypes.c_size_t, ctypes.Array[ctypes.c_void_p]]:
    """Return a kernel's argument, its size, and the list by which `cuLaunchKernel` takes both."""
    data = b"".join(struct.pack("<q", v) if isinstance(v, int) else struct.pack("<fxxxx", v) for v in values)
    buffer = ctypes.create_string_buffer(data, len(data))
    size = ctypes.c_size_t(len(data))
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    return buffer, size, extra


def blocks_for(count: int, per_block: int) -> int:
    """Return how many blocks `count` items need, at least one."""
    return max(1, -(-count // per_block))
