"""Measure the gaps between a stream's tokens while an adapter with magnitudes (DoRA) is loaded next to it.

    python bench/dora_load.py --out bench/results/dora_load.json

The model has the shape of Qwen3-0.6B with random weights in q4_k_m. One sequence decodes while another thread prepares
an adapter of rank 16 for all projections, whose factors are computed from the dequantised base. Blocks of steps with
and without this work alternate, since the speed of shared machines drifts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import mean, median
from threading import Event
from typing import Any, Final

import numpy as np

from adapters import PROMPT, QUANTIZE, RANK, SHAPE, Cell, random_adapter
from ferrum.bench.shapes import shape_config
from ferrum.cli.doctor import processor_name
from ferrum.client.client_base import engine_config
from ferrum.core.threads import Pauses, yield_to_steps
from ferrum.kernels.adapters import Change
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.load import build_executor
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor
from script import run_script

BLOCK: Final = 40
"""Steps before the load pauses or goes on."""

CONTEXT: Final = 512
"""Tokens of the sequence before it begins again, so that steps during the load cost what they cost before it."""


def dora(lm: DecoderLM) -> dict[str, Change]:
    """Return an adapter of all projections with random magnitudes."""
    rng, found = np.random.default_rng(0), dict[str, Change]()
    for name, change in random_adapter(lm, 0).items():
        assert change.low_rank is not None
        magnitude = rng.uniform(0.5, 1.5, len(change.low_rank.b)).astype(np.float32)
        found[name] = replace(change, magnitude=magnitude)
    return found


class Stream:
    """A sequence that decodes, and begins again before its context is full."""

    def __init__(self, executor: LocalExecutor) -> None:
        self._executor, self._cell = executor, Cell("stream", [None])
        self._cell.begin(executor)

    def gaps(self) -> Iterator[float]:
        """Decode for ever; yield the seconds of each step."""
        while True:
            for _ in range(CONTEXT - PROMPT):
                self._cell.step(self._executor)
                yield self._cell.seconds[-1]
            self._executor.release_cache("stream 0")
            self._cell.begin(self._executor)


def prepare(executor: LocalExecutor, changes: Mapping[str, Change], open_gate: Event) -> None:
    """Prepare an adapter as `LocalExecutor.prepare_adapter` does, while the gate is open."""
    pauses = Pauses(lambda: True)

    def pause() -> None:
        pauses()
        open_gate.wait()

    executor.lm.adapters.prepare(changes, pause)


def measure() -> dict[str, Any]:
    """Time the gaps alone and during a load, in turn."""
    config = engine_config(SHAPE, {"quantize": QUANTIZE, "kv_capacity": 2 * CONTEXT})
    executor = build_executor(LocalExecutor, config.model, checkpoint=RandomCheckpoint(SHAPE, shape_config(SHAPE)))
    gaps, changes = Stream(executor).gaps(), dora(executor.lm)
    times: dict[str, list[float]] = {"alone": [], "during": []}
    with ThreadPoolExecutor(1, "loader", yield_to_steps) as thread:
        load = thread.submit(prepare, executor, changes, gate := Event())
        while not load.done():
            for name, change in ("alone", gate.clear), ("during", gate.set):
                change()
                next(gaps)  # what the other has begun ends
                times[name] += islice(gaps, BLOCK)
        load.result()
    executor.shutdown()
    alone, during = times["alone"], times["during"]
    return {
        "load_seconds": round(sum(during), 1),
        **{f"{name}_median_ms": round(1e3 * median(each), 3) for name, each in times.items()},
        **{f"{name}_mean_ms": round(1e3 * mean(each), 3) for name, each in times.items()},
        **{f"{name}_p99_ms": round(1e3 * float(np.quantile(each, 0.99)), 3) for name, each in times.items()},
        "ratio_of_medians": round(median(during) / median(alone), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    host = {"shape": SHAPE, "quantize": QUANTIZE, "rank": RANK, "machine": processor_name()}
    report = {**host, **measure()}
    print(json.dumps(report, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
