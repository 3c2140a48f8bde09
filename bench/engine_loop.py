"""Times the engine's loop, stepped by hand, and the forward passes inside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Final

from ferrum.core.params import SamplingParams
from ferrum.core.types import Request, TokenEvent
from ferrum.engine.engine import Engine
from ferrum.engine.host import Built
from ferrum.engine.messages import Abort, Message
from ferrum.kernels.interface import Kernels, NetworkOutput, Replay, StepTables
from ferrum.kernels.op_spec import Extent
from ferrum.runtime.decoder_lm import DecoderLM

Clock: Final = time.perf_counter

GREEDY: Final = SamplingParams(temperature=0.0)


class StopWatch:
    """A `Replay` that sums the `seconds` of its calls."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.program = replay.program
        self.seconds = 0.0

    def submit(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        """Run the passes and add their time. See `Replay`."""
        begun = Clock()
        output = self._replay.submit(kernels, tables)
        self.seconds += Clock() - begun
        return output

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        return self._replay.timed(kernels, tables)

    def nbytes(self, extent: Extent) -> int:
        return self._replay.nbytes(extent)


@contextmanager
def watched(lm: DecoderLM) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds of the model's replayed passes in the block."""
    replay = lm.replay
    if replay is None:
        yield lambda: 0.0
        return
    watch = StopWatch(replay)
    lm.replay = watch
    try:
        yield lambda: watch.seconds
    finally:
        lm.replay = replay


def time_engine_steps(
    built: Built,
    lm: DecoderLM,
    prompts: Sequence[Sequence[int]],
    steps: int,
    sampling: SamplingParams = GREEDY,
) -> tuple[float, float]:
    """Return the seconds of the passes and of whole turns of the loop, over `steps` turns that decode every prompt.

    Both are equal if nothing is replayed.

    Args:
        built: an engine whose executor is idle.
        lm: the executor's model.
        prompts: token ids.
        steps: at least the number of passes all prompts need, so that none finishes before the last one begins.
        sampling: how tokens are chosen; its `max_tokens` is replaced.
    """
    events: list[TokenEvent] = []
    inbox: SimpleQueue[Message] = SimpleQueue()
    engine = Engine(built.executor, built.scheduler, inbox=inbox, post=lambda posted: events.extend(posted.events))
    ids = [f"bench-{index}" for index in range(len(prompts))]
    params = replace(sampling, max_tokens=2 * steps, ignore_eos=True)
    for request_id, prompt in zip(ids, prompts, strict=True):
        inbox.put(Request(request_id, tuple(prompt), params, seed=0))
    try:
        while len({event.request_id for event in events}) < len(ids):
            engine.step()
        events.clear()
        with watched(lm) as passed:
            begun = Clock()
            for _ in range(steps):
                engine.step()
            whole, bare = Clock() - begun, passed()
        assert len(events) == steps * len(ids), "every sequence decodes in every step"
    finally:
        for request_id in ids:
            inbox.put(Abort(request_id))
        engine.step()
    return bare or whole, whole
