"""A probe of this machine's read bandwidth and arithmetic peaks, by the native library."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ferrum.bench.limits import Rates
from ferrum.kernels.cpu.library import available_threads, load

_MIN_BYTES: Final = 256 << 20
"""The least a probe reads."""

_TIMES_CACHE: Final = 4
"""Multiple of the shared caches' size a probe reads, so that its data comes from memory."""

_CACHES: Final = Path("/sys/devices/system/cpu")


class Prober:
    """Linear streams over huge pages, and dot products out of registers; a call takes a few hundredths of a second.

    Args:
        threads: size of the team; None: all processors this process may use.

    Attributes:
        description: how it measures, for reports.

    Raises:
        Unsupported: the library is missing.
    """

    def __init__(self, threads: int | None) -> None:
        library = load()
        tier, count = library.tiers()[0], threads or available_threads()
        self.description = f"native {tier}, {count} threads"
        self._probe: Any = library.Probe(tier, count, probed_bytes())

    def __call__(self) -> Rates:
        """Return the rates at this moment."""
        peaks = {name: self._probe.peak(name) for name in ("float32", "bfloat16", "int8", "int4")}
        return Rates(read=self._probe.read(), **peaks)


def probed_bytes(root: Path = _CACHES) -> int:
    """Return the bytes a probe reads; third-level caches of servers hold gigabytes."""
    caches: dict[str, int] = {}
    for index in root.glob("cpu[0-9]*/cache/index3"):
        with suppress(OSError, ValueError):
            size = (index / "size").read_text().strip()
            caches[(index / "shared_cpu_list").read_text()] = int(size.removesuffix("K")) << 10
    return max(_MIN_BYTES, _TIMES_CACHE * sum(caches.values()))
