"""Measure decode, prefill and page copies for page sizes of 16 to 256 tokens.

    python bench/page_size.py --out bench/results/page_size.json

The model has the shape of Qwen3-0.6B with random weights, packed to int8, and runs the same workloads with each page
size in rounds. Speeds are relative to the best size of the same round, medians over the rounds. The report also has
the bytes a fork copies, and the mean number of tokens after a sequence's last full page, which a shared prefix leaves
out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from ferrum.bench.subject import ExecutorSubject
from ferrum.bench.workloads import WORKLOADS, Workload
from ferrum.cache.page_table import PageCopy
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from packed import SHAPE, options_of, packed_model, write
from script import positive, run_script

SIZES: Final = (16, 32, 64, 128, 256)
MEASURED: Final = ("decode@1024", "decode@4096", "prefill512")
COPIES: Final = 8


def copy_seconds(executor: LocalExecutor) -> float:
    """Return the seconds to copy one page of every layer group."""
    groups = executor.lm.pages.groups
    pairs = [PageCopy(group.name, 0, 1) for group in groups]
    times = []
    for _ in range(COPIES):
        begun = time.perf_counter()
        executor.lm.kernels.copy_pages(pairs)
        times.append(time.perf_counter() - begun)
    return median(times)


def measure(model: str, kv_dtype: str, turns: int) -> dict[str, Any]:
    """Run all sizes and workloads alternately."""
    workloads = [each for each in WORKLOADS if each.name in MEASURED]
    capacity = max(each.sequences * (each.length + max(SIZES)) for each in workloads) + max(SIZES)
    subjects = {size: subject_of(model, kv_dtype, size, capacity) for size in SIZES}
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(turns):
        for workload in workloads:
            for size, subject in subjects.items():
                seconds.setdefault((workload.name, size), []).append(subject.run(workload).bare)
    return {str(size): told(size, subjects[size].executor, workloads, seconds) for size in SIZES}


def subject_of(model: str, kv_dtype: str, size: int, capacity: int) -> ExecutorSubject:
    """Load an executor with pages of this size."""
    executor = load_executor(model, kv_dtype=kv_dtype, kv_capacity=capacity, page_size=size)
    return ExecutorSubject(executor, EngineConfig(model=ModelConfig(model=model)), SHAPE)


def told(
    size: int, executor: LocalExecutor, workloads: list[Workload], seconds: Mapping[tuple[str, int], list[float]]
) -> dict[str, Any]:
    """Return one size's speeds relative to the best, and the properties of its pages."""
    shares = {}
    for workload in workloads:
        turns = zip(*(seconds[workload.name, each] for each in SIZES), strict=True)
        own = seconds[workload.name, size]
        shares[workload.name] = round(median(min(turn) / mine for turn, mine in zip(turns, own, strict=True)), 4)
    return {
        "speed": shares,
        "page_bytes": sum(executor.lm.kernels.page_bytes(group.name) for group in executor.lm.pages.groups),
        "copy_milliseconds": round(1e3 * copy_seconds(executor), 3),
        "mean_tokens_behind": (size - 1) / 2,
    }


def main() -> None:
    """Measure, and print a line for each size."""
    parser = options_of(__doc__)
    parser.add_argument("--turns", type=positive, default=5)
    parser.add_argument("--kv-dtype", default="auto")
    options = parser.parse_args()
    with packed_model(options.model) as model:
        report = measure(model, options.kv_dtype, options.turns)
    for size, case in report.items():
        print(size, case)
    write(options.out, {"kv_dtype": options.kv_dtype, "sizes": report})


if __name__ == "__main__":
    run_script(main)
