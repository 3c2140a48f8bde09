"""Where an engine lives: in a thread of this process, or (`process`) in one of its own. The same messages serve both.

    client --send--> inbox --> Engine.run --> report --> deliver --> client

A host starts its engine from a recipe, passes messages to it and hands its reports to `deliver`, on a thread of its own
or, where it is told so, on an event loop. When the engine has ended for any reason, even by the death of its process,
`deliver` gets one last report: `Ended`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ferrum.core.errors import EngineDead, FerrumError
from ferrum.engine.engine import Engine, Submits
from ferrum.engine.hosts.inbox import Inbox
from ferrum.engine.messages import Ended, EngineInfo, Message, Report, Shutdown, Wake
from ferrum.scheduler.scheduler import Scheduler

if TYPE_CHECKING:  # an engine needs none
    from asyncio import AbstractEventLoop


class Executor(Submits, Protocol):
    """All that a host needs of a `ModelExecutor`."""

    def lease(self, owner: str) -> AbstractContextManager[object]:
        """Hold the executor for one owner."""
        ...

    def shutdown(self) -> None:
        """Give everything back."""
        ...


@dataclass(frozen=True, slots=True)
class Built:
    """What an engine runs on, and what its clients have to know of it.

    Attributes:
        recorded: reports are to tell what was in every step.
    """

    executor: Executor
    scheduler: Scheduler
    info: EngineInfo
    recorded: bool = False


Recipe: TypeAlias = Callable[[], Built]
"""Builds what an engine runs on. For a process it must be picklable."""

Deliver: TypeAlias = Callable[[Report], None]

_LOG: Final = logging.getLogger(__name__)

JOIN_SECONDS: Final = 10.0
"""How long `close` waits for the step that is running."""


class Host(Protocol):
    """A place for an engine."""

    def start(self, deliver: Deliver) -> EngineInfo:
        """Build and start the engine. Errors of the recipe are raised here, and nothing is left running."""
        ...

    def send(self, message: Message) -> None:
        """Pass a message on, without ever waiting for the engine; to an ended engine it is dropped."""
        ...

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        """Deliver on this event loop from now on, to its end or the engine's. Called on it, at most once."""
        ...

    def close(self) -> None:
        """Shut the engine down and wait for its end. Idempotent."""
        ...


class ThreadHost:
    """An engine in a thread: no copy of anything, the recipe runs in the caller's thread."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: AbstractEventLoop | None = None

    def start(self, deliver: Deliver) -> EngineInfo:
        """See `Host`."""
        built = self._recipe()
        arguments = (built, self._inbox, partial(self._pass_on, deliver))
        self._thread = threading.Thread(target=serve, args=arguments, name="ferrum-engine", daemon=True)
        self._thread.start()
        return built.info

    def send(self, message: Message) -> None:
        """See `Host`."""
        self._inbox.put(message)

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        """See `Host`. The engine's thread has its step to compute."""
        self._loop = loop

    def _pass_on(self, deliver: Deliver, report: Report) -> None:
        if self._loop is None:
            deliver(report)
        else:
            with suppress(RuntimeError):  # a loop that is closed serves nobody any more
                self._loop.call_soon_threadsafe(deliver, report)

    def close(self) -> None:
        """See `Host`."""
        self._inbox.put(Shutdown())
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)


def serve(built: Built, inbox: Inbox, deliver: Deliver) -> None:
    """Run an engine in this thread until it is shut down or breaks; `Ended` is delivered last, and exactly once.

    The engine holds the executor's lease for as long as it runs, and shuts the executor down at its end.
    """
    error: FerrumError | None = None
    try:
        with built.executor.lease("engine"):
            built.scheduler.wake_by(lambda: inbox.put(Wake()))
            engine = Engine(
                built.executor,
                built.scheduler,
                inbox=inbox,
                post=deliver,  # and nothing that knows the engine: its model would stay until garbage is searched for
                recorded=built.recorded,
            )
            engine.run()
        _tell(built.scheduler)
        built.executor.shutdown()
    except BaseException as cause:  # noqa: BLE001 - whatever ends the loop, its clients have to be told
        error = EngineDead(f"the engine's loop broke: {type(cause).__name__}: {cause}")
    deliver(Ended(error))
    if error is not None:  # its clients have waited long enough
        with suppress(Exception):
            built.executor.shutdown()


def _tell(scheduler: Scheduler) -> None:
    """What an engine that ends has saved, or lost, for the log."""
    found, guessed = scheduler.prefix_counts, scheduler.drafter.counts
    if found.hit_tokens:
        news = (found.hit_tokens, found.query_tokens, found.restored_pages)
        _LOG.info("%d of %d prompt tokens were found in the prefix cache, %d pages came back to it", *news)
    if scheduler.preemptions:
        _LOG.info("sequences lost their pages %d times", scheduler.preemptions)
    if guessed.drafts:
        news = (guessed.accepted_tokens, guessed.draft_tokens, guessed.drafts)
        _LOG.info("%d of %d guessed tokens were right, in %d drafts", *news)
