"""`Router`: the queue between clients and one engine; it opens requests and routes events to their streams.

Events are folded where the host delivers them, so that a stop string ends its choice in the engine at once, however
slowly its client reads. The fold is in `output_stream`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ferrum.client.output_stream import RequestStream
from ferrum.client.records.recorder import Recorder
from ferrum.client.request_output import Delta
from ferrum.core.errors import EngineDead, FerrumError, QueueFull, RequestError, as_step_error
from ferrum.core.lora_option import AdapterFacts
from ferrum.core.types import Request, TokenEvent
from ferrum.engine.host import Host
from ferrum.engine.messages import (
    Abort,
    AdapterReply,
    ComputedStep,
    Ended,
    EngineInfo,
    EngineStats,
    Events,
    LoadAdapter,
    Report,
    UnloadAdapter,
)
from ferrum.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

DEFAULT_MAX_REQUESTS: Final = 1024

Wake: TypeAlias = Callable[[], None]


_LOG: Final = logging.getLogger(__name__)
_delta = attrgetter("delta")  # runs no Python code per token


class Observer(Protocol):
    """Watches an engine where the host delivers its reports; slow observers delay the clients."""

    def step(self, stats: EngineStats) -> None:
        """Take a report of the engine's state, sent when it becomes idle and a few times a second while it works."""

    def delta(self, request: Request, delta: Delta) -> None:
        """Take a new delta of a choice."""


@dataclass(slots=True, eq=False)
class QueueSlots:
    """Slots of the queue that are reserved for requests which run one after the other.

    Attributes:
        tenant: whose requests they are for.
        count: how many are reserved.
        free: how many no request uses. Below 0 while a request that ended by its text has not left the engine.
    """

    tenant: str
    count: int
    free: int


def wake_here(streams: Sequence[RequestStream]) -> None:
    """Wake all streams in this thread."""
    for stream in streams:
        stream.wake()


class Router:
    """The client's side of an engine; safe to use from any thread.

    Args:
        host: runs the engine; it is started here.
        max_requests: limit of requests in the engine, waiting and running.
        wake_all: called where the host delivers, once per step, with the streams that have new deltas; wakes them.

    Attributes:
        observers: see the deltas of requests opened from now on.
        recorder: records requests opened from now on; None: they are not recorded.
        info: what the engine serves, and how.

    Raises:
        FerrumError: the engine could not be built.
    """

    def __init__(
        self,
        host: Host,
        *,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        wake_all: Callable[[Sequence[RequestStream]], None] = wake_here,
    ) -> None:
        self.max_requests = max_requests
        self.observers: Sequence[Observer] = ()
        self.recorder: Recorder | None = None
        self._host = host
        self._wake_all = wake_all
        self._streams: dict[str, RequestStream] = {}  # by the engine's id
        self._named: dict[tuple[str, str], RequestStream] = {}  # the latest by tenant and public id
        self._reserved: list[QueueSlots] = []
        self._slots: dict[str, QueueSlots] = {}  # those that requests use, by the engine's id
        self._loading: dict[int, Future[AdapterFacts]] = {}  # by ticket
        self._tickets = count()
        self._ended: FerrumError | None = None
        self._observer_failed = False
        self._lock = Lock()
        self._process = os.getpid()
        self.info: EngineInfo = host.start(self._deliver)

    def __len__(self) -> int:
        """Requests that the engine has not finished."""
        return len(self._streams)

    def check_process(self) -> None:
        """Refuse to wait in a forked process, which has no thread of the engine. Raises EngineDead."""
        if os.getpid() != self._process:
            raise EngineDead("this process was forked from the engine's; open the model again")

    def check_open(self, count: int = 1) -> None:
        """Refuse `count` requests if they could not be opened now.

        Raises:
            EngineDead: the engine has ended, or belongs to the process that this one was forked from.
            QueueFull: there are not enough free slots.
        """
        self.check_process()
        if self._ended is not None:
            raise EngineDead(str(self._ended))
        taken = len(self._streams) + sum(slots.free for slots in self._reserved)
        if taken + count > self.max_requests:
            raise QueueFull(f"queue full: {taken} requests in progress, limit {self.max_requests} (raise --max-queue)")

    def num_reserved(self, tenant: str) -> int:
        """Slots that are reserved for a tenant."""
        return sum(slots.count for slots in self._reserved if slots.tenant == tenant)

    @contextmanager
    def reserve(self, count: int, tenant: str = "") -> Iterator[QueueSlots]:
        """Reserve slots until the end of the block. Raises as `check_open`."""
        self.check_process()
        with self._lock:
            self.check_open(count)
            slots = QueueSlots(tenant, count, count)
            self._reserved.append(slots)
        try:
            yield slots
        finally:
            with self._lock:
                self._reserved.remove(slots)

    def open(
        self, request: Request, tokenizer: Tokenizer | None, wake: Wake, slots: QueueSlots | None = None
    ) -> RequestStream:
        """Send a request to the engine and return its stream; `wake` is called when there are new deltas.

        Args:
            slots: the request uses one of them; None: a slot must be free.

        Raises:
            EngineDead, QueueFull: as `check_open`.
            RequestError: a request of that id and tenant is live.
        """
        self.check_process()  # a fork may have copied the lock while it was held
        with self._lock:
            self.check_open(0 if slots is not None else 1)
            observe = self._observe if self.observers or self.recorder is not None else None
            stream = RequestStream(self._unique(request), request.request_id, tokenizer, wake, observe)
            recorder = self.recorder
            sent = stream.request if recorder is None else recorder.begin(stream.request, stream.request_id)
            self._streams[sent.request_id] = self._named[request.tenant, request.request_id] = stream
            if slots is not None:
                self._slots[sent.request_id] = slots
                slots.free -= 1
            try:
                self._host.send(sent)
            except BaseException:  # an interrupt: the stream has no reader, and the engine may or may not have it
                self._forget(stream)
                self._host.send(Abort(sent.request_id))
                raise
        return stream

    def _unique(self, request: Request) -> Request:
        """Return the request under an id that is new to the engine.

        A finished request of the same id may not have left the engine, and tenants do not know each other's ids.
        """
        namesake = self._named.get((request.tenant, request.request_id))
        if namesake is not None and not namesake.finished:
            raise RequestError(f"a request {request.request_id!r} is live", param="request_id")
        name, count = request.request_id, 1
        while name in self._streams:
            count += 1
            name = f"{request.request_id}~{count}"
        return request if count == 1 else replace(request, request_id=name)

    def abort(self, stream: RequestStream) -> None:
        """End a request and free its pages within a step; no effect if it has finished."""
        if not (stream.finished or os.getpid() != self._process):
            self._host.send(Abort(stream.request.request_id))

    def load_adapter(self, path: str) -> Future[AdapterFacts]:
        """Let the engine read an adapter and hold it.

        The future raises the engine's error: FerrumError says what is wrong with the files.

        Raises:
            EngineDead: the engine has ended, or belongs to the process that this one was forked from.
        """
        self.check_process()
        loading = Future[AdapterFacts]()
        with self._lock:
            if self._ended is not None:
                raise EngineDead(str(self._ended))
            ticket = next(self._tickets)
            self._loading[ticket] = loading
            self._host.send(LoadAdapter(ticket, path))
        return loading

    def unload_adapter(self, key: str) -> None:
        """Let the engine free an adapter when the last request that uses it has ended."""
        self.check_process()
        self._host.send(UnloadAdapter(key))

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        """Let an event loop take the host's reports, see `Host`. No effect in a forked process."""
        if os.getpid() == self._process:
            self._host.deliver_on(loop)

    def close(self) -> None:
        """End all requests and the engine. Idempotent; no effect in a forked process."""
        if os.getpid() != self._process:
            return
        self._host.close()
        if self.recorder is not None:
            self.recorder.close()

    def _deliver(self, report: Report) -> None:
        """Take a report of the engine."""
        touched: dict[int, RequestStream] = {}
        if isinstance(report, Events):
            if report.steps or report.stats is not None:
                self._observe_steps(report.steps, report.stats)
            for event in report.events:
                stream = self._streams.get(event.request_id)
                if stream is not None:
                    self._route(stream, event)
                    touched[id(stream)] = stream
        elif isinstance(report, AdapterReply):
            with self._lock:
                loading = self._loading.pop(report.ticket)
            _settle(loading, report.found)
        elif isinstance(report, Ended):
            touched = {id(stream): stream for stream in self._end(report.error)}
        if touched:
            self._wake_all(tuple(touched.values()))

    def _observe_steps(self, steps: Sequence[ComputedStep], stats: EngineStats | None) -> None:
        calls = [] if self.recorder is None else [partial(self.recorder.steps, steps)]
        calls += [] if stats is None else [partial(each.step, stats) for each in self.observers]
        for call in calls:
            try:
                call()
            except Exception:  # noqa: BLE001 - as in `_observe`
                self._log_failure()

    def _observe(self, request: Request, delta: Delta) -> None:
        recorded = () if self.recorder is None else (self.recorder.delta,)
        for observe in (*recorded, *map(_delta, self.observers)):
            try:
                observe(request, delta)
            except Exception:  # noqa: BLE001 - an observer must not end the engine or a client's request
                self._log_failure()

    def _log_failure(self) -> None:
        """Log the first failure of an observer."""
        if not self._observer_failed:
            _LOG.exception("an observer of the engine failed; further failures are not logged")
        self._observer_failed = True

    def _route(self, stream: RequestStream, event: TokenEvent) -> None:
        try:
            if stream.push(event):
                self._host.send(Abort(event.request_id, event.choice))
        except Exception as error:  # noqa: BLE001 - the text of one request must not end the engine
            _LOG.exception("the output of request %s could not be processed", stream.request_id)
            self.abort(stream)
            stream.fail(as_step_error(error))
        if stream.settled:
            with self._lock:
                self._forget(stream)

    def _forget(self, stream: RequestStream) -> None:
        """Free the id and the slot of a stream. The lock is held."""
        name = stream.request.request_id
        self._streams.pop(name, None)
        if (slots := self._slots.pop(name, None)) is not None:
            slots.free += 1
        public = (stream.request.tenant, stream.request_id)
        if self._named.get(public) is stream:
            del self._named[public]

    def _end(self, error: FerrumError | None) -> list[RequestStream]:
        """Fail every unfinished stream, because the engine has ended; return those streams."""
        ended = error if error is not None else EngineDead("the engine is closed")
        with self._lock:
            self._ended = ended
            streams, loading = list(self._streams.values()), list(self._loading.values())
            self._streams.clear()
            self._loading.clear()
            self._slots.clear()
            self._named.clear()
        for stream in streams:
            stream.fail(ended)
        for each in loading:
            _settle(each, ended)
        return streams


def _settle(loading: Future[AdapterFacts], found: AdapterFacts | FerrumError) -> None:
    """Give a future its result, unless its reader has cancelled it."""
    if not loading.set_running_or_notify_cancel():
        return
    if isinstance(found, FerrumError):
        loading.set_exception(found)
    else:
        loading.set_result(found)
