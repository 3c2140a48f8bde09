"""Compare each adaptive scheduling policy with a ten-line version, on a simulated clock.

    python bench/policies.py --out bench/results/policies.json

The real scheduler and page table run; the model is a cost formula, so no result depends on this machine.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import geometric_mean, mean, median, quantiles
from typing import Any, Final

from ferrum.cache.page_hashes import PrefixScope
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.core.params import SamplingParams
from ferrum.core.policy_config import POLICY
from ferrum.core.step import Span, SpanResult, StepBatch, StepOutput, Want
from ferrum.core.types import Request
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.step_plan import StepCosts
from script import positive, run_script

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
    limit_sequences: bool = True


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
        return {
            "tokens/s": self.generated / self.makespan,
            "median first token": median(self.first),
            "p95 first token": quantiles(self.first, n=20)[-1],
            "mean gap": mean(self.gaps),
            "p95 gap": quantiles(self.gaps, n=20)[-1],
            "preemptions": self.preemptions,
            "computed": self.computed,
        }


def simulate(setting: Setting, seed: int) -> dict[str, float]:
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
    if not setting.limit_sequences:
        scheduler.planner.budget.sequences = lambda limit, stored: limit  # type: ignore[method-assign]  # noqa: ARG005
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


class TokenAverage(StepCosts):
    """The short version of `StepCosts`: a moving average of the seconds per token; 400 reads count as a token."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0

    def observe(self, rows: int, context_tokens: int, seconds: float) -> None:
        each = seconds / (rows + context_tokens / 400)
        self._seconds = self._seconds + 0.2 * (each - self._seconds) if self._seconds else each

    @property
    def smallest(self) -> int:
        return 1 if self._seconds else 0

    def predict(self, rows: int, context_tokens: int) -> float:
        return self._seconds * (rows + context_tokens / 400)


def _no_reserve(sequence: object, context: int) -> int:  # noqa: ARG001 - the signature of a reserve
    return 0


def contended(seed: int, *, known: bool) -> Setting:
    """64 requests at once with short prompts and answers of up to 1,024 tokens; the pool holds a quarter of them."""
    draw = Random(f"contended {seed}")
    jobs = [Job(0, draw.randint(32, 128), draw.randint(32, 1024), known) for _ in range(64)]
    return Setting(jobs=jobs, pool=sum(job.prompt + job.answer for job in jobs) // 4)


def long_prompts(seed: int, machine: Machine) -> Setting:
    """12 sequences decode while prompts of up to 8,192 tokens arrive; the target of a step is 0.3 s."""
    draw, clock = Random(f"long {seed}"), 10.0
    jobs = [Job(0, draw.randint(128, 512), 400 + draw.randint(0, 400)) for _ in range(12)]
    for _ in range(16):
        clock += draw.expovariate(1 / 8)
        jobs.append(Job(clock, draw.randint(512, 8192), draw.randint(50, 400)))
    return Setting(jobs=jobs, pool=1 << 18, machine=machine, options={"decode_seconds": 0.3})


def many_short(seed: int) -> Setting:
    """96 short requests at once; the target of a step is 0.15 s."""
    draw = Random(f"short {seed}")
    jobs = [Job(0, draw.randint(64, 192), draw.randint(50, 250)) for _ in range(96)]
    return Setting(jobs=jobs, pool=1 << 18, max_sequences=96, options={"decode_seconds": 0.15})


def new_tenants(seed: int) -> Setting:
    """32 tenants decode with 512 tokens stored; every 1.5 s a new one sends a prompt of about 24 tokens."""
    draw, clock = Random(f"tenants {seed}"), 60.0
    jobs = [Job(0, 512, 600, tenant=f"old {index}", probe=False) for index in range(32)]
    for index in range(40):
        clock += draw.expovariate(1 / 1.5)
        jobs.append(Job(clock, draw.randint(12, 36), 8, tenant=f"new {index}"))
    return Setting(jobs=jobs, pool=1 << 17, policy="fair", options={"decode_seconds": 0.5})


@dataclass(frozen=True, slots=True)
class Case:
    """A policy on the load it exists for.

    Attributes:
        policy, simple: names of the policy and of its short version.
        load: returns the setting with the policy.
        without: returns the setting with the short version instead.
        metric: one of `Run.metrics`; throughput is better when larger, all others when smaller.
    """

    policy: str
    simple: str
    load: Callable[[int], Setting]
    without: Callable[[Setting], Setting]
    metric: str


def _options(**options: Any) -> Callable[[Setting], Setting]:
    return lambda setting: replace(setting, options={**setting.options, **options})


def _without_sequence_limit(setting: Setting) -> Setting:
    return replace(setting, limit_sequences=False)


def _fixed(tokens: int) -> Callable[[Setting], Setting]:
    return lambda setting: replace(
        setting, options={**setting.options, "decode_seconds": None}, max_tokens_per_step=tokens
    )


NOISY: Final = Machine(noise=0.15, stalls=0.03)

_WITHOUT_RESERVE: Final = _options(reserve=_no_reserve)
_WITHOUT_FIRST_TOKENS: Final = _options(config=replace(POLICY, first_token_ratio=0.0))


def _token_average(setting: Setting) -> Setting:
    return _options(costs=TokenAverage())(setting)


CASES: Final = (
    Case("growth reserve", "free pages", partial(contended, known=False), _WITHOUT_RESERVE, "tokens/s"),
    Case("growth reserve (known limits)", "free pages", partial(contended, known=True), _WITHOUT_RESERVE, "tokens/s"),
    Case("step budget (long prompts)", "128 tokens", partial(long_prompts, machine=Machine()), _fixed(128), "p95 gap"),
    Case("sequence limit", "none", many_short, _without_sequence_limit, "p95 gap"),
    Case("step costs", "time per token", partial(long_prompts, machine=NOISY), _token_average, "p95 gap"),
    Case("first-token steps", "none", new_tenants, _WITHOUT_FIRST_TOKENS, "median first token"),
)


def measure(case: Case, seeds: int) -> dict[str, Any]:
    """Run both versions with each seed in turn, and return the metrics of each."""
    ours, simple = [], []
    for seed in range(seeds):
        setting = case.load(seed)
        ours.append(simulate(setting, seed))
        simple.append(simulate(case.without(setting), seed))
    ratios = [one[case.metric] / other[case.metric] for one, other in zip(ours, simple, strict=True)]
    gains = [ratio if case.metric == "tokens/s" else 1 / ratio for ratio in ratios]
    return {
        "policy": case.policy,
        "simple": case.simple,
        "metric": case.metric,
        "gain": geometric_mean(gains) - 1,
        "gains": [round(gain - 1, 4) for gain in gains],
        "ours": _means(ours),
        "simple_version": _means(simple),
    }


def _means(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(mean(run[name] for run in runs), 4) for name in runs[0]}


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=positive, default=SEEDS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report = []
    print("| policy | short version | metric | with | short | gain |\n|---|---|---|---|---|---|")
    for case in CASES:
        row = measure(case, options.seeds)
        report.append(row)
        ours, simple = row["ours"][case.metric], row["simple_version"][case.metric]
        print(
            f"| {case.policy} | {case.simple} | {case.metric} | {ours:.3g} | {simple:.3g} | {row['gain']:+.0%} |",
            flush=True,
        )
    if options.out is not None:
        options.out.write_text(json.dumps({"seeds": options.seeds, "cases": report}, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
