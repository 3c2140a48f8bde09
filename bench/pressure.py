"""Serving from a pool that holds a quarter of what is asked for, beside an unpressed run of as many as fit.

    python bench/pressure.py --out bench/results/pressure.json

All requests come at once. Pressed, all may run and the pool holds a quarter of their tokens; limited, the pool is ample
and so many run at a time as fit in that quarter. Both answer the same requests in turns, with limits that tell how long
an answer becomes, and with answers that end somewhere before a limit that tells nothing. The share is that of the
limited run's throughput, by the clock and, for machines where others work, by the processor time of this process, which
tells the same with `--threads 1`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import geometric_mean, mean
from typing import Any, Final

from ferrum import LLM, SamplingParams
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.engine.build import with_scheduler
from ferrum.engine.front import Parts
from ferrum.engine.host import ThreadHost
from ferrum.engine.offline import RequestOutput
from ferrum.runtime.hub import BUILT_IN
from ferrum.runtime.load import build_executor

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
        """How many fit in a quarter of the demand, at their mean length."""
        return max(1, self.quarter // math.ceil(mean(self.lengths)))

    @property
    def quarter(self) -> int:
        """Tokens of the pool under pressure."""
        return sum(self.lengths) // 4


def load_of(requests: int, vocabulary: int, *, known: bool, ends: Sequence[int] = ()) -> Load:
    """A load of random prompts of 64 to 192 tokens.

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


@dataclass(frozen=True, slots=True)
class Run:
    """One way through a load.

    Attributes:
        seconds: from all requests to the last answer.
        busy: seconds of processors meanwhile.
        answers: token ids of each.
        preemptions: how often a sequence lost its pages.
    """

    seconds: float
    busy: float
    answers: list[list[int]]
    preemptions: int


class Arm:
    """An engine with a pool of so many tokens, that serves so many at a time."""

    def __init__(self, model: ModelConfig, capacity: int, sequences: int, **options: Any) -> None:
        loaded = ModelConfig(**{**_fields(model), "kv_capacity": capacity, "max_batch_size": sequences})
        config = EngineConfig(model=loaded, max_tokens_per_step=max(512, sequences), **options)
        built = with_scheduler(build_executor(loaded), config, "bench")
        self._scheduler = built.scheduler
        self._llm = LLM.from_parts(Parts(host=ThreadHost(lambda: built)))
        self.vocabulary = built.info.vocab_size

    def run(self, load: Load) -> Run:
        """Serve the load once. Raises the error of any request."""
        before, begun, busy = self._scheduler.preemptions, time.perf_counter(), time.process_time()
        outputs = self._llm.generate(load.prompts, load.params, use_tqdm=False)
        seconds, busy = time.perf_counter() - begun, time.process_time() - busy
        return Run(seconds, busy, [answer_of(output) for output in outputs], self._scheduler.preemptions - before)

    def close(self) -> None:
        """End the engine."""
        self._llm.close()


def _fields(config: ModelConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("model", "quantize", "threads")}


def answer_of(output: RequestOutput) -> list[int]:
    """The tokens of the one choice. Raises its error."""
    (choice,) = output.outputs
    if choice.error is not None:
        raise choice.error
    return list(choice.token_ids)


def measure(model: ModelConfig, load: Load, pairs: int, **options: Any) -> dict[str, Any]:
    """Both ways in turns, `pairs` times after a first one that warms up; the answers have to be the same."""
    limited = Arm(model, sum(load.lengths) + len(load.lengths) * PAGE, load.fitting)
    pressed = Arm(model, load.quarter, len(load.prompts), **options)
    ratios, busy_ratios, preemptions = [], [], 0
    try:
        for pair in range(pairs + 1):
            order = (limited, pressed) if pair % 2 else (pressed, limited)
            runs = {arm: arm.run(load) for arm in order}
            assert runs[limited].answers == runs[pressed].answers, "every answer is the same"
            ratios.append(runs[limited].seconds / runs[pressed].seconds)
            busy_ratios.append(runs[limited].busy / runs[pressed].busy)
            preemptions += runs[pressed].preemptions
        tokens = sum(map(len, runs[pressed].answers))
    finally:
        limited.close()
        pressed.close()
    return {
        "share": geometric_mean(ratios[1:]),
        "shares": [round(ratio, 4) for ratio in ratios[1:]],
        "share_by_processor_time": geometric_mean(busy_ratios[1:]),
        "preemptions": preemptions / (pairs + 1),
        "tokens_per_second": round(tokens / runs[pressed].seconds, 1),
        "pool_tokens": load.quarter,
        "fitting": load.fitting,
    }


def open_ended(model: ModelConfig, requests: int, vocabulary: int) -> Load:
    """Answers that end at the first of some frequent tokens; the demand is what they come to."""
    ends = range(0, vocabulary, 128)
    load = load_of(requests, vocabulary, known=False, ends=ends)
    arm = Arm(model, requests * (192 + LONGEST + PAGE), requests)
    try:
        answers = arm.run(load).answers
    finally:
        arm.close()
    lengths = [len(prompt) + len(answer) for prompt, answer in zip(load.prompts, answers, strict=True)]
    return Load(load.prompts, load.params, lengths)


def main() -> None:
    """Measure, and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=BUILT_IN)
    parser.add_argument("--quantize")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = ModelConfig(model=str(options.model), quantize=options.quantize, threads=options.threads)
    probe = Arm(model, 1024, 1)
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
    main()
