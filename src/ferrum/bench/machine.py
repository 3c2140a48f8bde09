"""Probes of this machine's read bandwidth and arithmetic peaks, native if the library is built."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from ferrum.bench.limits import Rates
from ferrum.core.errors import Unsupported
from ferrum.kernels.cpu.library import available_threads, load

_MIN_BYTES: Final = 256 << 20
"""The least a probe reads."""

_TIMES_CACHE: Final = 4
"""Multiple of the shared caches' size a probe reads, so that its data comes from memory."""

_CACHES: Final = Path("/sys/devices/system/cpu")


class Prober(Protocol):
    """A measurement of the machine that takes a few hundredths of a second.

    Attributes:
        description: how it measures, for reports.
    """

    description: str

    def __call__(self) -> Rates:
        """Return the rates at this moment."""
        ...


class NativeProber:
    """A prober in the native library: linear streams over huge pages, dot products out of registers.

    Args:
        threads: size of the team; None: all processors this process may use.

    Raises:
        Unsupported: the library is missing.
    """

    def __init__(self, threads: int | None) -> None:
        library = load()
        tier, count = library.tiers()[0], threads or available_threads()
        self.description = f"native {tier}, {count} threads"
        self._probe: Any = library.Probe(tier, count, probed_bytes())

    def __call__(self) -> Rates:
        peaks = {name: self._probe.peak(name) for name in ("float32", "bfloat16", "int8", "int4")}
        return Rates(read=self._probe.read(), **peaks)


class NumpyProber:
    """A prober in numpy: one thread sums an array and BLAS multiplies, which is slower than the machine can be."""

    description = "numpy (sum of an array, float32 matrix product): lower than the machine's limit"

    def __init__(self) -> None:
        self._array = np.ones(probed_bytes() // 4, np.float32)
        self._matrix = np.ones((1024, 1024), np.float32)

    def __call__(self) -> Rates:
        peak = (
            2 * 1024**3 / _fastest(lambda: self._matrix @ self._matrix)
        )  # numpy has no dot products of narrow formats
        return Rates(self._array.nbytes / _fastest(self._array.sum), peak, peak, peak, peak)


def _fastest(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three runs."""
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def probed_bytes(root: Path = _CACHES) -> int:
    """Return the bytes a probe reads; third-level caches of servers hold gigabytes."""
    caches: dict[str, int] = {}
    for index in root.glob("cpu[0-9]*/cache/index3"):
        with suppress(OSError, ValueError):
            size = (index / "size").read_text().strip()
            caches[(index / "shared_cpu_list").read_text()] = int(size.removesuffix("K")) << 10
    return max(_MIN_BYTES, _TIMES_CACHE * sum(caches.values()))


def choose_prober(threads: int | None) -> Prober:
    """Return the best prober of this installation; `threads` as for `NativeProber`."""
    try:
        return NativeProber(threads)
    except Unsupported:
        return NumpyProber()
