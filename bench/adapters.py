"""Measure what adapters add to a decoding step, compared with the time to read their bytes.

    python bench/adapters.py --out bench/results/adapters.json

The model has the shape of Qwen3-0.6B with random weights in q4_k_m. Adapters of rank 16 in bfloat16 change all seven
projections of a layer. Steps of all cells alternate, and medians count. The bandwidth is probed in the same run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import ml_dtypes
import numpy as np

from ferrum.bench.bench_run import Prober
from ferrum.bench.shapes import shape_config
from ferrum.cli.doctor import processor_name
from ferrum.client.client_base import engine_config
from ferrum.core.params import SamplingParams
from ferrum.core.step import AdapterUse, Rows, Sampling, Span, SpanExtras, SpanResult, StepBatch, Want
from ferrum.kernels.adapters import Change, LowRank, SiteKind
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.load import build_executor
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor
from script import positive, run_script

SHAPE: Final = "qwen3-0.6b"
QUANTIZE: Final = "q4_k_m"
RANK: Final = 16
LOADED: Final = 31
TOGETHER: Final = 16
PROMPT: Final = 16
GREEDY: Final = Sampling(SamplingParams(temperature=0.0), 0, PROMPT, [])
BLOCK: Final = 5
"""Steps of a cell before the next cell."""


@dataclass
class Cell:
    """Sequences that decode.

    Attributes:
        adapters: of each sequence, or None.
        seconds: of its steps.
    """

    name: str
    adapters: list[AdapterUse | None]
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._extras = [None if use is None else SpanExtras(adapters=(use,)) for use in self.adapters]

    def begin(self, executor: LocalExecutor) -> None:
        """Compute the prompts."""
        self._run(executor, 0, PROMPT)
        self._length = PROMPT

    def step(self, executor: LocalExecutor) -> None:
        """Decode a token of each sequence, and keep the time."""
        begun = time.perf_counter()
        self._run(executor, self._length, 1)
        self.seconds.append(time.perf_counter() - begun)
        self._length += 1

    def _run(self, executor: LocalExecutor, start: int, count: int) -> None:
        spans = []
        for index, extras in enumerate(self._extras):
            tokens = (7 * index + 1,) * count
            spans.append(
                Span(f"{self.name} {index}", start, tokens, Want.TOKEN, Rows.LAST, sampling=GREEDY, extras=extras)
            )
        for result in executor.submit(StepBatch(tuple(spans))).result().results:
            if not isinstance(result, SpanResult):
                raise result


def random_adapter(lm: DecoderLM, seed: int) -> dict[str, Change]:
    """Return an adapter of all projections."""
    rng, found = np.random.default_rng(seed), dict[str, Change]()
    for site in lm.adapters.sites:
        if site.kind is SiteKind.LINEAR:
            for name, (outputs, inputs) in zip(site.names, site.shapes, strict=True):
                a, b = (rng.standard_normal(size).astype(np.float32) for size in ((RANK, inputs), (outputs, RANK)))
                parts = (0.01 * a).astype(ml_dtypes.bfloat16), (0.01 * b).astype(ml_dtypes.bfloat16)
                found[name] = Change(LowRank(*parts, 1.0))
    return found


@contextmanager
def counted(lm: DecoderLM) -> Iterator[list[int]]:
    """Count the steps that run the program with adapters within the block."""
    replay: Any = lm.adapted.replay
    calls, submit = [0], replay.submit

    def call(*arguments: Any) -> Any:
        calls[0] += 1
        return submit(*arguments)

    replay.submit = call
    try:
        yield calls
    finally:
        del replay.submit


def measure(steps: int) -> dict[str, Any]:
    """Time the steps of all cells."""
    rooms = (3 * TOGETHER + 3) * (PROMPT + steps + 128)  # in whole pages
    config = engine_config(SHAPE, {"quantize": QUANTIZE, "max_batch_size": 64, "kv_capacity": rooms})
    executor = build_executor(LocalExecutor, config.model, checkpoint=RandomCheckpoint(SHAPE, shape_config(SHAPE)))
    lm, probe, reads = executor.lm, Prober(None), list[float]()
    empty = _bases("none loaded")
    for cell in empty:
        cell.begin(executor)
    for _ in range(0, steps, BLOCK):
        for cell in empty:
            for _ in range(BLOCK):
                cell.step(executor)
    for index in range(LOADED):
        lm.adapters.add(str(index), lm.adapters.prepare(random_adapter(lm, index)))
    size = lm.adapters.nbytes // LOADED
    one = Cell("one adapter", [AdapterUse("0")])
    many = Cell("16 adapters", [AdapterUse(str(index)) for index in range(TOGETHER)])
    without = _bases(f"{LOADED} loaded")
    unused, cells = 0, [*without, one, many]
    for cell in cells:  # all have sequences of the same length
        cell.begin(executor)
    for block in range(0, steps, BLOCK):
        if block % (4 * BLOCK) == 0:
            reads.append(probe().read)
            cells.append(cells.pop(0))  # another cell follows the probe
        for cell in cells:
            with counted(lm) as calls:
                for _ in range(BLOCK):
                    cell.step(executor)
            unused += calls[0] if cell in without else 0
    executor.shutdown()
    return {
        "adapter_bytes": size,
        "read_bytes_per_second": round(max(reads)),
        "steps_with_adapters_of_sequences_without": unused,
        "cells": [
            *(_row(cell.name, median(cell.seconds)) for cell in (*empty, *without)),
            _added(one, without[0], size / max(reads)),
            _added(many, without[1], TOGETHER * size / max(reads)),
        ],
    }


def _bases(when: str) -> list[Cell]:
    """Return sequences without an adapter."""
    return [Cell(f"base, {when}", [None]), Cell(f"base of {TOGETHER}, {when}", [None] * TOGETHER)]


def _row(name: str, seconds: float) -> dict[str, Any]:
    return {"cell": name, "milliseconds": round(1e3 * seconds, 3)}


def _added(cell: Cell, base: Cell, floor: float) -> dict[str, Any]:
    """Return a row with what adapters add, and how many times the reading of their bytes that is."""
    added = median(cell.seconds) - median(base.seconds)
    row = _row(cell.name, median(cell.seconds))
    return {
        **row,
        "added_ms": round(1e3 * added, 3),
        "reading_ms": round(1e3 * floor, 3),
        "ratio": round(added / floor, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=positive, default=100, help="steps of a cell")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    host = {"shape": SHAPE, "quantize": QUANTIZE, "rank": RANK, "machine": processor_name()}
    report = {**host, **measure(options.steps)}
    print(json.dumps(report, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
