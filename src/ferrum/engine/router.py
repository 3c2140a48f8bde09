"""Between clients and one engine: opens requests, routes the engine's reports to their streams, bounds their number.

Events are folded here, where the host delivers them, so that a stop string ends its choice in the engine as soon as it
can, however slowly its consumer reads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeAlias

from ferrum.core.errors import EngineDead, FerrumError, QueueFull, RequestError
from ferrum.core.types import Request, TokenEvent
from ferrum.engine.engine import as_step_error
from ferrum.engine.hosts.host import Host
from ferrum.engine.messages import Abort, Ended, EngineInfo, EngineStats, Events, Report
from ferrum.engine.output_stream import RequestStream
from ferrum.engine.records.recorder import Recorder
from ferrum.engine.request_output import Delta
from ferrum.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

DEFAULT_MAX_REQUESTS: Final = 1024

Wake: TypeAlias = Callable[[], None]

News = ParamSpec("News")


class Observer(Protocol):
    """Looks on where the host delivers: what it does delays the clients, and an engine in a thread."""

    def step(self, stats: EngineStats) -> None:
        """The engine has reported how it stands: when it comes to rest, and while it works a few times a second."""
        ...

    def delta(self, request: Request, delta: Delta) -> None:
        """A choice has news."""
        ...


@dataclass(slots=True, eq=False)
class QueueSlots:
    """Places in the queue that are kept for requests which come in turns.

    Attributes:
        free: how many no request has now. Below 0 a request that has ended by its text is yet to leave the engine.
    """

    free: int


_LOG: Final = logging.getLogger(__name__)


def wake_here(streams: Sequence[RequestStream]) -> None:
    """Wake them all in this thread."""
    for stream in streams:
        stream.wake()


class Router:
    """The client's side of an engine; safe to use from any thread.

    Args:
        host: where the engine lives; it is started here.
        max_requests: how many requests may be in the engine, waiting and running.
        wake_all: given the streams that have news, once per step, where the host delivers; wakes them.

    Attributes:
        observers: look on, from the next request.
        recorder: keeps the requests, from the next one.

    Raises:
        FerrumError: what the engine's recipe raised.
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
        self._streams: dict[str, RequestStream] = {}
        self._kept: list[QueueSlots] = []
        self._lent: dict[str, QueueSlots] = {}  # by the requests that have one of them
        self._asked: dict[tuple[str, str], RequestStream] = {}  # the last of each tenant's id, as clients know it
        self._ended: FerrumError | None = None
        self._told = False
        self._lock = Lock()
        self._process = os.getpid()
        self.info: EngineInfo = host.start(self._deliver)

    def __len__(self) -> int:
        """How many requests the engine still knows."""
        return len(self._streams)

    @property
    def _forked(self) -> bool:
        """Whether this is a copy in another process, which has no thread of the engine's."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Refuse to wait for an engine that will never answer here. Raises EngineDead."""
        if self._forked:
            raise EngineDead("this process was forked from the engine's, and needs an engine of its own")

    def check_open(self, count: int = 1) -> None:
        """Refuse so many requests, if they could not be opened now.

        Raises:
            EngineDead: the engine has ended, or is that of the process which this one was forked from.
            QueueFull: as many requests are live as may be.
        """
        self.check_process()
        if self._ended is not None:
            raise EngineDead(str(self._ended))
        taken = len(self._streams) + sum(each.free for each in self._kept)
        if taken + count > self.max_requests:
            raise QueueFull(f"{taken} requests are waiting or running, as many as may be")

    @contextmanager
    def keep(self, count: int) -> Iterator[QueueSlots]:
        """Keep so many places until the end of the block. Raises as `check_open`."""
        self.check_process()
        with self._lock:
            self.check_open(count)
            places = QueueSlots(count)
            self._kept.append(places)
        try:
            yield places
        finally:
            with self._lock:
                self._kept.remove(places)

    def open(
        self, request: Request, tokenizer: Tokenizer | None, wake: Wake, places: QueueSlots | None = None
    ) -> RequestStream:
        """Send a request to the engine; `wake` is called whenever its stream has news.

        Args:
            places: one of them is for it; None: there has to be another.

        Raises:
            EngineDead, QueueFull: as `check_open`.
            RequestError: a request of that id and tenant is live.
        """
        self.check_process()  # the lock may have been held for ever when a fork copied it
        with self._lock:
            self.check_open(0 if places is not None else 1)
            observe = self._observe if self.observers or self.recorder is not None else None
            stream = RequestStream(self._unique(request), request.request_id, tokenizer, wake, observe)
            recorder = self.recorder
            sent = stream.request if recorder is None else recorder.begin(stream.request, stream.request_id)
            self._streams[sent.request_id] = self._asked[request.tenant, request.request_id] = stream
            if places is not None:
                self._lent[sent.request_id] = places
                places.free -= 1
            try:
                self._host.send(sent)
            except BaseException:  # an interrupt: nobody will read it, and the engine may not even have heard of it
                self._forget(stream)
                self._host.send(Abort(sent.request_id))
                raise
        return stream

    def _unique(self, request: Request) -> Request:
        """The request under an id that the engine does not know: an ended namesake may still be on its way out, and
        tenants know nothing of each other's, nor anybody of the names that are made here.
        """
        namesake = self._asked.get((request.tenant, request.request_id))
        if namesake is not None and not namesake.over:
            raise RequestError(f"a request {request.request_id!r} is live", param="request_id")
        name, count = request.request_id, 1
        while name in self._streams:
            count += 1
            name = f"{request.request_id}~{count}"
        return replace(request, request_id=name)

    def abort(self, stream: RequestStream) -> None:
        """End a request and free what it holds, within a step; harmless when it is over."""
        if not (stream.over or self._forked):
            self._host.send(Abort(stream.request.request_id))

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        """See `Host`. In a process that was forked from the engine's there is nothing to deliver."""
        if not self._forked:
            self._host.deliver_on(loop)

    def close(self) -> None:
        """End all requests and the engine, if it is this process's. Idempotent."""
        if self._forked:
            return
        self._host.close()
        if self.recorder is not None:
            self.recorder.close()

    def _deliver(self, report: Report) -> None:
        """Take a report of the engine."""
        touched: dict[int, RequestStream] = {}
        if isinstance(report, Events):
            if self.recorder is not None:
                self._show(self.recorder.steps, report.steps)
            if report.stats is not None:
                for each in self.observers:
                    self._show(each.step, report.stats)
            for event in report.events:
                stream = self._streams.get(event.request_id)
                if stream is not None:
                    self._route(stream, event)
                    touched[id(stream)] = stream
        elif isinstance(report, Ended):
            touched = {id(stream): stream for stream in self._end(report.error)}
        if touched:
            self._wake_all(tuple(touched.values()))

    def _observe(self, request: Request, delta: Delta) -> None:
        if self.recorder is not None:
            self._show(self.recorder.delta, request, delta)
        for each in self.observers:
            self._show(each.delta, request, delta)

    def _show(self, look: Callable[News, None], *news: News.args, **more: News.kwargs) -> None:
        """Let somebody look on. Who fails at it, which is told once, takes neither the engine nor any client along."""
        try:
            look(*news, **more)
        except Exception:  # noqa: BLE001 - as above
            if not self._told:
                _LOG.exception("what looks on at the engine has failed, and may fail again")
            self._told = True

    def _route(self, stream: RequestStream, event: TokenEvent) -> None:
        try:
            if stream.push(event):
                self._host.send(Abort(event.request_id, event.choice))
        except Exception as error:  # noqa: BLE001 - one request's text may not end the engine
            _LOG.exception("request %s could not be folded", stream.request_id)
            self.abort(stream)
            stream.fail(as_step_error(error))
        if stream.settled:
            with self._lock:
                self._forget(stream)

    def _forget(self, stream: RequestStream) -> None:
        """Give back the place of a stream, and its id. The lock is held."""
        name = stream.request.request_id
        self._streams.pop(name, None)
        if (places := self._lent.pop(name, None)) is not None:
            places.free += 1
        asked = (stream.request.tenant, stream.request_id)
        if self._asked.get(asked) is stream:
            del self._asked[asked]

    def _end(self, error: FerrumError | None) -> list[RequestStream]:
        """Nothing comes after the engine's end: every stream that still waits for something gets its error."""
        ended = error if error is not None else EngineDead("the engine is closed")
        with self._lock:
            self._ended = ended
            streams = list(self._streams.values())
            self._streams.clear()
            self._lent.clear()
            self._asked.clear()
        for stream in streams:
            stream.fail(ended)
        return streams
