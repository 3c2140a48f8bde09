"""Compare rules that set the number of threads of a step, on a quiet machine and next to other processes.

    python bench/team_size.py --out bench/results/team_size.json

A Q4_K_M model of the shape of Qwen3-0.6B with random weights, and the built-in model, run prompts and decodes. Rules
take samples in turn. Other processes: none; one that uses a core for two seconds now and then; one that loops without
rest; six that do. For each rule the table has the median of tokens per second, the slowest and fastest sample, and how
many samples were below 0.8 of the median.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

from ferrum.bench.shapes import shape_config
from ferrum.bench.subject import ExecutorSubject
from ferrum.bench.workloads import Kind, Workload
from ferrum.cli.doctor import processor_name
from ferrum.client.client_base import engine_config
from ferrum.core.policy_config import POLICY
from ferrum.kernels.cpu.library import available_threads
from ferrum.kernels.cpu.team_size import StepTeam
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.sources.random_checkpoint import RandomCheckpoint
from script import positive, run_script

SHAPE: Final = "qwen3-0.6b"
QUANTIZE: Final = "q4_k_m"
SMALL: Final = "ferrum-tiny"
STEPS: Final = (
    (SHAPE, Workload("prefill512", Kind.PREFILL, 1, 0, 512)),
    (SHAPE, Workload("prefill2048", Kind.PREFILL, 1, 0, 2048)),
    (SHAPE, Workload("decode", Kind.DECODE, 1, 128, 16)),
    (SHAPE, Workload("decode of 8", Kind.DECODE, 8, 128, 8)),
    (SMALL, Workload("prefill128", Kind.PREFILL, 1, 0, 128)),
    (SMALL, Workload("decode", Kind.DECODE, 1, 128, 256)),
    (SMALL, Workload("decode of 8", Kind.DECODE, 8, 128, 64)),
)
BURST_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = (1.0, 5.0)


class Rule(Protocol):
    """The part of `StepTeam` that kernels use."""

    def begin(self, rows: int, operations: int) -> int: ...
    def end(self) -> None: ...


class Fixed:
    """The same number of threads for every step."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def begin(self, rows: int, operations: int) -> int:  # noqa: ARG002 - no step differs
        """Return the number of threads."""
        return self._threads

    def end(self) -> None:
        """Ignore the step."""


def rules() -> dict[str, Rule]:
    """Return the rule in use, the same for steps of any length, and fixed teams."""
    threads = available_threads()
    return {
        "adaptive": StepTeam(threads),
        "long steps too": StepTeam(threads, policy=replace(POLICY, team_long_operation_seconds=math.inf)),
        f"{threads} threads": Fixed(threads),
        "1 thread": Fixed(1),
    }


def _spin() -> None:
    while True:
        pass


def _burst() -> None:
    pauses = random.Random(0)
    while True:
        end = time.monotonic() + BURST_SECONDS
        while time.monotonic() < end:
            pass
        time.sleep(pauses.uniform(*PAUSE_SECONDS))


NEIGHBOURS: Final[Mapping[str, Sequence[Callable[[], None]]]] = {
    "none": (),
    "bursts": (_burst,),
    "one": (_spin,),
    "six": (_spin,) * 6,
}


@contextmanager
def neighbours(programs: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Run other processes for as long as the context lasts."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=program, daemon=True) for program in programs]
    for process in processes:
        process.start()
    try:
        time.sleep(0.5 if processes else 0.0)  # they import this module first
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def subject_of(model: str) -> ExecutorSubject:
    """Load a model."""
    longest = 64 + max(each.sequences * (each.length + 64) for name, each in STEPS if name == model)
    options = {"kv_capacity": -(-longest // 64) * 64}
    if model == SMALL:
        config = engine_config(SMALL, options)
        return ExecutorSubject(build_executor(LocalStepExecutor, config.model), config, SMALL)
    config = engine_config(SHAPE, {"quantize": QUANTIZE, "max_batch_size": 8, **options})
    executor = build_executor(LocalStepExecutor, config.model, checkpoint=RandomCheckpoint(SHAPE, shape_config(SHAPE)))
    return ExecutorSubject(executor, config, SHAPE)


def measure(subject: ExecutorSubject, workload: Workload, names: Sequence[str], samples: int) -> dict[str, list[float]]:
    """Return tokens per second by rule, one value per sample; rules take turns."""
    kernels: Any = subject.executor.lm.kernels
    chosen = {name: rule for name, rule in rules().items() if name in names}
    rates: dict[str, list[float]] = {name: [] for name in chosen}
    with subject.staged(workload) as passes:
        for _ in range(samples):
            for name, rule in chosen.items():
                kernels._team = rule
                begun = time.perf_counter()
                for tables in passes:
                    subject.forward(tables)
                rates[name].append(workload.counted_tokens / (time.perf_counter() - begun))
    return rates


def line(label: str, rates: Mapping[str, list[float]]) -> str:
    """Return a row of the table."""
    cells = []
    for each in rates.values():
        middle = median(each)
        slow = sum(rate < 0.8 * middle for rate in each)
        cells.append(f"{middle:.0f} ({min(each):.0f}-{max(each):.0f}; {slow})")
    return f"| {label} | {' | '.join(cells)} |"


def main() -> None:
    """Measure each step next to each group of processes, print the table, and write the samples."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=positive, default=20)
    parser.add_argument("--steps", default="", help="only steps whose model and name contain this text")
    parser.add_argument("--rules", nargs="*", choices=[*rules()], default=[*rules()])
    parser.add_argument("--neighbours", nargs="*", choices=[*NEIGHBOURS], default=[*NEIGHBOURS])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = [(model, each) for model, each in STEPS if options.steps in f"{model} {each.name}"]
    if not chosen:
        parser.error(f"--steps {options.steps!r} names none of {', '.join(f'{m} {w.name}' for m, w in STEPS)}")
    print(f"| step | others | {' | '.join(options.rules)} |")
    print(f"|---|---|{'---|' * len(options.rules)}")
    results: list[dict[str, Any]] = []
    for model in dict.fromkeys(model for model, _ in chosen):
        with subject_of(model) as subject:
            for workload in [each for name, each in chosen if name == model]:
                for others in options.neighbours:
                    with neighbours(NEIGHBOURS[others]):
                        rates = measure(subject, workload, options.rules, options.samples)
                    print(line(f"{model} {workload.name} | {others}", rates), flush=True)
                    results.append({"model": model, "step": workload.name, "others": others, "rates": rates})
    if options.out is not None:
        report = {"processor": processor_name(), "threads": available_threads(), "results": results}
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
