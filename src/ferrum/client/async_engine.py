"""`AsyncEngine`: the asynchronous client, and `AsyncStream`, the deltas of its requests on an event loop.

Besides the server, only this module uses asyncio. The event loop only checks requests and reads deltas: steps run in
the engine, events are folded where the host delivers them, and the loop wakes once per step.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ferrum.client.adapter_registry import AdapterChoice, LoRARequest, choices_of
from ferrum.client.client_base import EngineClient
from ferrum.client.input_processor import Prompt, RequestOptions
from ferrum.client.model_client import ModelClient, Parts
from ferrum.client.output_stream import RequestStream
from ferrum.client.request_output import Delta
from ferrum.client.router import QueueSlots, Router
from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.policy_config import POLICY
from ferrum.core.types import Request
from ferrum.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ferrum.client.records.resumption import Resumption
    from ferrum.images.decoded_image import DecodedImage


class AsyncEngine(EngineClient):
    """Serves one model to any number of tasks of one event loop at a time. An asynchronous context manager.

    Opened as `EngineClient` says.
    """

    def _start(self, parts: Parts) -> ModelClient:
        self._loop = ReadingLoop()
        return ModelClient(parts, self._loop.wake_all)

    @property
    def num_live(self) -> int:
        """Requests that the engine has not finished."""
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
        add_special_tokens: bool = True,
        lora_request: AdapterChoice | Sequence[AdapterChoice] | None = None,
        images: Sequence[DecodedImage] = (),
    ) -> AsyncGenerator[Delta, None]:
        """Return an async iterator of deltas: `n` choices interleaved, one delta of each with a finish reason.

        The request is checked here and queued when iteration begins. Cancelling the iterating task or closing the
        iterator ends the request and frees its pages within a step. A failure after the start is a delta with
        `FinishReason.ERROR` and the typed error in `error`.

        Args:
            request_id, priority, deadline, ...: see `RequestOptions`.
            sampling_params: default: `default_sampling_params`.
            lora_request: the names of loaded adapters, or `LoRARequest`s, which are loaded when iteration begins.

        Raises:
            RequestError, Unsupported: the request cannot be served; `param` names the field.
            EngineDead, QueueFull: the engine accepts no request now.
        """
        self.client.router.check_open()
        options = RequestOptions(
            request_id=request_id,
            priority=priority,
            deadline=deadline,
            tenant=tenant,
            salt=salt,
            trace_id=trace_id,
            add_special_tokens=add_special_tokens,
            images=tuple(images),
        )
        params = self.default_sampling_params if sampling_params is None else sampling_params
        chosen, adapters = choices_of(lora_request), self.client.adapters

        def request() -> Request:
            return self.client.input_processor.process(
                prompt, params, replace(options, adapters=adapters.chosen(chosen))
            )

        missing = [each for each in chosen if isinstance(each, LoRARequest) and adapters.missing(each)]
        return self._loaded_deltas(missing, request) if missing else self._deltas(request())

    def resume(self, resumption: Resumption) -> AsyncGenerator[Delta, None]:
        """Return an async iterator of the deltas after the tokens that another engine has generated.

        Together with the deltas before they are those of an undisturbed run, text held back for a stop string included.

        Raises:
            RecordMismatch: this engine would compute other bits, or lacks an adapter.
            EngineDead, QueueFull: the engine accepts no request now.
        """
        self.client.router.check_open()
        return self._deltas(self.client.resumed(resumption))

    async def _loaded_deltas(
        self, missing: Sequence[LoRARequest], request: Callable[[], Request]
    ) -> AsyncGenerator[Delta, None]:
        """Load adapters, then yield the deltas of a request that uses them."""
        for each in missing:
            await self.load_adapter(each.lora_name, each.lora_path, id=each.lora_int_id)
        async with aclosing(self._deltas(request())) as deltas:
            async for delta in deltas:
                yield delta

    async def load_adapter(self, name: str, path: str, *, scale: float = 1.0, id: int | None = None) -> None:
        """Load an adapter under a name, see `LLM.load_adapter`.

        Args:
            id: a request's adapters add their results in ascending order of it; default: in the order of loading.
        """
        facts = await asyncio.wrap_future(self.client.adapters.begin_load(path))
        self.client.adapters.add(name, facts, asked=path, id=id, scale=scale)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Running requests keep it. Raises RequestError for an unknown name."""
        self.client.adapters.remove(name)

    async def _deltas(self, request: Request) -> AsyncGenerator[Delta, None]:
        stream = self.open([request])
        try:
            async for _, delta in stream:
                yield delta
        finally:
            stream.abort()

    def deliver_here(self) -> None:
        """Let the running event loop read and fold the engine's reports, instead of the host's thread.

        This saves waking that thread, which competes with the loop for the interpreter. Call it at most once; the loop
        must run until `close` has returned.
        """
        self.client.router.deliver_on(asyncio.get_running_loop())

    def open(self, requests: Sequence[Request], slots: QueueSlots | None = None) -> AsyncStream:
        """Queue processed requests on the running event loop, all of them or none.

        The caller must read the stream to its end or `abort` it.

        Args:
            slots: reserved for them, see `Router.reserve`; None: takes free ones.

        Raises:
            EngineDead, QueueFull: nothing was queued.
            RequestError: one of the ids is in use, or requests of another running event loop are live.
        """
        self._loop.bind(asyncio.get_running_loop(), len(self.client.router))
        return AsyncStream(self.client.router, self.client.tokenizer, requests, slots)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)  # joining the engine may take the time of a step


class AsyncStream:
    """An asynchronous iterator over (place of the request, its delta) until every request has finished.

    Requests with new deltas take turns. Cancelling a waiting reader loses nothing; the next one continues. Read it to
    the end or abort it.

    Raises:
        EngineDead, QueueFull: nothing was queued.
        RequestError: one of the ids is in use.
    """

    def __init__(
        self,
        router: Router,
        tokenizer: Tokenizer | None,
        requests: Sequence[Request],
        slots: QueueSlots | None = None,
    ) -> None:
        self.requests = tuple(requests)
        self._router = router
        self._waiting: asyncio.Future[None] | None = None
        self._ready: deque[int] = deque()
        self._unfinished = len(self.requests)
        self._streams: list[RequestStream] = []
        router.check_open(0 if slots is not None else len(self.requests))
        try:
            for place, request in enumerate(self.requests):
                self._streams.append(router.open(request, tokenizer, partial(self._wake, place), slots))
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """End unfinished requests and free their pages within a step. Idempotent."""
        for stream in self._streams:
            self._router.abort(stream)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        while self._unfinished:
            update = self._take()
            if update is not None:
                return update
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        raise StopAsyncIteration

    async def with_keep_alives(self, seconds: float) -> AsyncGenerator[tuple[int, Delta] | None, None]:
        """Iterate as the stream itself, and yield None after every `seconds` without a delta."""
        loop = asyncio.get_running_loop()
        self._last, self._silent = loop.time(), False
        self._timer = loop.call_later(seconds, self._check_silence, loop, seconds)
        try:
            while self._unfinished:
                update = self._take()
                if update is not None or self._silent:
                    yield update
                    self._last, self._silent = loop.time(), False
                else:
                    self._waiting = loop.create_future()
                    await self._waiting
        finally:
            self._timer.cancel()

    def _check_silence(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Wake the reader after `seconds` without a delta. One timer for all waits is cheaper than one for each."""
        left = self._last + seconds - loop.time()
        if left <= 0:
            self._silent, left = True, seconds
            self._wake()
        self._timer = loop.call_later(left, self._check_silence, loop, seconds)

    def _take(self) -> tuple[int, Delta] | None:
        """Return the next delta, or None."""
        while self._ready:
            place = self._ready.popleft()
            delta = self._streams[place].take()
            if delta is not None:
                self._ready.append(place)  # another choice of it may have a delta too
                if delta.usage is not None:
                    self._unfinished -= 1
                    if not self._unfinished:
                        self._streams.clear()  # they refer back to this reader
                return place, delta
        return None

    def _wake(self, place: int | None = None) -> None:
        """Wake the reader, because the request at `place` has a delta or the keep-alive is due."""
        if place is not None:
            self._ready.append(place)
        waiting = self._waiting
        if waiting is not None and not (waiting.done() or waiting.get_loop().is_closed()):
            waiting.set_result(None)


class StreamWaker:
    """Streams to be woken, each once; those whose client has nothing yet come first. Used on the loop's thread only.

    Waking all streams of a large step at once would delay everything else on the loop until all have written.

    Args:
        loop: the event loop of the consumers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first: dict[int, RequestStream] = {}
        self._others: dict[int, RequestStream] = {}
        self._turning = False

    def add(self, streams: Iterable[RequestStream]) -> None:
        """Wake these streams soon."""
        for stream in streams:
            (self._others if stream.begun else self._first)[id(stream)] = stream
        if not self._turning:
            self._turn()

    def _turn(self) -> None:
        for _ in range(POLICY.streams_per_turn):
            if queue := self._first or self._others:
                self._loop.call_soon(queue.pop(next(iter(queue))).wake)
        self._turning = bool(self._first or self._others)
        if self._turning:
            self._loop.call_soon(self._turn)


class ReadingLoop:
    """The event loop on which one client's streams are read, one loop at a time.

    It holds no reference to the client: an unused client must be collected, and its engine with it.
    """

    def __init__(self) -> None:
        self._waker: tuple[asyncio.AbstractEventLoop, StreamWaker] | None = None

    def bind(self, loop: asyncio.AbstractEventLoop, num_live: int) -> None:
        """Open streams on this loop from now on.

        Args:
            loop: the event loop.
            num_live: live streams of the loop so far.

        Raises:
            RequestError: there are live streams, and their loop still runs.
        """
        if self._waker is not None:
            if self._waker[0] is loop:
                return
            # The streams of a closed loop have no readers, even if the engine has not ended them yet.
            if num_live and not self._waker[0].is_closed():
                raise RequestError(f"{num_live} requests of another event loop are live: finish or abort them first")
        self._waker = loop, StreamWaker(loop)

    def wake_all(self, streams: Sequence[RequestStream]) -> None:
        """Wake the consumers of a step. Called from any thread."""
        assert self._waker is not None  # a stream was opened on it
        loop, waker = self._waker
        with suppress(RuntimeError):  # a closed loop has no consumers
            loop.call_soon_threadsafe(waker.add, streams)
