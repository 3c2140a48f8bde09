"""Statistics of several engines as those of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import zip_longest

from ferrum.core.snapshots import PrefixCounts, SpeculationCounts
from ferrum.engine.messages import AdapterCounts, EngineStats, ImageCounts


def sum_of(each: Sequence[EngineStats], step_tokens: tuple[int, ...]) -> EngineStats:
    """Return the sums of counts, and the mean usage of pages.

    Args:
        each: the latest statistics of every engine, at least one.
        step_tokens: of the engine that reports now.
    """
    accepted = zip_longest(*(stats.speculation.accepted_per_position for stats in each), fillvalue=0)
    speculation = [stats.speculation for stats in each]
    return EngineStats(
        running=sum(stats.running for stats in each),
        waiting=sum(stats.waiting for stats in each),
        kv_usage=sum(stats.kv_usage for stats in each) / len(each),
        preemptions=sum(stats.preemptions for stats in each),
        prefixes=PrefixCounts(
            **{item.name: sum(getattr(stats.prefixes, item.name) for stats in each) for item in fields(PrefixCounts)}
        ),
        speculation=SpeculationCounts(
            sum(counts.drafts for counts in speculation),
            sum(counts.draft_tokens for counts in speculation),
            sum(counts.accepted_tokens for counts in speculation),
            tuple(map(sum, accepted)),
        ),
        step_tokens=step_tokens,
        adapters=_adapters([stats.adapters for stats in each]),
        images=ImageCounts(*map(sum, zip(*(stats.images for stats in each), strict=True))),
    )


def _adapters(each: Sequence[AdapterCounts]) -> AdapterCounts:
    running = sorted({name for counts in each for name in counts.running})
    waiting = sorted({name for counts in each for name in counts.waiting})
    return AdapterCounts(
        loaded=sum(counts.loaded for counts in each),
        nbytes=sum(counts.nbytes for counts in each),
        loads=sum(counts.loads for counts in each),
        evictions=sum(counts.evictions for counts in each),
        running=tuple(running),
        waiting=tuple(waiting),
    )
