"""The synchronous client: a batch of requests run to its end, or one of them delta by delta."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Final

from ferrum.core.errors import EngineDead, QueueFull
from ferrum.core.types import Request
from ferrum.engine.output_stream import RequestStream
from ferrum.engine.progress import ProgressBar
from ferrum.engine.request_output import Collector, Delta, RequestOutput
from ferrum.engine.router import Router, Wake
from ferrum.text.tokenizer import Tokenizer

FULL_SECONDS: Final = 0.01
"""How long a batch waits to look again, where others have all places of the engine."""


def stream(router: Router, tokenizer: Tokenizer | None, request: Request) -> Iterator[Delta]:
    """The deltas of one request as they come. Closing the iterator ends the request.

    Raises:
        EngineDead, QueueFull: at the first step of the iteration; EngineDead also where a forked process goes on.
    """
    # Not an Event: an interrupt in the midst of one leaves its lock taken, and the engine would wait for that for ever.
    news: SimpleQueue[None] = SimpleQueue()

    def wake() -> None:
        if news.empty():
            news.put(None)

    running = router.open(request, tokenizer, wake)
    try:
        while True:
            delta = running.take()
            if delta is None:
                router.check_process()
                news.get()
                continue
            yield delta
            if delta.usage is not None:
                return
    finally:
        router.abort(running)


class Batch:
    """Runs many requests, as many at a time as the engine takes, and returns their outputs in order.

    Args:
        requests: their `request_id`s differ.
        prompts: the text of each prompt, for the outputs; None where it was given as ids.
    """

    def __init__(
        self,
        router: Router,
        tokenizer: Tokenizer | None,
        requests: Sequence[Request],
        prompts: Sequence[str | None],
    ) -> None:
        self._router = router
        self._tokenizer = tokenizer
        self._requests = requests
        self._collectors = [
            Collector(request.request_id, prompt, request.prompt, request.arrival)
            for request, prompt in zip(requests, prompts, strict=True)
        ]
        self._unsent = deque(range(len(requests)))
        self._open: dict[int, RequestStream] = {}
        self._news: SimpleQueue[int] = SimpleQueue()
        self._outputs: dict[int, RequestOutput] = {}

    def run(self, bar: ProgressBar) -> list[RequestOutput]:
        """Run them all; interrupted, it ends what is running.

        Raises:
            EngineDead: the engine ended before the batch did.
        """
        try:
            while self._unsent or self._open:
                self._send()
                if self._open:
                    self._fetch(self._news.get(), bar)
                else:
                    time.sleep(FULL_SECONDS)
        finally:
            for running in self._open.values():
                self._router.abort(running)
            bar.close()
        return [self._outputs[index] for index in range(len(self._requests))]

    def _send(self) -> None:
        """Open what there is room for; others may be using the engine, too, and leave none."""
        while self._unsent and len(self._open) < self._router.max_requests:
            index = self._unsent[0]
            try:
                opened = self._router.open(self._requests[index], self._tokenizer, self._waker(index))
            except QueueFull:
                return
            self._open[index] = opened
            self._unsent.popleft()

    def _waker(self, index: int) -> Wake:
        return lambda: self._news.put(index)

    def _fetch(self, index: int, bar: ProgressBar) -> None:
        """Collect what one of the streams has; a wake-up may come late, when all is fetched."""
        running = self._open.get(index)
        while running is not None and (delta := running.take()) is not None:
            if isinstance(delta.error, EngineDead):
                raise delta.error
            self._collectors[index].push(delta, time.monotonic())
            if delta.usage is not None:
                del self._open[index]
                self._outputs[index] = self._collectors[index].output(time.monotonic())
                bar.update(1)
                return
