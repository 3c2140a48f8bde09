"""A device that takes memory in numbers only, for plans of models on machines without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from ferrum.kernels.cuda.driver import LEAST_CAPABILITY, Driver

ASSUMED_BYTES: Final = 80 << 30
"""Memory of a planned device if the machine has none: that of an H100."""

_SPACING: Final = 1 << 40
"""Bytes between the addresses that are given out. Nothing is read or written there."""


class PlannedDriver(Driver):
    """A `Driver` whose calls do nothing.

    Args:
        like: the device to plan for; None: one of `ASSUMED_BYTES`.
    """

    def __init__(self, like: Driver | None = None) -> None:
        self.name = "planned device" if like is None else like.name
        self.capability = LEAST_CAPABILITY if like is None else like.capability
        self.multiprocessors = 1 if like is None else like.multiprocessors
        self.stream = 0
        self._memory = (ASSUMED_BYTES, ASSUMED_BYTES) if like is None else like.memory()
        self._host: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self._handles = 0

    def call(self, name: str, *arguments: Any) -> None:
        pass

    def created(self, name: str, *arguments: Any) -> int:
        if name == "cuMemHostAlloc":  # the host may write to it
            self._host.append(np.empty(arguments[0], np.uint8))
            return self._host[-1].ctypes.data
        self._handles += 1
        return self._handles * _SPACING

    @contextmanager
    def alone(self) -> Iterator[None]:
        yield

    def enter(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return self._memory

    def synchronize(self) -> None:
        pass


class NoImages:
    """`Images` of a planned device."""

    def image(self, module: str) -> bytes:
        raise AssertionError(f"a planned model launches nothing of {module}")
