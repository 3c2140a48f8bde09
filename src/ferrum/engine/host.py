"""Where an engine lives: in a thread of this process, or in a process of its own. The same messages serve both.

    client --send--> pump --> inbox --> Engine.run --> report --> deliver --> client

A host starts its engine from a recipe, passes messages to it and hands its reports to `deliver`, on its own thread.
When the engine has ended for any reason, even by the death of its process, `deliver` gets one last report: `Ended`.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Final, Protocol, TypeAlias

from ferrum.core.errors import EngineDead, FerrumError
from ferrum.engine.engine import Engine, Submits, as_step_error
from ferrum.engine.messages import Ended, EngineInfo, Events, Message, Report, Shutdown, Started
from ferrum.scheduler.scheduler import Scheduler


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
    """What an engine runs on, and what its clients have to know of it."""

    executor: Executor
    scheduler: Scheduler
    info: EngineInfo


Recipe: TypeAlias = Callable[[], Built]
"""Builds what an engine runs on. For a process it must be picklable."""

Deliver: TypeAlias = Callable[[Report], None]

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

    def close(self) -> None:
        """Shut the engine down and wait for its end. Idempotent."""
        ...


class ThreadHost:
    """An engine in a thread: no copy of anything, the recipe runs in the caller's thread."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, deliver: Deliver) -> EngineInfo:
        """See `Host`."""
        built = self._recipe()
        arguments = (built, self._inbox, deliver)
        self._thread = threading.Thread(target=serve, args=arguments, name="ferrum-engine", daemon=True)
        self._thread.start()
        return built.info

    def send(self, message: Message) -> None:
        """See `Host`."""
        self._inbox.put(message)

    def close(self) -> None:
        """See `Host`."""
        self._inbox.put(Shutdown())
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)


class ProcessHost:
    """An engine in a spawned process: it shares no interpreter lock with its clients, and may die without them.

    Two threads pump the pipe, so that neither side ever waits for the other one to read. A process whose parent is gone
    ends by itself.
    """

    def __init__(self, recipe: Recipe) -> None:
        context = get_context("spawn")
        self._connection, self._far_end = context.Pipe()
        self._process = context.Process(target=_child, args=(recipe, self._far_end), name="ferrum-engine", daemon=True)
        self._outgoing: SimpleQueue[Message | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, deliver: Deliver) -> EngineInfo:
        """See `Host`."""
        self._process.start()
        self._far_end.close()  # else the end of the process would not end the pipe
        report = self._receive()
        if not isinstance(report, Started):
            self._process.join()
            assert isinstance(report, Ended)
            raise report.error or EngineDead("the engine ended before it began")
        for target, arguments in ((self._pump_reports, (deliver,)), (self._pump_messages, ())):
            thread = threading.Thread(target=target, args=arguments, name="ferrum-engine-pump", daemon=True)
            thread.start()
            self._threads.append(thread)
        return report.info

    @property
    def pid(self) -> int | None:
        """The process id of the engine."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """See `Host`."""
        self._outgoing.put(message)

    def close(self) -> None:
        """See `Host`. A process that does not end in time is killed."""
        if self._process.pid is None or not self._threads:
            return
        self._outgoing.put(Shutdown())
        self._process.join(JOIN_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _receive(self) -> Report:
        """The next report; the end of the pipe is one, too."""
        try:
            report: Report = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            return Ended(EngineDead(f"the engine's process ended with exit code {self._process.exitcode}"))
        return report

    def _pump_reports(self, deliver: Deliver) -> None:
        report = self._receive()
        while not isinstance(report, Ended):
            deliver(report)
            report = self._receive()
        self._outgoing.put(None)
        deliver(report)

    def _pump_messages(self) -> None:
        while (message := self._outgoing.get()) is not None:
            with contextlib.suppress(OSError):  # a process that has gone is reported by the other pump
                self._connection.send(message)


def serve(built: Built, inbox: SimpleQueue[Message], deliver: Deliver) -> None:
    """Run an engine in this thread until it is shut down or breaks; `Ended` is delivered last, and exactly once.

    The engine holds the executor's lease for as long as it runs, and shuts the executor down at its end.
    """
    error: FerrumError | None = None
    try:
        with built.executor.lease("engine"):
            Engine(built.executor, built.scheduler, inbox=inbox, post=lambda events: deliver(Events(events))).run()
        built.executor.shutdown()
    except BaseException as cause:  # noqa: BLE001 - whatever ends the loop, its clients have to be told
        error = EngineDead(f"the engine's loop broke: {type(cause).__name__}: {cause}")
    deliver(Ended(error))


def _child(recipe: Recipe, connection: Connection) -> None:
    """The engine's process. Ctrl-C is its parent's business, as the terminal sends it to both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The process is ours alone, and so is what it logs: what was asked for by a switch is to be seen.
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        built = recipe()
    except Exception as error:  # noqa: BLE001 - it is raised again in the parent
        connection.send(Ended(as_step_error(error)))
        return
    connection.send(Started(built.info))
    inbox: SimpleQueue[Message] = SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), name="ferrum-inbox", daemon=True).start()
    with contextlib.suppress(OSError):  # nobody is left to be told
        serve(built, inbox, connection.send)


def _read(connection: Connection, inbox: SimpleQueue[Message]) -> None:
    """Move messages from the pipe to the inbox; a parent that is gone needs no engine."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            inbox.put(Shutdown())
            return
