"""Probing this machine: read bandwidth and arithmetic peaks, natively where the library is there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from ferrum.bench.limits import Rates
from ferrum.core.errors import Unsupported
from ferrum.kernels.cpu.library import available_threads, load

_BYTES: Final = 256 << 20
"""What a probe reads at least."""

_TIMES_CACHE: Final = 4
"""It reads so many times what the caches hold that the processors share."""

_CACHES: Final = Path("/sys/devices/system/cpu")

_RUNS: Final = 3


class Prober(Protocol):
    """Measures the machine, in a few hundredths of a second.

    Attributes:
        description: how it measures, for reports.
    """

    description: str

    def __call__(self) -> Rates:
        """The rates at this moment."""
        ...


class NativeProber:
    """Probes with the native library: linear streams over huge pages, dot instructions out of registers.

    Args:
        threads: size of the team; None takes the processors that this process may use.

    Raises:
        Unsupported: the library is missing.
    """

    def __init__(self, threads: int | None) -> None:
        library = load()
        tier, count = library.tiers()[0], threads or available_threads()
        self.description = f"native {tier}, {count} threads"
        self._probe: Any = library.Probe(tier, count, probed_bytes())

    def __call__(self) -> Rates:
        """See `Prober`."""
        peaks = {name: self._probe.peak(name) for name in ("float32", "bfloat16", "int8", "int4")}
        return Rates(read=self._probe.read(), **peaks)


class NumpyProber:
    """Probes with numpy: one thread sums a large array, and BLAS multiplies. Lower than what the machine can do."""

    description = "numpy (sum of an array, float32 matrix product): lower than what the machine can do"

    def __init__(self) -> None:
        self._array = np.ones(probed_bytes() // 4, np.float32)
        self._matrix = np.ones((1024, 1024), np.float32)

    def __call__(self) -> Rates:
        """See `Prober`. There are no dot products of narrow formats: all peaks are that of float32."""
        peak = 2 * 1024**3 / _fastest(lambda: self._matrix @ self._matrix)
        return Rates(self._array.nbytes / _fastest(self._array.sum), peak, peak, peak, peak)


def _fastest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(_RUNS):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def probed_bytes(root: Path = _CACHES) -> int:
    """How much a probe has to read so that it comes from memory: the third-level caches of a server hold gigabytes."""
    caches: dict[str, int] = {}
    for index in root.glob("cpu[0-9]*/cache/index3"):
        with suppress(OSError, ValueError):
            size = (index / "size").read_text().strip()
            caches[(index / "shared_cpu_list").read_text()] = int(size.removesuffix("K")) << 10
    return max(_BYTES, _TIMES_CACHE * sum(caches.values()))


def seconds_of_others(stat: Path = Path("/proc/stat")) -> float | None:
    """Seconds for which others had our processors since the start, or a host had them; None where nobody tells.

    Ours are those that this process may use. Only differences mean something, to about a hundredth of a second.
    """
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    try:
        lines = [line.split() for line in stat.read_text().splitlines()]
        counts = {name: each for name, *each in lines if name.startswith("cpu")}
        ours = allowed if allowed and allowed <= counts.keys() else {"cpu"}
        busy = sum(_busy(counts[name]) for name in ours)
    except (OSError, ValueError, KeyError):
        return None
    own = os.times()
    return busy / os.sysconf("SC_CLK_TCK") - own.user - own.system


def _busy(counts: list[str]) -> int:
    """Ticks of one processor, or of all: user, nice, system, irq, softirq and steal. Raises ValueError."""
    user, nice, system, _, _, irq, softirq, steal = map(int, counts[:8])
    return user + nice + system + irq + softirq + steal


def choose_prober(threads: int | None) -> Prober:
    """The best prober of this installation. `threads` as for `NativeProber`."""
    try:
        return NativeProber(threads)
    except Unsupported:
        return NumpyProber()
