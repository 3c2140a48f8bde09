"""Interleaved series that only count samples of an undisturbed machine; used by peers.py and attention.py.

Shared hosts switch between levels of read bandwidth, and other processes weaken a probe, which flatters the share of
the limit. A probe counts within 5% of the best of its level. A sample counts if both probes around it count and agree
and other processes used at most a fifth of a processor meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from ferrum.bench.bench_run import best_rates
from ferrum.bench.limits import Rates, Work, seconds_of
from ferrum.bench.report import Cell, Sample
from ferrum.bench.subject import Times
from ferrum.bench.workloads import Workload

COUNTS: Final = 0.95
"""Share of its level's best a probe must reach."""

SAME_LEVEL: Final = 0.75
"""Share of a level's best its weakest members have. Known levels are 0.65 apart."""

CONFIRMED: Final = 3
"""Probes that must agree before a lower level counts as a level and not as a disturbance."""

DISTURBED: Final = 0.2
"""Processors other processes may use during a sample."""

TICK: Final = 0.02
"""Error of the system's processor times over a sample, in seconds."""


def state_levels(reads: Sequence[float]) -> tuple[float, ...]:
    """Return the best read bandwidth of each level, fastest first.

    The best of all is always a level: a measured bandwidth is never too high.
    """
    levels: list[float] = []
    rest = sorted(reads, reverse=True)
    while rest:
        best = rest[0]
        near = sum(1 for read in rest if read >= COUNTS * best)
        if not levels or near >= CONFIRMED:
            levels.append(best)
            rest = [read for read in rest if read < SAME_LEVEL * best]
        else:
            rest = rest[1:]
    return tuple(levels)


@dataclass(frozen=True, slots=True)
class Taken:
    """A measurement with the probes before and after it, and the processors other processes used (None: unknown)."""

    workload: str
    times: Times
    others: float | None
    before: Rates
    after: Rates

    @property
    def quiet(self) -> bool:
        """Whether other processes left the processors alone."""
        return self.others is None or self.others <= DISTURBED


@dataclass(frozen=True, slots=True)
class Judge:
    """All probes of a run: the levels of read bandwidth, and the best of every rate."""

    levels: tuple[float, ...]
    best: Rates

    @classmethod
    def of(cls, taken: Sequence[Taken]) -> Judge:
        """Judge by these samples' probes; only undisturbed ones can show a lower level."""
        best = best_rates([probe for each in taken for probe in (each.before, each.after)])
        quiet = [probe.read for each in taken if each.quiet for probe in (each.before, each.after)]
        return cls(state_levels([best.read, *quiet]), best)

    def counts(self, probe: Rates, work: Work) -> bool:
        """Return whether a probe's limit is within 5% of its level's; rates the work does not need may be weak."""
        undisturbed = replace(self.best, read=min(level for level in self.levels if level >= probe.read))
        return seconds_of(work, undisturbed) >= COUNTS * seconds_of(work, probe)

    def counted(self, taken: Taken, work: Work) -> bool:
        """Return whether a sample counts."""
        limits = [seconds_of(work, probe) for probe in (taken.before, taken.after)]
        agree = min(limits) >= COUNTS * max(limits)
        return taken.quiet and agree and all(self.counts(probe, work) for probe in (taken.before, taken.after))


class Subject(Protocol):
    """What is measured."""

    def run(self, workload: Workload) -> Times:
        """Take one sample."""
        ...


def seconds_of_others(stat: Path = Path("/proc/stat")) -> float | None:
    """Return the seconds other processes or the host used our processors since boot; None if unknown.

    Our processors are those this process may use. Differences are exact to about 0.01 s.
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
    """Return the ticks of user, nice, system, irq, softirq and steal."""
    user, nice, system, _, _, irq, softirq, steal = map(int, counts[:8])
    return user + nice + system + irq + softirq + steal


@dataclass(frozen=True, slots=True)
class Series:
    """A sampler of a subject, with a probe of the machine between any two samples."""

    subject: Subject
    prober: Callable[[], Rates]
    others: Callable[[], float | None] = seconds_of_others
    clock: Callable[[], float] = field(default=time.perf_counter)

    def sample(self, workload: Workload, before: Rates) -> Taken:
        """Take one sample."""
        begun, used = self.clock(), self.others()
        times = self.subject.run(workload)
        after = self.prober()
        now = self.others()
        others = None
        if used is not None and now is not None:
            others = max(0.0, now - used - TICK) / (self.clock() - begun)
        return Taken(workload.name, times, others, before, after)

    def measure(
        self,
        workloads: Sequence[Workload],
        count: int,
        between: Sequence[Callable[[], None]],
        progress: Callable[[str], object],
    ) -> list[Taken]:
        """Take `count` series before each run of `between`. A disturbed sample is taken again, once."""
        taken = []
        turns = [run for _ in range(count) for run in between or [lambda: None]]
        for number, run in enumerate(turns, 1):
            before = self.prober()
            for workload in workloads:
                progress(f"series {number}/{len(turns)}  {workload.name}")
                taken.append(self.sample(workload, before))
                if not taken[-1].quiet:
                    progress(f"other processes used {taken[-1].others:.2f} processors; {workload.name} again")
                    taken.append(self.sample(workload, taken[-1].after))
                before = taken[-1].after
            run()
        return taken


def cell_of(taken: Sequence[Taken], workload: Workload, work: Work, judge: Judge) -> tuple[Cell, int]:
    """Summarise a workload's samples that count, or all of them if none counts; return also how many count."""
    own = [each for each in taken if each.workload == workload.name]
    counted = [each for each in own if judge.counted(each, work)]
    tokens = workload.counted_tokens
    samples = [
        Sample(
            tokens / each.times.bare,
            tokens / each.times.whole,
            tokens / min(seconds_of(work, each.before), seconds_of(work, each.after)),
        )
        for each in counted or own
    ]
    return Cell.of(workload.name, samples), len(counted)
