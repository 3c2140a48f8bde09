"""One run of the benchmark: from a loaded model to a report.

Workloads are interleaved, so that a slow minute of the machine affects all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from ferrum.bench.limits import Rates, seconds_of, weights
from ferrum.bench.report import Cell, Origin, Report, Sample, Setting
from ferrum.bench.subject import ExecutorSubject, Times
from ferrum.bench.workloads import Workload
from ferrum.kernels.cpu.library import available_threads, load

# ---- A probe of this machine's read bandwidth and arithmetic peaks, by the native library ----

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


def run_benchmark(
    subject: ExecutorSubject,
    prober: Prober,
    workloads: Sequence[Workload],
    *,
    series: int,
    setting: Setting,
    origin: Origin,
    progress: Callable[[str], object],
) -> Report:
    """Take `series` samples of every workload, with a probe of the machine between any two samples.

    Raises:
        KvExhausted: the pool is too small for a workload.
    """
    samples: dict[str, list[Sample]] = defaultdict(list)
    probes = [prober()]
    for number in range(1, series + 1):
        for workload in workloads:
            progress(f"series {number}/{series}  {workload.name}")
            times = subject.run(workload)
            probes.append(prober())
            samples[workload.name].append(sample_of(subject, workload, times, probes[-2:]))
    return Report(
        version=Report.LAYOUT,
        setting=setting,
        origin=origin,
        weight_bytes=subject.executor.memory_plan.weights,
        best=best_rates(probes),
        cells=tuple(Cell.of(name, taken) for name, taken in samples.items()),
    )


def best_rates(probes: Sequence[Rates]) -> Rates:
    """Return the best of every rate: other processes can only slow a probe down."""
    return Rates(*(max(getattr(probe, field.name) for probe in probes) for field in fields(Rates)))


def sample_of(subject: ExecutorSubject, workload: Workload, times: Times, probes: Sequence[Rates]) -> Sample:
    """Convert seconds to tokens per second, with the limit of the fastest probe around the sample."""
    work = subject.costs_of(workload).work(workload.passes(subject.max_rows))
    seconds = min(seconds_of(work, rates) for rates in probes)
    return Sample(*(workload.counted_tokens / each for each in (times.bare, times.whole, seconds)))


def setting_of(subject: ExecutorSubject, name: str) -> Setting:
    """Return what is measured, for the report; `name` is the model's."""
    held: dict[str, int] = defaultdict(int)
    for weight in weights(subject.costs.program):
        held[weight.format] += weight.nbytes
    return Setting(
        model=name,
        formats=tuple(sorted(held, key=lambda format: -held[format])),
        kv_format=subject.costs.kv_format,
        threads=subject.threads,
    )
