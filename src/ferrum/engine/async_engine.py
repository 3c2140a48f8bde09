"""The asynchronous client: `AsyncEngine`. With the server the only place that knows asyncio.

Nothing is computed on the event loop but admission: a request's work happens in the engine and on the host's thread,
and the loop is woken once per step. A server's loop takes the thread's part, too (`deliver_here`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.engine.async_stream import AsyncStream
from ferrum.engine.client_base import EngineClient
from ferrum.engine.input_processor import Prompt
from ferrum.engine.model_client import ModelClient, Parts
from ferrum.engine.request_output import Delta
from ferrum.engine.router import QueueSlots
from ferrum.engine.stream_fairness import ReadingLoop


class AsyncEngine(EngineClient):
    """Serves one model to any number of tasks of one event loop at a time. An asynchronous context manager.

    Opened as `EngineClient` says.
    """

    def _start(self, parts: Parts) -> ModelClient:
        self._loop = ReadingLoop()
        return ModelClient(parts, self._loop.wake_all)

    @property
    def num_live(self) -> int:
        """Requests that the engine still knows."""
        return len(self.client.router)

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        *,
        tenant: str = "",
        salt: str = "",
        trace_id: str | None = None,
        adapter: str | None = None,
        add_special_tokens: bool = True,
    ) -> AsyncGenerator[Delta, None]:
        """Generate: an async iterator of deltas, `n` choices interleaved, exactly one of each with a finish reason.

        The request is checked here and queued when iteration begins. Cancelling the iterating task or closing the
        iterator ends the request and frees its pages within a step. A failure after the start is a delta with
        `FinishReason.ERROR` and the typed error in `error`.

        Args:
            prompt, request_id, priority, deadline, ...: see `InputProcessor.admit`; `deadline` is in seconds from now.
            sampling_params: None: `default_sampling_params`.

        Raises:
            RequestError, Unsupported: what cannot be served; `param` names the field.
            EngineDead, QueueFull: the engine takes nothing (more) now.
        """
        self.client.router.check_open()
        request = self.client.input_processor.process(
            prompt,
            self.default_sampling_params if sampling_params is None else sampling_params,
            request_id=request_id,
            priority=priority,
            deadline=deadline,
            tenant=tenant,
            salt=salt,
            trace_id=trace_id,
            adapter=adapter,
            add_special_tokens=add_special_tokens,
        )
        return self._stream(request)

    async def _stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        running = self.open([request])
        try:
            async for _, delta in running:
                yield delta
        finally:
            running.abort()

    def deliver_here(self) -> None:
        """Serve the running event loop, and none after it: it reads and folds the engine's reports itself.

        No thread of the host's has to be woken for them, nor to get hold of the interpreter beside the loop. Called at
        most once; the loop must run until `close` has returned.
        """
        self.client.router.deliver_on(asyncio.get_running_loop())

    def open(self, requests: Sequence[Request], places: QueueSlots | None = None) -> AsyncStream:
        """Queue admitted requests (`front.admission`) now, all of them or none, on the running event loop.

        Whoever opens must read to the end or `abort`.

        Args:
            places: those that are kept for them, see `Router.keep`; None: there have to be others.

        Raises:
            EngineDead, QueueFull: nothing was queued.
            RequestError: one of their ids is live, or requests of another event loop are, which still runs.
        """
        self._loop.turn_to(asyncio.get_running_loop(), self.num_live)
        return AsyncStream(self.client.router, self.client.tokenizer, requests, places)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Joining the engine may take a step's time; the loop goes on meanwhile.
        await asyncio.to_thread(self.close)
