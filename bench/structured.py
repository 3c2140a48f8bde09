"""Measure what requests with new JSON Schemas cost a running stream.

    python bench/structured.py TOKENIZER --rounds 5 --out bench/results/structured.json

The engine runs a model of Qwen3-0.6B's shape with random weights, with the tokenizer of any smaller model. One stream
runs while fifty short requests arrive, one after the other. In every second run each has a schema that the engine has
not seen, which it compiles and enforces; in the others the same requests have none. Both generate the same number of
tokens. Runs alternate, since the speed of shared machines drifts. The times between the tokens of the stream are
compared: the median may be 5% longer, and the 99th percentile by two steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ferrum import LLM, SamplingParams
from ferrum.bench.shapes import shape_config
from ferrum.client.client_base import engine_config
from ferrum.client.input_processor import RequestOptions
from ferrum.client.model_client import Parts
from ferrum.client.offline_batch import Batch, stream
from ferrum.core.errors import ConfigError
from ferrum.core.guidance import Grammar, Guidance
from ferrum.core.types import Request
from ferrum.engine.host import ThreadHost
from ferrum.engine.progress import NoBar
from ferrum.engine.recipe import with_scheduler
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.sources.open_model import open_model
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.text.generation_config import GenerationConfig
from script import positive, run_script

SHAPE: Final = "qwen3-0.6b"
REQUESTS: Final = 50
TOKENS: Final = 16
"""Tokens of each request."""

WARM_UP: Final = 16
"""Tokens of the stream before the others arrive."""

KINDS: Final = ("without", "with")


def schema(number: int) -> dict[str, Any]:
    """Return a schema like those of tools; all differ, and none ends before `TOKENS` tokens."""
    text = {"type": "string", "minLength": 60, "maxLength": 200}
    place = {"type": "object", "properties": {f"city_{number}": text, "zip": {"type": "string", "pattern": "[0-9]{5}"}}}
    properties = {
        f"first_{number}": text,
        f"kind_{number}": {"enum": [f"{word}_{number}" for word in ("red", "green", "blue", "other")]},
        "amount": {"type": "number", "minimum": 0, "maximum": 1000 + number},
        "places": {"type": "array", "items": {**place, "required": ["zip"]}, "maxItems": 3},
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def requests(llm: LLM, first: int, *, limited: bool) -> list[Request]:
    """Return the short requests, with schemas from number `first` on."""
    params = SamplingParams(temperature=0.8, max_tokens=TOKENS, min_tokens=TOKENS, seed=1)
    made = []
    for number in range(first, first + REQUESTS):
        grammar = Grammar(source=f"start: %json {json.dumps(schema(number))}")
        options = RequestOptions(guidance=Guidance(grammar=grammar) if limited else None)
        made.append(llm.client.input_processor.process(f"Write number {number} as JSON:", params, options))
    return made


def send(llm: LLM, made: Sequence[Request], interval: float, ended: threading.Event) -> None:
    """Run the short requests, which arrive at intervals; then set `ended`."""
    threads = [threading.Thread(target=_run, args=(llm, each)) for each in made]
    for thread in threads:
        thread.start()
        time.sleep(interval)
    for thread in threads:
        thread.join()
    ended.set()


def _run(llm: LLM, request: Request) -> None:
    (output,) = Batch(llm.client.router, llm.client.tokenizer, [request], [None]).run(NoBar())
    (choice,) = output.outputs
    assert choice.error is None and len(choice.token_ids) == TOKENS, choice


def gaps(llm: LLM, made: Sequence[Request], interval: float) -> list[float]:
    """Return the seconds between tokens of a stream while the short requests run."""
    params = SamplingParams(temperature=0.0, max_tokens=1500, ignore_eos=True)
    running = llm.client.input_processor.process("Once upon a time", params)
    ended, times, others = threading.Event(), list[float](), None
    for delta in stream(llm.client.router, llm.client.tokenizer, running):
        times += [time.perf_counter()] * len(delta.token_ids)
        if others is None and len(times) >= WARM_UP:
            others = threading.Thread(target=send, args=(llm, made, interval, ended))
            others.start()
        if ended.is_set():
            break
    assert ended.is_set(), "the stream ended before the others: shorten the interval"
    return [after - before for before, after in pairwise(times[WARM_UP:])]


def parts_of(tokenizer: str) -> Parts:
    """Return client parts of the shape's model with the tokenizer of a model."""
    options = {"quantize": "q4_0", "max_batch_size": 64, "kv_capacity": 8192}
    config = engine_config(SHAPE, options)
    executor = build_executor(LocalStepExecutor, config.model, checkpoint=RandomCheckpoint(SHAPE, shape_config(SHAPE)))
    source = open_model(tokenizer)
    found = source.tokenizer()
    if found is None:
        raise ConfigError("has no tokenizer", param="tokenizer")
    host = ThreadHost(lambda: with_scheduler(executor, config, SHAPE, source=source))
    return Parts(host=host, tokenizer=found, generation=GenerationConfig(eos_token_ids=found.eos_token_ids))


def measure(tokenizer: str, rounds: int, interval: float) -> list[dict[str, Any]]:
    """Return a row of milliseconds per kind of run."""
    seen: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with LLM.from_parts(parts_of(tokenizer)) as llm:
        number = 0
        for _ in range(rounds + 1):
            for kind in KINDS:
                seen[kind].append(gaps(llm, requests(llm, number, limited=kind == "with"), interval))
                number += REQUESTS
    # The first round loads the library and the vocabulary, once per engine.
    return [_row(kind, runs[:1], " (first)") for kind, runs in seen.items()] + [
        _row(kind, runs[1:]) for kind, runs in seen.items()
    ]


def _row(kind: str, runs: Sequence[Sequence[float]], note: str = "") -> dict[str, Any]:
    every = sorted(1e3 * gap for run in runs for gap in run)
    return {
        "schemas": kind + note,
        "tokens": len(every),
        "median_ms": round(statistics.median(every), 3),
        "p99_ms": round(every[int(0.99 * len(every))], 3),
        "longest_ms": round(every[-1], 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", help="A model with a tokenizer of at most 151,936 tokens.")
    parser.add_argument("--rounds", type=positive, default=5, help="Runs of each kind (default: 5).")
    parser.add_argument("--interval", type=float, default=0.1, help="Seconds between requests (default: 0.1).")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = measure(options.tokenizer, options.rounds, options.interval)
    for row in rows:
        print("  ".join(f"{value:>16}" if isinstance(value, str) else f"{value:>10}" for value in row.values()))
    without, with_schemas = rows[-2:]
    median = with_schemas["median_ms"] / without["median_ms"] - 1
    steps = (with_schemas["p99_ms"] - without["p99_ms"]) / without["median_ms"]
    print(f"median {100 * median:+.1f}% (at most 5%), 99th percentile {steps:+.2f} steps (at most 2)")
    if options.out:
        options.out.write_text(
            json.dumps({"shape": SHAPE, "tokenizer": Path(options.tokenizer).name, "rows": rows}, indent=1) + "\n"
        )
    return int(median > 0.05 or steps > 2)


if __name__ == "__main__":
    run_script(main)
