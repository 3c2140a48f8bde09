"""Measure a long prompt cold, shared between requests, cached, and restored from disk after a crash.

    python bench/prefix_sharing.py --out bench/results/prefix_sharing.json

The model has the shape of Qwen3-0.6B with random weights, packed to int8. A prompt of 4,000 tokens runs cold; for
requests that share all of it; for 32 requests at once that share its beginning; and in engines that find it on disk,
written by a process that was killed (kill -9). The time to first token excludes the start of the engine.
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

from ferrum import LLM, SamplingParams
from packed import options_of, packed_model, write
from script import positive, run_script

VOCABULARY: Final = 100_000
PROMPT: Final = 4000
REQUESTS: Final = 32
OWN: Final = 16
CAPACITY: Final = 4 * PROMPT
FIRST: Final = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def prompt(seed: int, length: int = PROMPT) -> list[int]:
    """Return random token ids."""
    draw = Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(length)]


def opened(model: str, directory: str | None = None) -> LLM:
    """Start an engine and warm it up with an unrelated prompt."""
    llm = LLM(model, kv_capacity=CAPACITY, prefix_cache_dir=directory)
    first_token(llm, prompt(-1, 100))
    return llm


def first_token(llm: LLM, tokens: Sequence[int]) -> tuple[float, int]:
    """Return the time to first token, and the number of cached prompt tokens."""
    begun = time.perf_counter()
    for delta in llm.stream(list(tokens), FIRST):
        if delta.token_ids:
            seconds = time.perf_counter() - begun
        if delta.usage is not None:
            return seconds, delta.usage.cached_tokens
    raise AssertionError("a stream ends with its usage")


def leave_on_disk(model: str, directory: str) -> None:
    """Compute the prompt in a separate process, wait until its pages are written, and kill the process."""
    llm = opened(model, directory)
    before = pages_in(directory)
    first_token(llm, prompt(0))
    while pages_in(directory) < before + PROMPT // 64:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def pages_in(directory: str) -> int:
    """Return the number of complete pages on disk."""
    return len(list(Path(directory).glob("*.page")))


def share(llm: LLM) -> dict[str, Any]:
    """Send requests with a common prefix at once, and count the computed prompt tokens."""
    common = prompt(1000)
    prompts = [common + prompt(2000 + index, OWN) for index in range(REQUESTS)]
    begun = time.perf_counter()
    outputs = llm.generate(prompts, FIRST, use_tqdm=False)
    seconds = time.perf_counter() - begun
    computed = [len(output.prompt_token_ids) - output.metrics.usage.cached_tokens for output in outputs]
    return {"seconds": seconds, "computed_tokens": sum(computed), "tokens": sum(map(len, prompts))}


def measure(model: str, count: int) -> dict[str, Any]:
    """Run every case `count` times, and the shared one once."""
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
    """Return median and all seconds, the ratio to the median cold time, and the cached tokens."""
    seconds = [round(each, 4) for each, _ in cases]
    return {"median": median(seconds), "share": median(seconds) / usual, "seconds": seconds, "found": cases[-1][1]}


def main() -> None:
    """Measure, and print a line for each case."""
    parser = options_of(__doc__)
    parser.add_argument("--count", type=positive, default=3, help="times each")
    options = parser.parse_args()
    with packed_model(options.model) as model:
        report = measure(model, options.count)
    for name, case in report.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in case.items()))
    write(options.out, {"prompt": PROMPT, "cases": report})


if __name__ == "__main__":
    run_script(main)
