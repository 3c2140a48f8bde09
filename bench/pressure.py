"""Compare serving from a KV pool for a quarter of the demand with a run that fits.

    python bench/pressure.py --out bench/results/pressure.json

All requests arrive at once. Pressed: all may run, and the pool holds a quarter of their tokens. Limited: the pool is
ample and as many run at a time as fit in that quarter. Both answer the same requests, once with known answer lengths
and once with stop tokens. They step alternately, the one with fewer generated tokens first, so a slow moment of the
machine affects both. The share is the pressed run's throughput relative to the limited run's, by wall clock and by the
processor time of this process; the latter needs `--threads 1` on a machine that others use.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import geometric_mean, mean
from typing import Any, Final

from arm import Arm, race
from ferrum import SamplingParams
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.types import Request
from ferrum.engine.recipe import with_scheduler
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalStepExecutor
from ferrum.sources.hub import BUILT_IN
from script import positive, run_script

PAGE: Final = 64
LONGEST: Final = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that come at once.

    Attributes:
        prompts: token ids.
        params: theirs; all draws are seeded.
        lengths: tokens of prompt and answer at the end, each.
    """

    prompts: list[list[int]]
    params: list[SamplingParams]
    lengths: list[int]

    @property
    def fitting(self) -> int:
        """Number of requests of mean length that fit in a quarter of the demand."""
        return max(1, self.quarter // math.ceil(mean(self.lengths)))

    @property
    def quarter(self) -> int:
        """Tokens of the pressed pool."""
        return sum(self.lengths) // 4


def load_of(requests: int, vocabulary: int, *, known: bool, ends: Sequence[int] = ()) -> Load:
    """Return a load of random prompts of 64 to 192 tokens.

    Args:
        known: answers of 64 to 192 tokens by their limits; otherwise they end at one of the tokens `ends`.
    """
    draw = Random(requests)
    prompts = [[draw.randrange(vocabulary) for _ in range(draw.randint(64, 192))] for _ in range(requests)]
    answers = [draw.randint(64, 192) for _ in range(requests)]
    params = [
        SamplingParams(
            temperature=1.0,
            seed=index,
            max_tokens=answer if known else LONGEST,
            ignore_eos=True,
            stop_token_ids=() if known else tuple(ends),
        )
        for index, answer in enumerate(answers)
    ]
    return Load(prompts, params, [len(prompt) + answer for prompt, answer in zip(prompts, answers, strict=True)])


class PressureArm(Arm):
    """An engine with a given pool size and number of sequences."""

    def __init__(self, model: ModelConfig, capacity: int, sequences: int, **options: Any) -> None:
        loaded = replace(model, kv_capacity=capacity, max_batch_size=sequences)
        config = EngineConfig(model=loaded, max_tokens_per_step=max(512, sequences), **options)
        self._executor = build_executor(LocalStepExecutor, loaded)
        built = with_scheduler(self._executor, config, "bench")
        super().__init__(built)
        self.vocabulary = built.info.vocab_size

    def start(self, load: Load, time: int = 0) -> None:
        """Queue the load. A new salt each time keeps the prefix cache out of the measurement."""
        stops = frozenset(load.params[0].stop_token_ids)
        places = zip(load.prompts, load.params, strict=True)
        self.begin(
            Request(str(index), tuple(prompt), params, index, stop_token_ids=stops, salt=str(time))
            for index, (prompt, params) in enumerate(places)
        )

    def close(self) -> None:
        """End the engine."""
        self._executor.shutdown()


def measure(model: ModelConfig, load: Load, pairs: int, **options: Any) -> dict[str, Any]:
    """Run both engines alternately, `pairs` times after a warm-up, and check that the answers are equal."""
    limited = PressureArm(model, sum(load.lengths) + len(load.lengths) * PAGE, load.fitting)
    pressed = PressureArm(model, load.quarter, len(load.prompts), **options)
    ratios, busy_ratios = [], []
    try:
        for pair in range(pairs + 1):
            arms = (limited, pressed) if pair % 2 else (pressed, limited)
            for arm in arms:
                arm.start(load, pair)
            race(arms)
            assert limited.answers() == pressed.answers(), "every answer is the same"
            ratios.append(limited.seconds / pressed.seconds)
            busy_ratios.append(limited.busy / pressed.busy)
    finally:
        limited.close()
        pressed.close()
    return {
        "share": geometric_mean(ratios[1:]),
        "shares": [round(ratio, 4) for ratio in ratios[1:]],
        "share_by_processor_time": geometric_mean(busy_ratios[1:]),
        "steps": [limited.steps, pressed.steps],
        "preemptions": pressed.scheduler.preemptions / (pairs + 1),
        "tokens_per_second": round(pressed.said / pressed.seconds, 1),
        "pool_tokens": load.quarter,
        "fitting": load.fitting,
    }


def open_ended(model: ModelConfig, requests: int, vocabulary: int) -> Load:
    """Return a load whose answers end at one of several frequent tokens, with the resulting lengths."""
    ends = range(0, vocabulary, 128)
    load = load_of(requests, vocabulary, known=False, ends=ends)
    arm = PressureArm(model, requests * (192 + LONGEST + PAGE), requests)
    try:
        arm.start(load)
        race([arm])
        answers = arm.answers()
    finally:
        arm.close()
    lengths = [len(prompt) + len(answers[str(index)]) for index, prompt in enumerate(load.prompts)]
    return Load(load.prompts, load.params, lengths)


def main() -> None:
    """Measure, and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=BUILT_IN)
    parser.add_argument("--quantize")
    parser.add_argument("--threads", type=positive)
    parser.add_argument("--requests", type=positive, default=32)
    parser.add_argument("--pairs", type=positive, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = ModelConfig(model=str(options.model), quantize=options.quantize, threads=options.threads)
    probe = PressureArm(model, 1024, 1)
    probe.close()
    report = {}
    for known in (True, False):
        if known:
            load = load_of(options.requests, probe.vocabulary, known=True)
        else:
            load = open_ended(model, options.requests, probe.vocabulary)
        for swap_gib in (0, 1):
            name = f"{'known' if known else 'open'} ends, {'swapped' if swap_gib else 'recomputed'}"
            report[name] = measure(model, load, options.pairs, swap_gib=swap_gib)
            print(name, report[name])
    if options.out is not None:
        origin = {
            "model": options.model,
            "quantize": options.quantize,
            "requests": options.requests,
            "threads": options.threads,
        }
        machine = platform.processor() or platform.machine()
        options.out.write_text(json.dumps({**origin, "machine": machine, "cases": report}, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
