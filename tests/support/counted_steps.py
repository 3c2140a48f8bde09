"""Allocations of steps in a process with the library of `native/test/count_allocations.cpp` preloaded.

python counted_steps.py steps                    allocations of 200 native steps, by kernel tier, format and rows
python counted_steps.py memory <decode steps>    growth in bytes over the second half of these steps
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Callable
from itertools import cycle, product, repeat
from pathlib import Path

from ferrum.bench.shapes import SHAPES
from ferrum.core.config import ModelConfig
from ferrum.core.params import SamplingParams
from ferrum.core.step import Sampling, Span, StepBatch
from ferrum.kernels.cpu.library import tiers
from ferrum.runtime.load import build_executor
from ferrum.runtime.step_tables import Piece, stage
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor

LIBC = ctypes.CDLL(None)
CONTEXT = 250


def executor_of(**options) -> LocalExecutor:
    config = ModelConfig(model="tiny", kernels="native", threads=2, kv_capacity=4096, **options)
    return build_executor(LocalExecutor, config, checkpoint=RandomCheckpoint("tiny", SHAPES["tiny"]))


def counted(step: Callable[[], object], times: int) -> int:
    LIBC.begin_counting()
    for _ in repeat(None, times):
        step()
    return int(LIBC.end_counting())


def allocations(tier: str, quantize: str | None, rows: int) -> int:
    """Return how many more allocations 201 steps of that many rows make than one step."""
    step = native_step(tier, quantize, rows)
    counted(step, 50)  # until the interpreter has specialised its bytecode
    return counted(step, 201) - counted(step, 1)


def native_step(tier: str, quantize: str | None, rows: int) -> Callable[[], object]:
    """Return a recorded step of that many rows."""
    lm = executor_of(isa=tier, quantize=quantize).lm
    assert lm.pages.reserve("s", rows)
    lm.replay.submit(lm.kernels, stage([Piece("s", 0, *[range(rows)] * 4)], lm.pages))
    run = lm.kernels.lowering.runtime.run

    def step() -> None:
        run(lm.replay._native)  # the closure keeps the memory that the program borrows

    return step


class MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc: number 5 is bytes of separately mapped blocks, number 8 of all others."""

    _fields_ = (("numbers", ctypes.c_size_t * 10),)


LIBC.mallinfo2.restype = MallInfo


def memory() -> dict[str, int]:
    """Return the allocated and the resident bytes of the process."""
    gc.collect()
    numbers = LIBC.mallinfo2().numbers
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    return {"in use": numbers[4] + numbers[7], "resident": resident}


def growth(steps: int) -> dict[str, int]:
    """Return the growth of memory while four sequences decode; each restarts when its context ends."""
    executor = executor_of()
    sequences = {f"s{index}": [index] for index in range(4)}
    params = SamplingParams(temperature=0.8, top_p=0.9)
    rounds = steps // (CONTEXT - 1)
    for done in range(rounds * (CONTEXT - 1)):
        if done == rounds // 2 * (CONTEXT - 1):
            before = memory()
        spans = []
        for cache_id, history in sequences.items():
            sampling = Sampling(params, seed=1, prompt_length=1, history=history)
            spans.append(Span(cache_id, len(history) - 1, (history[-1],), sampling=sampling))
        for span, result in zip(spans, executor.submit(StepBatch(tuple(spans))).result().results, strict=True):
            history = sequences[span.cache_id]
            history.append(result.tokens[0])
            if len(history) == CONTEXT:
                executor.release_cache(span.cache_id)
                del history[1:]
    after = memory()
    return {name: after[name] - before[name] for name in after}


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        report = growth(int(sys.argv[2]))
    else:
        formats = product(tiers(), (None, "q8_0", "q4_k_m"))
        cases = [(*case, rows) for case, rows in zip(formats, cycle((1, 40)), strict=False)]
        report = {" ".join(map(str, case)): allocations(*case) for case in cases}
    print(json.dumps(report))
