"""The host interface and the host that runs an engine in a thread. `process` has the one with a separate process.

    client --send--> inbox --> Engine.run --> report --> deliver --> client

When the engine ends for any reason, even the death of its process, `deliver` gets a last report: `Ended`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ferrum.core.errors import EngineDead, FerrumError
from ferrum.engine.engine import Engine
from ferrum.engine.held_adapters import DEFAULT_ADAPTER_BYTES
from ferrum.engine.held_images import DEFAULT_IMAGE_BYTES, StoredRows, Tower
from ferrum.engine.inbox import Inbox
from ferrum.engine.messages import Ended, EngineInfo, Lost, Message, Report, Shutdown, Wake
from ferrum.scheduler.guides import Guides
from ferrum.scheduler.scheduler import Scheduler

if TYPE_CHECKING:  # an engine needs none
    from asyncio import AbstractEventLoop

    from ferrum.engine.engine_executor import EngineExecutor


@dataclass(frozen=True, slots=True)
class Built:
    """The parts of an engine, and what its clients need to know about it.

    Attributes:
        guides: make the guides of requests with limits; None: such requests are refused.
        recorded: reports include the contents of every step.
        depth: maximum number of uncommitted steps when the next one is planned.
        adapter_bytes: limit of the adapters in memory.
        open_tower: opens the model's tower for images; None: it has none.
        image_bytes: limit of the rows of images in memory.
        image_rows: rows of images on disk, if they are kept.
    """

    executor: EngineExecutor
    scheduler: Scheduler
    info: EngineInfo
    guides: Guides | None = None
    recorded: bool = False
    depth: int = 0
    adapter_bytes: int = DEFAULT_ADAPTER_BYTES
    open_tower: Callable[[], Tower] | None = None
    image_bytes: int = DEFAULT_IMAGE_BYTES
    image_rows: StoredRows | None = None


Recipe: TypeAlias = Callable[[], Built]
"""Builds the parts of an engine. For a process it must be picklable."""

Deliver: TypeAlias = Callable[[Report], None]

_LOG: Final = logging.getLogger(__name__)

JOIN_SECONDS: Final = 10.0
"""Time that `close` waits for the running step."""


class Host(Protocol):
    """A thread or process that runs an engine."""

    def start(self, deliver: Deliver) -> EngineInfo:
        """Build and start the engine. Errors of the recipe are raised here, with nothing left running."""

    def send(self, message: Message) -> None:
        """Send a message without waiting for the engine. An ended engine drops it."""

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        """Deliver on this event loop from now on. Called on it, at most once."""

    def close(self) -> None:
        """Shut the engine down and wait until it has ended. Idempotent."""


class ThreadHost:
    """An engine in a thread. The recipe runs in the caller's thread."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self.send: Callable[[Message], None] = self._inbox.put
        self._thread: threading.Thread | None = None
        self._loop: AbstractEventLoop | None = None

    def start(self, deliver: Deliver) -> EngineInfo:
        built = self._recipe()
        arguments = (built, self._inbox, partial(self._pass_on, deliver))
        self._thread = threading.Thread(target=serve, args=arguments, name="ferrum-engine", daemon=True)
        self._thread.start()
        return built.info

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        self._loop = loop  # the engine's thread only schedules the delivery: it has steps to compute

    def _pass_on(self, deliver: Deliver, report: Report) -> None:
        if self._loop is None:
            deliver(report)
        else:
            with suppress(RuntimeError):  # a closed loop has no clients
                self._loop.call_soon_threadsafe(deliver, report)

    def close(self) -> None:
        self._inbox.put(Shutdown())
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)


def serve(built: Built, inbox: Inbox, deliver: Deliver) -> None:
    """Run an engine in this thread until it is shut down or fails. `Ended` is delivered last, exactly once.

    The engine holds the executor's lease while it runs, and shuts the executor down at its end.
    """
    error: FerrumError | None = None
    try:
        with built.executor.lease("engine"):
            built.scheduler.wake_by(lambda: inbox.put(Wake()))
            built.executor.on_loss(lambda error: inbox.put(Lost(error)))
            engine = Engine(
                built.executor,
                built.scheduler,
                inbox=inbox,
                post=deliver,  # a bound method of the engine would keep its model until garbage is collected
                guides=built.guides,
                depth=built.depth,
                recorded=built.recorded,
                adapter_bytes=built.adapter_bytes,
                open_tower=built.open_tower,
                image_bytes=built.image_bytes,
                image_rows=built.image_rows,
            )
            engine.run()
        _log_totals(built.scheduler)
        if engine.steps_ahead:
            _LOG.info("%d of %d steps were submitted while another one was in flight", engine.steps_ahead, engine.steps)
        built.executor.shutdown()
    except BaseException as cause:  # noqa: BLE001 - clients get `Ended` whatever ends the loop
        lost = isinstance(cause, EngineDead)
        error = EngineDead(str(cause) if lost else f"the engine's loop failed: {type(cause).__name__}: {cause}")
    if built.guides is not None:
        built.guides.close()
    deliver(Ended(error))
    if error is not None:  # after the report: a shutdown may take long
        with suppress(Exception):
            built.executor.shutdown()


def _log_totals(scheduler: Scheduler) -> None:
    """Log prefix hits, preemptions and accepted drafts of an engine that ends."""
    found, drafted = scheduler.prefix_counts, scheduler.drafter.counts
    if found.hit_tokens:
        counts = (found.hit_tokens, found.query_tokens, found.restored_pages)
        _LOG.info("prefix cache: %d of %d prompt tokens found, %d pages restored", *counts)
    if scheduler.preemptions:
        _LOG.info("sequences were preempted %d times", scheduler.preemptions)
    if drafted.drafts:
        counts = (drafted.accepted_tokens, drafted.draft_tokens, drafted.drafts)
        _LOG.info("%d of %d draft tokens were accepted, in %d drafts", *counts)
