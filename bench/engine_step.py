"""Measure what the engine adds to the bare replayed step, at several batch sizes.

    python bench/engine_step.py --steps 1000 --out bench/results/engine_step.json

The engine's loop runs a model of Qwen3-0.6B's shape with random weights while all sequences decode. The time of the
replayed passes is subtracted: planning, tables, sampling, state and events remain. Cells alternate every hundred steps,
since the speed of shared machines drifts. Cells may be measured in several runs: the result file keeps the other rows.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
from pathlib import Path
from typing import Any, Final

from engine_loop import time_engine_steps
from ferrum.bench.shapes import shape_config
from ferrum.client.client_base import engine_config
from ferrum.core.params import SamplingParams
from ferrum.engine.recipe import with_scheduler
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.sources.random_checkpoint import RandomCheckpoint
from script import positive, run_script

SHAPE: Final = "qwen3-0.6b"
CONTEXT: Final = 128
BLOCK: Final = 100
"""Steps of a cell before the next cell."""

RULES: Final = {
    "greedy": SamplingParams(temperature=0.0),
    "drawn": SamplingParams(temperature=0.7, top_p=0.95, top_k=20),
    "logprobs": SamplingParams(temperature=0.0, logprobs=5),
}


def measure(sizes: list[int], kinds: list[str], steps: int, quantize: str) -> list[dict[str, Any]]:
    """Return median milliseconds of a bare step and of the engine's share, by batch size and sampling (`RULES`)."""
    config = engine_config(
        SHAPE,
        {
            "quantize": quantize,
            "max_batch_size": max(sizes),
            "kv_capacity": max(sizes) * (CONTEXT + 2 * BLOCK + 64),
            "prefix_cache": False,
            "decode_seconds": 0.0,  # prompts are not measured
        },
    )
    executor = build_executor(LocalStepExecutor, config.model, checkpoint=RandomCheckpoint(SHAPE, shape_config(SHAPE)))
    seen: dict[tuple[int, str], list[tuple[float, float]]] = {(size, rules): [] for size in sizes for rules in kinds}
    gc.freeze()  # as an engine process does
    for block in range(max(1, steps // BLOCK)):
        for (size, rules), times in seen.items():
            prompts = [[(block + 7 * index) % 1000] * CONTEXT for index in range(size)]
            built = with_scheduler(executor, config, SHAPE)
            times.append(time_engine_steps(built, executor.lm, prompts, BLOCK, RULES[rules]))
    executor.shutdown()
    return [_row(size, rules, times) for (size, rules), times in seen.items()]


def _row(size: int, rules: str, times: list[tuple[float, float]]) -> dict[str, Any]:
    bare = statistics.median(1e3 * bare / BLOCK for bare, _ in times)
    added = statistics.median(1e3 * (whole - bare) / BLOCK for bare, whole in times)
    share = statistics.median((whole - bare) / bare for bare, whole in times)
    return {
        "sequences": size,
        "sampling": rules,
        "steps": BLOCK * len(times),
        "bare_ms": round(bare, 3),
        "added_ms": round(added, 3),
        "added_share": round(share, 4),
    }


def _report(quantize: str, rows: list[dict[str, Any]], before: dict[str, Any]) -> dict[str, Any]:
    """Return the report: the new rows, and earlier rows of other cells with the same columns."""
    host = {"machine": platform.machine(), "python": platform.python_version()}
    report = {"shape": SHAPE, "quantize": quantize, "context": CONTEXT, **host}
    if all(before.get(name) == value for name, value in report.items()):
        measured = {_cell(row) for row in rows}
        rows = rows + [row for row in before["rows"] if _cell(row) not in measured]
    return {**report, "rows": sorted(rows, key=_cell)}


def _cell(row: dict[str, Any]) -> tuple[int, str]:
    return row["sequences"], row["sampling"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=positive, default=1000, help="Steps per size and sampling (default: 1000).")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--sizes", type=positive, nargs="+", default=[1, 32])
    parser.add_argument("--quantize", default="q4_0")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = measure(options.sizes, options.rules, options.steps, options.quantize)
    for row in rows:
        share = f"{100 * row['added_share']:.2f}%"
        print(f"{row['sequences']:3} {row['sampling']:7} {row['bare_ms']:8.3f} ms + {row['added_ms']:.3f} ms: {share}")
    if options.out:
        before = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps(_report(options.quantize, rows, before), indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
