"""Synchronous generation: a batch of requests run to its end, or one request delta by delta."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Final

from ferrum.client.output_stream import RequestStream
from ferrum.client.request_output import Collector, Delta, RequestOutput
from ferrum.client.router import Router, Wake
from ferrum.core.errors import EngineDead, QueueFull
from ferrum.core.types import Request
from ferrum.engine.progress import ProgressBar
from ferrum.text.tokenizer import Tokenizer

FULL_SECONDS: Final = 0.01
"""Wait before a batch tries again while other clients occupy the whole queue."""


def stream(router: Router, tokenizer: Tokenizer | None, request: Request) -> Iterator[Delta]:
    """Yield the deltas of one request. Closing the iterator ends the request.

    Raises:
        EngineDead, QueueFull: at the first step of the iteration; EngineDead also if a forked process continues it.
    """
    # Not an Event: an interrupt inside one would leave its lock taken, and the engine would wait for it forever.
    wakeups: SimpleQueue[None] = SimpleQueue()

    def wake() -> None:
        if wakeups.empty():
            wakeups.put(None)

    running = router.open(request, tokenizer, wake)
    try:
        while True:
            delta = running.take()
            if delta is None:
                router.check_process()
                wakeups.get()
                continue
            yield delta
            if delta.usage is not None:
                return
    finally:
        router.abort(running)


class Batch:
    """A batch of requests that fills the engine's queue and returns the outputs in order.

    Args:
        requests: with different `request_id`s.
        prompts: the text of each prompt, for the outputs; None for token ids.
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
        self._wakeups: SimpleQueue[int] = SimpleQueue()
        self._outputs: dict[int, RequestOutput] = {}

    def run(self, bar: ProgressBar) -> list[RequestOutput]:
        """Run all requests. An interrupt ends the running ones.

        Raises:
            EngineDead: the engine ended before the batch did.
        """
        try:
            while self._unsent or self._open:
                self._send()
                if self._open:
                    self._fetch(self._wakeups.get(), bar)
                else:
                    time.sleep(FULL_SECONDS)
        finally:
            for running in self._open.values():
                self._router.abort(running)
            bar.close()
        return [self._outputs[index] for index in range(len(self._requests))]

    def _send(self) -> None:
        """Open requests until the queue is full; other clients may occupy it, too."""
        while self._unsent and len(self._open) < self._router.max_requests:
            index = self._unsent[0]
            try:
                opened = self._router.open(self._requests[index], self._tokenizer, self._waker(index))
            except QueueFull:
                return
            self._open[index] = opened
            if opened.before is not None:
                self._collectors[index].push(opened.before, time.monotonic())
            self._unsent.popleft()

    def _waker(self, index: int) -> Wake:
        return lambda: self._wakeups.put(index)

    def _fetch(self, index: int, bar: ProgressBar) -> None:
        """Collect the deltas of one stream; a late wake-up may find none."""
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
