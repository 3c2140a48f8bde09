"""`Service`: the state of a running server: its models, what it accepts now, and the requests in progress.

HTTP concerns are in `http_guard`, starting and stopping the process in `launch`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from enum import Enum
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from prometheus_client import CollectorRegistry
from starlette.requests import Request as HttpRequest

from ferrum.client.async_engine import AsyncEngine, AsyncStream
from ferrum.client.router import QueueSlots
from ferrum.core.errors import EngineDead, QueueFull, RequestError
from ferrum.core.logging import warn_once
from ferrum.core.types import Request
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.key_limits import Caller, DrainRate, KeyLimits, Limits
from ferrum.server.common.metrics import HttpMetrics, Metrics
from ferrum.server.common.reply_store import ReplyStore
from ferrum.server.common.served_model import ServedModel, build_engine, find_model
from ferrum.server.common.traces import Traces
from ferrum.server.server_config import ServerConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_LOG: Final = logging.getLogger(__name__)


class State(Enum):
    """The phases of a server's life; values are messages for clients."""

    LOADING = "Loading model"
    READY = "ok"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """The state of a server: the models that it serves, and what they share.

    Args:
        config: the server's options.
        limits: of the tenants that have any.
        traces: exports the spans of requests; None: no traces.
        dialects: of the API; the first one answers where the path names none.

    Attributes:
        models: the served models by each name that requests may use; none while loading.
        failure: the exception that ended loading.
        registry: all metrics; those of the engine once it is built.
        retry_after: returns whole seconds after which a queue slot should be free.
        limits: rate limits of the tenants.
        worker_pools: run slow request preparation.
        lasting_tasks: outlive their HTTP request.
        replies: those that clients may continue.
    """

    def __init__(
        self,
        config: ServerConfig,
        limits: Mapping[str, KeyLimits],
        traces: TracerProvider | None,
        dialects: Sequence[Dialect],
    ) -> None:
        self.config = config
        self.dialects = dialects
        self.started = int(time.time())
        self.state = State.LOADING
        self.failure: Exception | None = None
        self.models: dict[str, ServedModel] = {}
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
        self.lasting_tasks = LastingTasks()
        self.replies = ReplyStore(config.max_stored_responses, config.stored_responses_mib << 20)

    async def load(self, make: Callable[[], AsyncEngine], template: str | None) -> None:
        """Build the engine in a thread while the event loop answers probes; ends early at `stop_loading`.

        Args:
            make: builds the engine.
            template: source of a chat template that replaces the model's.
        """
        Thread(target=build_engine, args=(make, self._built), name="ferrum-load", daemon=True).start()
        try:
            engine = self._engine = await asyncio.wrap_future(self._built)
            model = ServedModel(engine, self.config, template)
        except Exception as error:  # noqa: BLE001 - the command raises it again
            self.failure = error
            self.state = State.FAILED
            _LOG.error("the model could not be loaded: %s", error)
            return
        self.models = dict.fromkeys(model.accepted, model)
        engine.deliver_here()
        metrics = Metrics(self.registry, model.name, engine.info, model.context, lambda: self.num_live)
        self._traces = None if self._provider is None else Traces(self._provider, model.name)
        observers = (metrics, self.limits if self.limits.tenants else None, self._traces)
        engine.client.router.observers = [each for each in observers if each is not None]
        options = engine.client.config
        config = {"server": self.config.to_dict(), "engine": None if options is None else options.to_dict()}
        _LOG.info("%s is loaded on %s kernels", model.name, engine.info.kernels, extra={"fields": {"config": config}})
        if self.state is State.LOADING:
            self.state = State.READY

    def stop_loading(self) -> None:
        """Stop waiting for an engine that is being built; building cannot be interrupted and may take minutes."""
        self._built.cancel()

    @property
    def still_building(self) -> bool:
        """A thread is still building the engine after `stop_loading`."""
        return self._built.cancelled()

    async def close(self) -> None:
        """End every live request, and the engine. Idempotent."""
        self.worker_pools.close()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
        await self.lasting_tasks.wait()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    def model(self, name: str | None = None) -> ServedModel:
        """Return a served model by one of its names. None: the first one.

        Raises:
            ApiError: 503 while no model is loaded, 404 for another name.
        """
        if not self.models:
            raise self._unavailable()
        if name is None:
            return next(iter(self.models.values()))
        found = find_model(self.models, name)
        if found is None:
            raise ApiError(404, f"the model {name!r} is not served here", code="model_not_found", param="model")
        return found

    def check_ready(self) -> None:
        """Refuse requests that cannot be served now. A full queue is not checked. Raises ApiError, 503."""
        if self.state is not State.READY:
            raise self._unavailable()
        try:
            self.model().client.router.check_open(0)
        except QueueFull:
            pass
        except EngineDead as error:
            warn_once(f"{error}; restart the server")
            raise ApiError(503, "the engine has ended", code="engine_dead") from None

    def _unavailable(self) -> ApiError:
        return ApiError(
            503, self.state.value, code=self.state.name.lower(), headers={"retry-after": str(self.retry_after())}
        )

    def begin(self, request: HttpRequest, name: str | None = None) -> tuple[ServedModel, Caller]:
        """Count a request; return its model, and its sender with the limits that apply.

        Args:
            request: as the guard let it pass.
            name: of the model; None: the first one.

        Raises:
            ApiError: 503 while the server is not ready, 429 if the tenant exceeds one of its rates, 404 for the name of
                another model.
        """
        self.check_ready()
        tenant: str = request.state.tenant
        limited = tenant in self.limits.tenants
        if limited:
            self.limits.begin(tenant)
        model = self.model(name)
        most = model.client.max_requests
        traceparent = request.headers.get("traceparent", "")
        return model, Caller(
            tenant=tenant,
            trace_id=traceparent if _TRACEPARENT.fullmatch(traceparent) else request.state.request_id,
            deadline=self.config.request_seconds,
            max_requests=self.limits.max_live(tenant, most) if limited else most,
            max_logprobs=self.config.max_logprobs,
        )

    @property
    def num_live(self) -> int:
        """Clients whose requests are in progress."""
        return len(self._live)

    @contextmanager
    def reserve(self, model: ServedModel, count: int, tenant: str) -> Iterator[QueueSlots]:
        """Reserve queue slots for the requests of one body, which may run one after the other.

        Raises:
            ApiError, FerrumError: there are not enough free slots, or the tenant has too many.
        """
        self.check_ready()
        router = model.client.router
        if tenant in self.limits.tenants:
            self.limits.check_live(tenant, router.num_reserved(tenant), count)
        with router.reserve(count, tenant) as slots:
            try:
                yield slots
            finally:
                self._rate.ends.append(time.monotonic())

    @contextmanager
    def run(
        self,
        model: ServedModel,
        name: str,
        requests: Sequence[Request],
        tenant: str,
        slots: QueueSlots | None = None,
    ) -> Iterator[AsyncStream]:
        """Queue requests under one name of their tenant; unfinished ones are aborted at the end of the block.

        Args:
            slots: reserved for them; None: they are reserved for the time of the block.

        Raises:
            ApiError, FerrumError: they cannot be queued now.
        """
        if (tenant, name) in self._live:
            raise RequestError(f"a request {name!r} is live; choose another id", param="request_id")
        with self.reserve(model, len(requests), tenant) if slots is None else nullcontext(slots) as reserved:
            stream = self._live[tenant, name] = model.engine.open(requests, reserved)
            if tenant in self.limits.tenants:
                self.limits.queue(tenant, requests)
            try:
                yield stream
            finally:
                stream.abort()
                del self._live[tenant, name]

    def cancel(self, request_id: str, tenant: str) -> str:
        """End a request of the tenant and return the id of its reply.

        Args:
            request_id: the id of the reply, or the one that the client gave.

        Raises:
            ApiError: 404.
        """
        name = self.live_name(request_id, tenant)
        if name is None:
            raise ApiError(404, f"no live request {request_id!r}", code="request_not_found", param="id")
        self._live[tenant, name].abort()
        return name

    def live_name(self, request_id: str, tenant: str) -> str | None:
        """Return the reply id of a live request of the tenant, from that id or from the client's."""
        return next((name for name in self.reply_ids(request_id) if (tenant, name) in self._live), None)

    def reply_ids(self, request_id: str) -> list[str]:
        """Return the ids that the reply to a request may have: the given one, and those made from a client's id."""
        return [request_id, *(prefix + request_id for dialect in self.dialects for prefix in dialect.ids)]

    def drain(self) -> None:
        """Accept no more requests; let running ones finish."""
        self.state = State.DRAINING

    def abort_all(self) -> None:
        """End all running requests and drop the preparation of others."""
        self.worker_pools.close()
        for stream in self._live.values():
            stream.abort()


# Work off the event loop, and work that outlives a request


NUM_THREADS: Final = 2
MAX_WAITING: Final = 16

LARGE_BYTES: Final = 1 << 20
"""Above this size a body takes seconds to encode, and hundreds of megabytes of memory."""

Result = TypeVar("Result")


class WorkerPools:
    """Threads for request preparation. Call from the event loop's thread only."""

    def __init__(self) -> None:
        self._templates = _Pool("a chat_template in the body")
        self._large = _Pool(f"a body over {LARGE_BYTES} bytes")
        self._images = _Pool("images")

    async def run(
        self, size: int, work: Callable[[], Result], *, template: bool = False, images: bool = False
    ) -> Result:
        """Run the work for a body of `size` bytes; large bodies queue for a few threads.

        Args:
            template: the body has a chat template, which may take long; such bodies have threads for themselves.
            images: the body has images, which are decoded; the same holds for such bodies.

        Raises:
            QueueFull: too many large bodies are waiting.
            EngineDead: the server is shutting down.
        """
        if template:
            return await self._templates.run(work)
        if images:
            return await self._images.run(work)
        return await (asyncio.to_thread(work) if size <= LARGE_BYTES else self._large.run(work))

    def close(self) -> None:
        """Start no more queued work. Running work finishes first."""
        self._templates.close()
        self._images.close()
        self._large.close()


class _Pool:
    """A few threads with a short queue.

    Args:
        kind: names the requests in the error for a full queue.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="ferrum-worker")
        self._count = 0
        self._closed = False

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run the work in one of the threads. Raises as `WorkerPools.run`."""
        if self._closed:
            raise EngineDead("the server is shutting down")
        limit = NUM_THREADS + MAX_WAITING
        if self._count >= limit:
            raise QueueFull(f"{self._count} requests with {self._kind} are in progress, at most {limit}; retry later")
        self._count += 1
        future = self._threads.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed and future.cancelled():
                raise EngineDead("the server is shutting down") from None
            raise
        finally:
            self._count -= 1

    def close(self) -> None:
        """Cancel what is queued. Idempotent."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)


class LastingTasks:
    """Tasks that end with the engine's requests. Call from the event loop's thread only."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work until its end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until all have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)
