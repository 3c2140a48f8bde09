"""Compare each adaptive scheduling policy with a ten-line version, on a simulated clock.

    python bench/policies.py --out bench/results/policies.json

The real scheduler and page table run; the model is a cost formula, so no result depends on this machine.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import mean, median, quantiles
from typing import Any, Final

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.prefix_hash import PrefixScope
from ferrum.core.params import SamplingParams
from ferrum.core.step import Span, SpanResult, StepBatch, StepOutput, Want
from ferrum.core.types import Request
from ferrum.scheduler.policy import POLICIES
from ferrum.scheduler.scheduler import Scheduler

PAGE: Final = 64
STOP: Final = 2
SEEDS: Final = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """Cost of a step: seconds = weights + row * tokens + stored * tokens read, times noise.

    The defaults fit bench/results/qwen3-0.6b-int4.json (two cores): 15 ms for a decode with 128 tokens cached, 31 ms
    with 4,096, 93 ms for 32 sequences with 256 tokens each, 0.8 s for a prompt of 512 tokens.

    Attributes:
        weights: seconds to read the weights once.
        row: seconds to compute one token.
        stored: seconds to read one token of the KV cache; a prompt chunk reads it once for every 8 rows.
        noise: standard deviation of the logarithm of the duration.
        stalls: share of the steps that take three times as long.
        levels: factors of the machine's speed; another one is drawn every 200 steps.
    """

    weights: float = 0.013
    row: float = 0.0015
    stored: float = 4e-6
    noise: float = 0.05
    stalls: float = 0.01
    levels: tuple[float, ...] = (1.0,)

    def seconds(self, spans: Sequence[Span]) -> float:
        """Return the duration of a step without noise."""
        rows = sum(len(span.tokens) for span in spans)
        reads = sum(max(1.0, len(span.tokens) / 8) * (span.start + len(span.tokens) / 2) for span in spans)
        return self.weights + self.row * rows + self.stored * reads


@dataclass(frozen=True, slots=True)
class Job:
    """A request of a load; `answer` is where its stop token comes, or its limit when `known`."""

    arrival: float
    prompt: int
    answer: int
    known: bool = False
    tenant: str = ""
    probe: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A load and the engine that serves it."""

    jobs: Sequence[Job]
    pool: int
    machine: Machine = field(default_factory=Machine)
    policy: str = "fcfs"
    max_sequences: int = 64
    max_tokens_per_step: int = 512
    context: int = 16384
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """Times of one simulated run, in seconds; only requests with `probe` count in the latencies."""

    makespan: float = 0.0
    generated: int = 0
    computed: int = 0
    preemptions: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        """Return the figures that policies are judged by."""
        p95 = lambda values: quantiles(values, n=20)[-1] if len(values) > 1 else 0.0  # noqa: E731
        return {
            "tokens/s": self.generated / self.makespan,
            "median first token": median(self.first),
            "p95 first token": p95(self.first),
            "mean gap": mean(self.gaps),
            "p95 gap": p95(self.gaps),
            "preemptions": self.preemptions,
            "computed": self.computed,
        }


def simulate(setting: Setting, seed: int, change: Callable[[Scheduler], None] | None = None) -> dict[str, float]:
    """Serve the load to its end on the simulated clock."""
    pages = PageTable([PageGroup("all", setting.pool // PAGE, PAGE)])
    scheduler = Scheduler(
        pages,
        policy=POLICIES[setting.policy],
        max_tokens_per_step=setting.max_tokens_per_step,
        max_sequences=setting.max_sequences,
        max_sequence_length=setting.context,
        prefixes=PrefixScope(model="simulated", weights="", kv_format="", page_size=PAGE, numerics_id=""),
        **setting.options,
    )
    if change is not None:
        change(scheduler)
    draw, run = Random(f"machine {seed}"), Run()
    jobs = sorted(setting.jobs, key=lambda job: job.arrival)
    by_id = {str(index): job for index, job in enumerate(jobs)}
    pending = list(reversed(by_id.items()))
    last: dict[str, float] = {}
    generated: dict[str, int] = defaultdict(int)
    clock, steps, level = 0.0, 0, setting.machine.levels[0]
    while pending or scheduler.has_work:
        while pending and pending[-1][1].arrival <= clock:
            scheduler.add(_request(*pending.pop(), seed))
        plan = scheduler.plan()
        if plan is None:
            clock = max(clock, pending[-1][1].arrival)
            continue
        if steps % 200 == 199:
            level = draw.choice(setting.machine.levels)
        steps += 1
        seconds = level * setting.machine.seconds(plan.batch.spans) * draw.lognormvariate(0, setting.machine.noise)
        seconds *= 3 if draw.random() < setting.machine.stalls else 1
        clock += seconds
        run.computed += plan.batch.total_tokens
        pages.take_copies()
        for event in scheduler.commit(plan, _output(pages, plan.batch, by_id, generated, seconds)):
            if event.token_ids:
                job = by_id[event.request_id]
                run.generated += len(event.token_ids)
                if job.probe:
                    if event.request_id in last:
                        run.gaps.append(clock - last[event.request_id])
                    else:
                        run.first.append(clock - job.arrival)
                last[event.request_id] = clock
    run.makespan, run.preemptions = clock, scheduler.preemptions
    return run.metrics()


def _request(request_id: str, job: Job, seed: int) -> Request:
    draw = Random(f"{seed} {request_id}")
    return Request(
        request_id,
        tuple(draw.randrange(3, 30_000) for _ in range(job.prompt)),
        SamplingParams(max_tokens=job.answer if job.known else None),
        seed,
        stop_token_ids=frozenset() if job.known else frozenset({STOP}),
        arrival=job.arrival,
        tenant=job.tenant,
    )


def _output(
    pages: PageTable, batch: StepBatch, jobs: dict[str, Job], generated: dict[str, int], seconds: float
) -> StepOutput:
    results = []
    for span in batch.spans:
        pages.commit(span.cache_id, span.end)
        tokens: tuple[int, ...] = ()
        if span.want is Want.TOKEN:
            request_id = span.cache_id.split("/")[0]
            generated[request_id] += 1
            tokens = (STOP if generated[request_id] == jobs[request_id].answer else 3 + span.end % 30_000,)
        results.append(SpanResult(span.end, tokens))
    return StepOutput(tuple(results), seconds)
