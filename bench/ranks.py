"""Two ranks of a thread each next to one rank with two threads: decoding steps, in turns, and what ranks exchange.

    python bench/ranks.py --out bench/results/ranks.json

The model has the shape of Qwen3-0.6B with random weights. Both executors of a format are loaded in one run and decode
the same sequences in blocks of steps, of which the first step is not counted. The bandwidth is probed between blocks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from ferrum.bench.bench_run import Prober
from ferrum.bench.shapes import shape_config
from ferrum.cli.doctor import processor_name
from ferrum.client.client_base import engine_config
from ferrum.core.params import SamplingParams
from ferrum.core.step import Rows, Sampling, Span, SpanResult, StepBatch, Want
from ferrum.runtime.load import build_executor
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor
from script import positive, run_script

SHAPE: Final = "qwen3-0.6b"
FORMATS: Final = ("bfloat16", "q8_0", "q4_k_m")
RANKS: Final = 2
PROMPT: Final = 128
BLOCK: Final = 8
"""Steps of an executor before the other one's."""


class Loaded:
    """An executor with two threads in all, whose steps run in a thread of their own.

    The number of threads of a step follows from what interrupts the thread that runs it (`StepTeam`), and the steps of
    the other executor do not interrupt this one.
    """

    def __init__(self, quantize: str, ranks: int, rooms: int) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.executor = self.call(lambda: load(quantize, ranks, rooms))

    def call(self, work: Callable[[], Any]) -> Any:
        """Return the result of a call in the executor's thread."""
        return self._thread.submit(work).result()

    def exchanged(self) -> int:
        """Return the bytes that a rank has read from others so far."""
        ranks = self.executor.lm.ranks
        return 0 if ranks is None else max(ranks.exchanged())

    def close(self) -> None:
        """End the executor and its thread."""
        self.call(self.executor.shutdown)
        self._thread.shutdown()


@dataclass
class Subject:
    """Sequences of an executor that decode.

    Attributes:
        sequences: how many of them a step decodes.
        seconds: of its steps.
    """

    loaded: Loaded
    sequences: int
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sampling = Sampling(SamplingParams(temperature=0.0), 0, PROMPT, [])
        self._length = 0
        self._tokens = [(7 * index + 1,) * PROMPT for index in range(self.sequences)]
        self.loaded.call(self.step)

    def step(self) -> float:
        """Compute the next tokens of all sequences; return the seconds."""
        spans = tuple(
            Span(f"{self.sequences}-{index}", self._length, tokens, Want.TOKEN, Rows.LAST, sampling=self._sampling)
            for index, tokens in enumerate(self._tokens)
        )
        begun = time.perf_counter()
        results = self.loaded.executor.submit(StepBatch(spans)).result().results
        seconds = time.perf_counter() - begun
        self._length += len(self._tokens[0])
        for index, result in enumerate(results):
            if not isinstance(result, SpanResult):
                raise result
            self._tokens[index] = tuple(result.tokens)
        return seconds

    @property
    def milliseconds(self) -> float:
        """The median of the steps."""
        return 1e3 * median(self.seconds)

    def block(self) -> list[tuple[int, ...]]:
        """Decode a block of steps, keep the times of all but the first, and return the last tokens."""
        self.seconds += self.loaded.call(lambda: [self.step() for _ in range(BLOCK + 1)])[1:]
        return list(self._tokens)


def load(quantize: str, ranks: int, rooms: int) -> LocalExecutor:
    """Return an executor with two threads in all."""
    options: dict[str, Any] = {"kv_capacity": rooms, "max_batch_size": 32, "threads": RANKS // ranks}
    options |= {"dtype": quantize} if quantize == "bfloat16" else {"quantize": quantize}
    config = engine_config(SHAPE, {**options, "tensor_parallel_size": ranks})
    return build_executor(LocalExecutor, config.model, checkpoint=RandomCheckpoint(SHAPE, shape_config(SHAPE)))


def measure(quantize: str, blocks: int, batches: tuple[int, ...]) -> list[dict[str, Any]]:
    """Time the steps of both executors with weights of a format."""
    rooms = 2 * sum(batches) * (PROMPT + blocks * (BLOCK + 1) + 128)
    one, several = (Loaded(quantize, ranks, rooms) for ranks in (1, RANKS))
    probe, rows = Prober(RANKS), []
    for sequences in batches:
        alone, shared = (Subject(each, sequences) for each in (one, several))
        reads, before = [probe().read], several.exchanged()
        for index in range(blocks):
            ours, theirs = (each.block() for each in ((alone, shared) if index % 2 else (shared, alone)))
            assert ours == theirs, "ranks changed a token"
            reads.append(probe().read)
        rows.append(
            {
                "format": quantize,
                "sequences": sequences,
                "one_rank_ms": round(alone.milliseconds, 3),
                "ranks_ms": round(shared.milliseconds, 3),
                "of_one_rank": round(alone.milliseconds / shared.milliseconds, 3),
                "weights_ms": round(1e3 * one.executor.memory_plan.weights / max(reads), 3),
                "read_gb_per_second": round(max(reads) / 1e9, 1),
                "bytes_a_step": round((several.exchanged() - before) / (blocks * (BLOCK + 1))),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    for each in (one, several):
        each.close()
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=positive, default=12, help=f"blocks of {BLOCK} steps of a cell")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--sequences", nargs="+", type=positive, default=(1, 16), help="decoded by a step")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [row for each in options.formats for row in measure(each, options.blocks, tuple(options.sequences))]
    report = {"shape": SHAPE, "ranks": RANKS, "machine": processor_name(), "rows": rows}
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
