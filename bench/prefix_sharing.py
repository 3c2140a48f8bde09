"""What a long prompt costs the first time, and every other: shared, seen before, and after the death of its process.

    python bench/prefix_sharing.py --out bench/results/prefix_sharing.json

A model of the shape of Qwen3-0.6B with random weights, packed to int8, is given a prompt of 4,000 tokens: cold; by
requests that have all of it in common; by 32 at once that begin with one; and by engines that find it on disk, where a
process left it that was killed (kill -9) right after. The time to the first token is taken from the request on, without
the start of the engine.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from packed import options_of, packed_model, write

from ferrum import LLM, SamplingParams

VOCABULARY: Final = 100_000
PROMPT: Final = 4000
REQUESTS: Final = 32
OWN: Final = 16
CAPACITY: Final = 4 * PROMPT
FIRST: Final = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def prompt(seed: int, length: int = PROMPT) -> list[int]:
    """Random token ids."""
    draw = Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(length)]


def opened(model: str, directory: str | None = None) -> LLM:
    """An engine, warmed up by a prompt that nobody else begins with."""
    llm = LLM(model, kv_capacity=CAPACITY, prefix_cache_dir=directory)
    first_token(llm, prompt(-1, 100))
    return llm


def first_token(llm: LLM, tokens: Sequence[int]) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens of the prompt were not computed."""
    begun = time.perf_counter()
    for delta in llm.stream(list(tokens), FIRST):
        if delta.token_ids:
            seconds = time.perf_counter() - begun
        if delta.usage is not None:
            return seconds, delta.usage.cached_tokens
    raise AssertionError("a stream ends with its usage")


def leave_on_disk(model: str, directory: str) -> None:
    """In a process of its own: compute the prompt, wait for its pages to be written, and die."""
    llm = opened(model, directory)
    before = pages_in(directory)
    first_token(llm, prompt(0))
    while pages_in(directory) < before + PROMPT // 64:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def pages_in(directory: str) -> int:
    """Whole pages on disk."""
    return len(list(Path(directory).glob("*.page")))


def share(llm: LLM) -> dict[str, Any]:
    """Requests that come at once and begin alike: what is computed of their prompts."""
    common = prompt(1000)
    prompts = [common + prompt(2000 + index, OWN) for index in range(REQUESTS)]
    begun = time.perf_counter()
    outputs = llm.generate(prompts, FIRST, use_tqdm=False)
    seconds = time.perf_counter() - begun
    computed = [len(output.prompt_token_ids) - output.metrics.usage.cached_tokens for output in outputs]
    return {"seconds": seconds, "computed_tokens": sum(computed), "tokens": sum(map(len, prompts))}


def measure(model: str, count: int) -> dict[str, Any]:
    """All cases, `count` times each but the shared one."""
    with opened(model) as llm:
        cold = [first_token(llm, prompt(1 + index)) for index in range(count)]
        warm = [first_token(llm, prompt(count)) for _ in range(count)]
        shared = share(llm)
    with tempfile.TemporaryDirectory() as directory:
        child = get_context("spawn").Process(target=leave_on_disk, args=(model, directory))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        found = []
        for _ in range(count):
            with opened(model, directory) as llm:
                found.append(first_token(llm, prompt(0)))
    usual = median(seconds for seconds, _ in cold)
    return {
        "cold": told(cold, usual),
        "seen before": told(warm, usual),
        "after kill -9": told(found, usual),
        f"{REQUESTS} at once": shared,
    }


def told(cases: Sequence[tuple[float, int]], usual: float) -> dict[str, Any]:
    """Median and all seconds, the share of the usual cold one, and the tokens found."""
    seconds = [round(each, 4) for each, _ in cases]
    return {"median": median(seconds), "share": median(seconds) / usual, "seconds": seconds, "found": cases[-1][1]}


def main() -> None:
    """Measure, and print a line for each case."""
    parser = options_of(__doc__)
    parser.add_argument("--count", type=int, default=3, help="times each")
    options = parser.parse_args()
    with packed_model(options.model) as model:
        report = measure(model, options.count)
    for name, case in report.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in case.items()))
    write(options.out, {"prompt": PROMPT, "cases": report})


if __name__ == "__main__":
    main()
