"""What the engine adds to a bare step: its loop driven by hand, with a watch on the forward passes inside."""

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
from ferrum.engine.hosts.host import Built
from ferrum.engine.messages import Abort, Message
from ferrum.kernels.cpu.program import Replay
from ferrum.kernels.interface import Kernels, NetworkOutput, StepTables
from ferrum.kernels.program_recorder import Extent
from ferrum.runtime.decoder_lm import DecoderLM

Clock: Final = time.perf_counter

GREEDY: Final = SamplingParams(temperature=0.0)


class StopWatch:
    """A `Replay` that adds up the seconds of its calls.

    Attributes:
        seconds: so far.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.program = replay.program
        self.seconds = 0.0

    def __call__(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        """See `Replay`."""
        begun = Clock()
        output = self._replay(kernels, tables)
        self.seconds += Clock() - begun
        return output

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        """See `Replay`."""
        return self._replay.timed(kernels, tables)

    def nbytes(self, extent: Extent) -> int:
        """See `Replay`."""
        return self._replay.nbytes(extent)


@contextmanager
def watched(lm: DecoderLM) -> Iterator[Callable[[], float]]:
    """A watch on the model's replayed passes for a while: tells their seconds so far."""
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
    """Seconds of the passes within, and of whole turns of the loop, over `steps` turns in which every prompt decodes.

    The first equals the second where nothing is replayed.

    Args:
        built: on an executor that nobody else steps meanwhile.
        lm: the executor's model.
        prompts: token ids.
        steps: at least as many as the prompts need passes, so that the first is not done before the last begins.
        sampling: how tokens are chosen; its limits are not looked at.
    """
    events: list[TokenEvent] = []
    inbox: SimpleQueue[Message] = SimpleQueue()
    engine = Engine(built.executor, built.scheduler, inbox=inbox, post=lambda news: events.extend(news.events))
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
