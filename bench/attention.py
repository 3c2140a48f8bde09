"""Decode attention compared with the read bandwidth of the machine, by context, batch and KV format.

    python bench/attention.py --out attention.json

The native kernels attend over pages in random order, one layer of Qwen3-0.6B after another, until they have read far
more than the caches hold. Each sample is between two bandwidth probes. Samples with different probes are dropped;
medians are reported per level of bandwidth (`bench/series.py`).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from ferrum.bench.bench_run import Prober
from ferrum.cache.page_table import PageCopy
from ferrum.core.config import MAX_THREADS
from ferrum.core.option_fields import check_number
from ferrum.kernels.cpu.lowering import operand
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import PoolGroup, StepTables
from ferrum.kernels.op_attributes import AttentionShape
from script import positive, run_script
from series import COUNTS, state_levels

HEADS: Final = 16
KV_HEADS: Final = 8
HEAD_DIM: Final = 128
LAYERS: Final = 28
PAGE: Final = 64
READ: Final = 192 << 20
"""Minimum bytes of keys and values read per sample."""

CELLS: Final = ((1, 128), (1, 1024), (1, 4096), (1, 16384), (8, 1024), (8, 4096), (32, 256), (32, 1024))
"""Number of sequences, and their context."""

FORMATS: Final = ("bfloat16", "int8")


class Cell:
    """Prepared attention of one token per sequence over copies of a random page."""

    def __init__(self, format: str, threads: int | None, sequences: int, context: int) -> None:
        pages = sequences * -(-context // PAGE)
        layer = PoolGroup("all", pages + 1, PAGE, 1, KV_HEADS, HEAD_DIM, HEAD_DIM, format)
        self._kernels = NativeKernels(threads=threads)
        self.bytes = sequences * context * self._kernels.planned_page_bytes(layer) // PAGE  # read by a layer
        self.layers = min(LAYERS, max(1, READ // self.bytes))
        self._kernels.allocate((replace(layer, num_layers=self.layers),))
        self._rng = np.random.default_rng(0)
        self._store(pages)
        order = self._rng.permutation(pages).astype(np.int32) + 1
        self._begin(np.full(sequences, context - 1, np.int32), order.reshape(sequences, -1), 1)
        self._operands = [
            operand(self._normal(sequences, HEADS)) for _ in range(2)
        ]  # queries and results; operations borrow them
        q, out = self._operands
        lower, repeats = self._kernels.lowering.operation, -(-READ // (self.bytes * self.layers))
        self._operations = [
            lower("attention", (q, self._shape(layer)), (out,)) for _ in range(repeats) for layer in range(self.layers)
        ]

    def seconds(self) -> float:
        """Return the seconds of one layer."""
        begun = time.perf_counter()
        self._kernels.lowering.runtime.run(self._operations)
        return (time.perf_counter() - begun) / len(self._operations)

    def _store(self, pages: int) -> None:
        self._begin(np.arange(PAGE, dtype=np.int32), np.zeros((1, 1), np.int32), PAGE)
        for layer in range(self.layers):
            q, k, v = (self._normal(PAGE, heads) for heads in (HEADS, KV_HEADS, KV_HEADS))
            self._kernels.rope_store(q, k, v, self._shape(layer), None, None, None, 1e-6)
        self._kernels.copy_pages([PageCopy("all", 0, page) for page in range(1, pages + 1)])

    def _begin(self, positions: np.ndarray[Any, Any], pages: np.ndarray[Any, Any], rows: int) -> None:
        none = np.zeros(0, np.int32)
        spans = np.arange(len(pages) + 1, dtype=np.int32) * rows
        self._kernels.begin(StepTables(np.zeros_like(positions), positions, spans, (pages,), none, none))

    def _normal(self, rows: int, heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return self._rng.standard_normal((rows, heads * HEAD_DIM)).astype(np.float32)

    def _shape(self, layer: int) -> AttentionShape:
        return AttentionShape(0, layer, HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5)


def measure(format: str, threads: int | None, turns: int) -> list[dict[str, Any]]:
    """Return every cell of a format: microseconds per layer, and share of the bandwidth, per bandwidth level."""
    prober = Prober(threads)
    rows = []
    for sequences, context in CELLS:
        cell = Cell(format, threads, sequences, context)
        cell.seconds()
        samples, before = [], prober().read
        for _ in range(turns):
            seconds, after = cell.seconds(), prober().read
            if min(before, after) >= COUNTS * max(before, after):
                samples.append((max(before, after), seconds))
            before = after
        rows.append({"format": format, "sequences": sequences, "context": context, "at": medians(samples, cell.bytes)})
    return rows


def medians(samples: list[tuple[float, float]], nbytes: int) -> list[dict[str, float]]:
    """Return medians of the samples (bandwidth, seconds) by level of bandwidth, the fastest first."""
    lines = []
    for level in state_levels([read for read, _ in samples]):
        own = [(read, seconds) for read, seconds in samples if COUNTS * level <= read <= level]
        share = median(nbytes / seconds / read for read, seconds in own)
        microseconds = 1e6 * median(seconds for _, seconds in own)
        shown = {"gigabytes_per_second": level / 1e9, "microseconds": microseconds, "share": share}
        lines.append({"samples": len(own), **{name: round(value, 3) for name, value in shown.items()}})
    return lines


def main() -> None:
    """Measure, and print a line per cell and level."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=positive, default=9)
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.threads is not None:
        check_number("threads", options.threads, 1, MAX_THREADS)
    rows = [row for format in FORMATS for row in measure(format, options.threads, options.turns)]
    for row in rows:
        for line in row["at"]:
            print(f"{row['format']:9} {row['sequences']:3} x {row['context']:5}", line)
    if options.out:
        options.out.write_text(json.dumps({"threads": options.threads, "cells": rows}, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
