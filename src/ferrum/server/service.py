"""The state of a running server: its engine, what it may take now, and who is being served."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from enum import Enum
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from ferrum.core.errors import EngineDead, QueueFull, RequestError
from ferrum.core.logging import warn_once
from ferrum.core.types import Pooling, Request
from ferrum.engine.async_engine import AsyncEngine
from ferrum.engine.async_stream import AsyncStream
from ferrum.engine.model_client import ModelClient
from ferrum.engine.router import QueueSlots
from ferrum.server.error_replies import ApiError
from ferrum.server.key_limits import KeyLimits, Limits
from ferrum.server.metrics.engine_metrics import Metrics
from ferrum.server.metrics.ferrum_metrics import OwnMetrics
from ferrum.server.metrics.http_metrics import HttpMetrics
from ferrum.server.server_config import ServerConfig
from ferrum.server.traces import Traces
from ferrum.server.worker_pools import WorkerPools

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

RATE_WINDOW: Final = 32
"""Finished requests that the drain rate looks back on."""
MAX_RETRY_SECONDS: Final = 60

REPLY_KINDS: Final = ("chatcmpl", "cmpl", "embd")
"""What the ids of replies begin with."""

_LOG: Final = logging.getLogger(__name__)


class State(Enum):
    """What a server can be asked now."""

    LOADING = "Loading model"
    READY = "ok"
    DRAINING = "draining"
    FAILED = "failed"


class DrainRate:
    """How fast requests leave, from the moments when the last ones did; safe to use from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=RATE_WINDOW)
        self._lock = Lock()

    def finished(self) -> None:
        """A request left."""
        with self._lock:
            self._ends.append(self._clock())

    def retry_after(self) -> int:
        """Whole seconds after which a place should be free: the mean time between two ends, at least 1, at most 60."""
        with self._lock:
            if len(self._ends) < 2:
                return 1
            mean = (self._clock() - self._ends[0]) / len(self._ends)
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(mean)))


class Service:
    """One model being served.

    Args:
        config: the server's options.
        limits: of the tenants that have any.
        traces: takes the spans of requests, where there are to be any.

    Attributes:
        failure: what kept the engine from being built.
        pooling: what makes an embedding, from when the engine is built.
        registry: all metrics; those of the engine from when it is built.
        retry_after: whole seconds after which a place should be free.
        limits: the books of the tenants.
        beside: makes of bodies what they become.
    """

    def __init__(self, config: ServerConfig, limits: Mapping[str, KeyLimits], traces: TracerProvider | None) -> None:
        self.config = config
        self.started = int(time.time())
        self.state = State.LOADING
        self.failure: Exception | None = None
        self.pooling = Pooling.MEAN
        self._built: Future[AsyncEngine] = Future()
        self._engine: AsyncEngine | None = None
        self._live: dict[tuple[str, str], AsyncStream] = {}
        self._rate = DrainRate()
        self.retry_after = self._rate.retry_after
        self.limits = Limits(limits, self.retry_after)
        self._provider = traces
        self._traces: Traces | None = None
        self.registry = CollectorRegistry()
        self.http = HttpMetrics(self.registry)
        self.worker_pools = WorkerPools()

    async def load(self, make: Callable[[], AsyncEngine]) -> None:
        """Build the engine, away from the event loop, which answers probes meanwhile; until `stop_loading`."""
        Thread(target=_build, args=(make, self._built), name="ferrum-load", daemon=True).start()
        try:
            self._engine = await asyncio.wrap_future(self._built)
            chosen = self.config.pooling
            self.pooling = self._engine.client.pooling() if chosen == "auto" else Pooling(chosen)
        except Exception as error:  # noqa: BLE001 - the command raises it again
            self.failure = error
            self.state = State.FAILED
            _LOG.error("the model could not be loaded: %s", error)
            return
        engine = self._engine
        engine.deliver_here()
        metrics = Metrics(self.registry, self.model, engine.info, self.context)
        self._traces = None if self._provider is None else Traces(self._provider, self.model)
        own = OwnMetrics(self.registry, self.model, lambda: self.num_live)
        observers = (metrics, own, self.limits, self._traces)
        engine.client.router.observers = [each for each in observers if each is not None]
        self._tell()
        if self.state is State.LOADING:
            self.state = State.READY

    def _tell(self) -> None:
        """Log all options in effect."""
        engine = self.client.config
        config = {"server": self.config.to_dict(), "engine": None if engine is None else engine.to_dict()}
        _LOG.info("%s is loaded", self.model, extra={"fields": {"config": config}})

    def stop_loading(self) -> None:
        """Wait no longer for an engine that is still being built: nobody can end that, and it may take minutes."""
        self._built.cancel()

    @property
    def left_loading(self) -> bool:
        """Whether the engine was not waited for: a thread is still building it."""
        return self._built.cancelled()

    async def close(self) -> None:
        """End every live request, and the engine. Idempotent."""
        self.worker_pools.close()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    @property
    def engine(self) -> AsyncEngine:
        """The engine, for what needs no new request.

        Raises:
            ApiError: it is not there yet, or no more.
        """
        if self._engine is None:
            raise self._unavailable()
        return self._engine

    @property
    def client(self) -> ModelClient:
        """The engine's model client. Raises ApiError while there is no engine."""
        return self.engine.client

    def check_ready(self) -> None:
        """Refuse what cannot be served now, though a full queue is no reason.

        Raises:
            ApiError: 503.
        """
        if self.state is not State.READY:
            raise self._unavailable()
        try:
            self.client.router.check_open(0)
        except QueueFull:
            pass
        except EngineDead as error:
            warn_once(f"{error}; nothing is served until the server is started again")
            raise ApiError(503, "the engine has ended", code="engine_dead") from None

    def _unavailable(self) -> ApiError:
        wait = {"retry-after": str(self.retry_after())}
        return ApiError(503, self.state.value, code=self.state.name.lower(), headers=wait)

    def now(self) -> int:
        """The time for a reply, in seconds since 1970."""
        return int(time.time())

    @property
    def model(self) -> str:
        """The name by which clients know the model."""
        return self.config.served_model_name or self.engine.info.model

    @property
    def context(self) -> int:
        """Most tokens of prompt and output together. The last token of a sequence is never stored."""
        info = self.engine.info
        return min(info.max_sequence_length, info.kv_capacity + 1)

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served. Raises ApiError, 404."""
        if name is not None and name != self.model:
            raise ApiError(404, f"the model {name!r} is not served here", code="model_not_found", param="model")

    @property
    def num_live(self) -> int:
        """How many clients are being served."""
        return len(self._live)

    @contextmanager
    def hold(self, count: int, tenant: str) -> Iterator[QueueSlots]:
        """Keep so many places for requests of a body that run in turns: after the first none of them is refused.

        Raises:
            ApiError, FerrumError: there are not so many now.
        """
        self.check_ready()
        self.limits.check_place(tenant, count)
        with self.client.router.keep(count) as places:
            self.limits.enter(tenant, count)
            try:
                yield places
            finally:
                self.limits.leave(tenant, count)
                self._rate.finished()

    @contextmanager
    def run(
        self, name: str, requests: Sequence[Request], tenant: str, places: QueueSlots | None = None
    ) -> Iterator[AsyncStream]:
        """Queue requests under one name of their tenant's; they are over, or aborted, at the end of the block.

        Args:
            places: those that are held for them; None: as many are held until then.

        Raises:
            ApiError, FerrumError: they cannot be queued now.
        """
        if (tenant, name) in self._live:
            raise RequestError(f"{name!r} is live", param="request_id")
        with self.hold(len(requests), tenant) if places is None else nullcontext(places) as held:
            running = self._live[tenant, name] = self.engine.open(requests, held)
            self.limits.queue(tenant, requests)
            try:
                yield running
            finally:
                running.abort()
                del self._live[tenant, name]

    def cancel(self, request_id: str, tenant: str) -> str:
        """End a request of the tenant, by the id of its reply or by the one that it was given; the former.

        Raises:
            ApiError: 404.
        """
        name = self.live_name(request_id, tenant)
        if name is None:
            raise ApiError(404, f"no live request {request_id!r}", code="request_not_found", param="id")
        self._live[tenant, name].abort()
        return name

    def live_name(self, request_id: str, tenant: str) -> str | None:
        """The id of the reply to a live request of the tenant, from that or from the id that it was given."""
        names = (request_id, *(f"{kind}-{request_id}" for kind in REPLY_KINDS))
        return next((name for name in names if (tenant, name) in self._live), None)

    def drain(self) -> None:
        """Take nothing new; what runs may finish."""
        self.state = State.DRAINING

    def abort_all(self) -> None:
        """End all that runs, and begin with nothing that waits."""
        self.worker_pools.close()
        for running in self._live.values():
            running.abort()


def _build(make: Callable[[], AsyncEngine], built: Future[AsyncEngine]) -> None:
    """Build an engine for whoever waits for it; where nobody does any more, it is closed."""
    try:
        engine = make()
    except Exception as error:  # noqa: BLE001 - it is raised where the engine is waited for
        if built.set_running_or_notify_cancel():
            built.set_exception(error)
        return
    if built.set_running_or_notify_cancel():
        built.set_result(engine)
    else:
        engine.close()
