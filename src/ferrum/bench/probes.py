"""Which probes of the machine count, and by which rates a sample is judged.

Shared machines have states: their read bandwidth switches between levels for seconds or minutes, and whatever else runs
weakens a probe. A weak probe flatters the figure that is divided by it. So a probe counts only within 5% of the best
that was seen in its state, and a sample only where the probes before and after it count and agree, and other processes
left the processors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ferrum.bench.limits import Rates

COUNTS: Final = 0.95
"""Of the best of its state, what a probe must reach."""

SAME_STATE: Final = 0.75
"""Of a state's best, what its weakest members have. Known states are 0.65 apart, disturbances nearer."""

CONFIRMED: Final = 3
"""Probes that must agree before a level below the best is believed to be a state and not a disturbance."""

Limit = Callable[[Rates], float]
"""A workload's limit in seconds by given rates."""


def state_levels(reads: Sequence[float]) -> tuple[float, ...]:
    """The best read bandwidth of each state among those that were seen, fastest state first.

    The best of all is always a level: reading cannot be measured too fast. One below is a level only where `CONFIRMED`
    probes come within 5% of it.
    """
    levels: list[float] = []
    rest = sorted(reads, reverse=True)
    while rest:
        best = rest[0]
        near = sum(1 for read in rest if read >= COUNTS * best)
        if not levels or near >= CONFIRMED:
            levels.append(best)
            rest = [read for read in rest if read < SAME_STATE * best]
        else:
            rest = rest[1:]
    return tuple(levels)


@dataclass(frozen=True, slots=True)
class Judge:
    """What the probes of a whole run say about each of them.

    Attributes:
        levels: see `state_levels`.
        best: the best of every rate.
    """

    levels: tuple[float, ...]
    best: Rates

    @classmethod
    def of(cls, probes: Sequence[Rates], quiet: Sequence[Rates]) -> Judge:
        """Judge by these probes.

        Args:
            probes: all of a run: at least one. Peaks and the fastest state are the best among them.
            quiet: those taken while others left the processors alone: only they can show a slower state.
        """
        best = Rates(
            read=max(probe.read for probe in probes),
            float32=max(probe.float32 for probe in probes),
            bfloat16=max(probe.bfloat16 for probe in probes),
            int8=max(probe.int8 for probe in probes),
            int4=max(probe.int4 for probe in probes),
        )
        return cls(state_levels([best.read, *(probe.read for probe in quiet)]), best)

    def undisturbed(self, probe: Rates) -> Rates:
        """What the machine could do in the probe's state: the next bandwidth level above, the best peaks of the run."""
        read = min(level for level in self.levels if level >= probe.read)
        return replace(self.best, read=read)

    def counts(self, probe: Rates, limit: Limit) -> bool:
        """Whether a probe is good enough for a workload: the limit it gives is within 5% of its state's.

        Rates that the workload does not lean on may be weak.
        """
        return limit(self.undisturbed(probe)) >= COUNTS * limit(probe)

    def limit_between(self, before: Rates, after: Rates, limit: Limit) -> tuple[float, bool]:
        """The limit of a sample in seconds, by the stronger of the probes around it, and whether the sample counts."""
        first, second = limit(before), limit(after)
        agree = min(first, second) >= COUNTS * max(first, second)
        counted = agree and self.counts(before, limit) and self.counts(after, limit)
        return min(first, second), counted
