"""Interleaved series: every workload once in each, a probe of the machine between any two samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ferrum.bench.limits import Rates
from ferrum.bench.machine import Prober, seconds_of_others
from ferrum.bench.probes import Judge, Limit
from ferrum.bench.subject import Subject
from ferrum.bench.workloads import Workload
from ferrum.core.json_record import JsonRecord

DISTURBED: Final = 0.2
"""Processors that others may use during a sample."""

TICK: Final = 0.02
"""Seconds by which the system's account of processor time may be wrong over a sample."""

Tell = Callable[[str], None]
"""Told what is being measured."""


@dataclass(frozen=True, slots=True)
class Sample(JsonRecord):
    """One measurement, and the machine before and after it.

    Attributes:
        workload: its name.
        bare, whole: seconds, see `Times`.
        others: processors that other processes used meanwhile, on average; None where nobody tells.
    """

    workload: str
    bare: float
    whole: float
    others: float | None
    before: Rates
    after: Rates

    @property
    def quiet(self) -> bool:
        """Whether others left the processors alone."""
        return self.others is None or self.others <= DISTURBED


@dataclass(frozen=True, slots=True)
class Judged(JsonRecord):
    """A sample beside its limit.

    Attributes:
        sample: what was measured.
        figure: tokens per second of the bare passes.
        whole: tokens per second with everything up to the sampled token.
        limit: tokens per second that the machine allowed, by the stronger of the probes around the sample.
        counted: whether both probes count and agree (`bench/probes.py`), and others left the processors alone.
    """

    sample: Sample
    figure: float
    whole: float
    limit: float
    counted: bool

    @property
    def ratio(self) -> float:
        """The share of the limit that was reached."""
        return self.figure / self.limit


@dataclass(frozen=True, slots=True)
class Bench:
    """What takes samples.

    Attributes:
        subject: what is measured.
        prober: probes the machine.
        others: processor seconds that others have used; None where nobody tells.
        clock: seconds.
    """

    subject: Subject
    prober: Prober
    others: Callable[[], float | None] = seconds_of_others
    clock: Callable[[], float] = time.perf_counter

    def sample(self, workload: Workload, before: Rates) -> Sample:
        """One measurement, the probe before it taken already."""
        begun, used = self.clock(), self.others()
        times = self.subject.run(workload)
        after = self.prober()
        now = self.others()
        others = None
        if used is not None and now is not None:
            others = max(0.0, now - used - TICK) / (self.clock() - begun)
        return Sample(workload.name, times.bare, times.whole, others, before, after)

    def measure(
        self, workloads: Sequence[Workload], series: int, between: Sequence[Callable[[], None]], tell: Tell
    ) -> list[Sample]:
        """Take samples of every workload, interleaved. One that others disturbed is taken again, once.

        Args:
            workloads: what is measured, in this order.
            series: how often, before each of `between`.
            between: turns of peers. What they are compared with is never farther away than one of them.
            tell: told of each sample before it is taken.
        """
        samples = []
        turns = [run for _ in range(series) for run in between or [lambda: None]]
        for number, run in enumerate(turns, 1):
            before = self.prober()
            for workload in workloads:
                tell(f"series {number}/{len(turns)}  {workload.name}")
                samples.append(self.sample(workload, before))
                if not samples[-1].quiet:
                    tell(f"disturbed: others used {samples[-1].others:.2f} processors; {workload.name} again")
                    samples.append(self.sample(workload, samples[-1].after))
                before = samples[-1].after
            run()
        return samples


def judge_of(samples: Sequence[Sample]) -> Judge:
    """Who judges these samples: made of all their probes."""
    both = [(sample.quiet, probe) for sample in samples for probe in (sample.before, sample.after)]
    return Judge.of([probe for _, probe in both], [probe for quiet, probe in both if quiet])


def judge(samples: Sequence[Sample], workload: Workload, limit: Limit, by: Judge) -> tuple[Judged, ...]:
    """The workload's samples beside their limits.

    Args:
        samples: of all workloads.
        workload: whose.
        limit: its limit in seconds by given rates.
        by: made of all probes of the run.
    """
    judged = []
    for sample in samples:
        if sample.workload != workload.name:
            continue
        seconds, counted = by.limit_between(sample.before, sample.after, limit)
        tokens = workload.counted_tokens
        figures = tokens / sample.bare, tokens / sample.whole, tokens / seconds
        judged.append(Judged(sample, *figures, counted and sample.quiet))
    return tuple(judged)
