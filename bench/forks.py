"""Measure forks of a long context: time, pages, and computed tokens.

    python bench/forks.py --out bench/results/forks.json

The model has the shape of Qwen3-0.6B with random weights, packed to int8. 64 sessions fork from a context of 2,000
tokens and continue in one step, each with a different token. Timed are the forks, and the admission and page copies of
that first step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from random import Random
from statistics import median
from typing import Any, Final

from ferrum import SamplingParams
from ferrum.client.session import Session
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.types import Request, TokenEvent
from ferrum.engine.engine import Engine
from ferrum.engine.messages import Message
from ferrum.engine.recipe import with_scheduler
from ferrum.verbs.load_executor import load_executor
from packed import SHAPE, options_of, packed_model, write
from script import run_script

VOCABULARY: Final = 100_000
CONTEXT: Final = 2000
FORKS: Final = 64
NO_ENGINE: Any = None
"""Engine of the sessions, which are only forked here."""


def measure(model: str) -> dict[str, Any]:
    """Fork one context and run the forks' first step."""
    executor = load_executor(model, kv_capacity=CONTEXT + (FORKS + 4) * 64, max_batch_size=FORKS)
    config = EngineConfig(model=ModelConfig(model=model, max_batch_size=FORKS), decode_seconds=0)  # all at once
    built = with_scheduler(executor, config, SHAPE)
    pages = executor.lm.pages
    inbox: SimpleQueue[Message] = SimpleQueue()
    events: list[TokenEvent] = []
    engine = Engine(executor, built.scheduler, inbox=inbox, post=events.extend)
    draw = Random(0)
    context = tuple(draw.randrange(VOCABULARY) for _ in range(CONTEXT))
    inbox.put(Request("context", context, SamplingParams(max_tokens=2, ignore_eos=True), seed=0))
    while engine.step():
        pass
    session = Session(NO_ENGINE, None, (*context, *(token for event in events for token in event.token_ids)))
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    for first in (0, FORKS):  # the first round touches memory for the first time and does not count
        fork_seconds, forks = [], []
        for index in range(FORKS):
            begun = time.perf_counter()
            fork = session.fork()
            fork_seconds.append(time.perf_counter() - begun)
            forks.append(fork.append([first + index]))
        for index, fork in enumerate(forks):
            inbox.put(Request(f"fork{index}", fork.token_ids, params, seed=index))
        before = built.scheduler.prefix_counts.hit_tokens
        with timed(built.scheduler, "plan") as planning, timed(executor.lm.kernels, "copy_pages") as copying:
            engine.step()
        found = built.scheduler.prefix_counts.hit_tokens - before
        used = pages.used
        while engine.step():
            pass
    executor.shutdown()
    return {
        "fork_milliseconds": round(1e3 * median(fork_seconds), 4),
        "fork_milliseconds_most": round(1e3 * max(fork_seconds), 4),
        "admit_milliseconds_a_fork": round(1e3 * sum(planning) / FORKS, 4),
        "copy_milliseconds_a_fork": round(1e3 * sum(copying) / FORKS, 4),
        "pages_a_fork": (used - CONTEXT // 64) / FORKS,
        "computed_tokens_a_fork": len(forks[0]) - found / FORKS,
    }


@contextmanager
def timed(owner: object, name: str) -> Iterator[list[float]]:
    """Time a method within the block, and yield the seconds of its calls."""
    seconds: list[float] = []
    method = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        begun = time.perf_counter()
        result = method(*arguments)
        seconds.append(time.perf_counter() - begun)
        return result

    setattr(owner, name, call)
    try:
        yield seconds
    finally:
        delattr(owner, name)


def main() -> None:
    """Measure and print."""
    options = options_of(__doc__).parse_args()
    with packed_model(options.model) as model:
        report = measure(model)
    print(report)
    write(options.out, {"context": CONTEXT, "forks": FORKS, **report})


if __name__ == "__main__":
    run_script(main)
