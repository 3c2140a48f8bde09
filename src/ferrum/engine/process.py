"""An engine in a process of its own.

    client --send--> pump ==socket==> pump --> inbox --> Engine.run ==socket==> pump --> deliver --> client

The pumps are threads: neither side ever waits for the other one to read. The process is started by its interpreter's
command line and not by `multiprocessing`, which would run the caller's main script in it once more.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Final, Self

from ferrum.core.errors import EngineDead
from ferrum.engine.engine import as_step_error
from ferrum.engine.host import JOIN_SECONDS, Deliver, Recipe, serve
from ferrum.engine.messages import Ended, EngineInfo, Message, Report, Shutdown, Started
from ferrum.engine.progress import leave

SWITCH_SECONDS: Final = 0.0005
"""How long a thread may keep the interpreter from one that waits for it, on both sides. Python's own 5 ms are as long
as a step, and a request crosses threads four times before its first token is sent, beside the work for all others.
"""

_PROGRAM: Final = "import sys; sys.path[:] = {path!r}; from ferrum.engine.process import child; child({descriptor})"


class Child:
    """A process that waits for a recipe. It imports what engines need meanwhile, beside whatever its parent does.

    A context manager: at the end of the block it is gone. It is in a session of its own: Ctrl-C is its parent's
    business. Without its parent it ends by itself.
    """

    def __init__(self) -> None:
        here, there = socket.socketpair()
        program = _PROGRAM.format(path=sys.path, descriptor=there.fileno())
        with there:  # ours must be closed, else the end of the process would not end the connection
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        self.connection = Connection(here.detach())

    def stop(self) -> None:
        """End it at once, if it has not ended. Idempotent."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ProcessHost:
    """An engine in a process: it shares no interpreter lock with its clients, and may die without them.

    Args:
        recipe: of the engine.
        child: where it is to live; None: a new process.
    """

    def __init__(self, recipe: Recipe, child: Child | None = None) -> None:
        self._recipe = recipe
        self._child = child
        self._process: subprocess.Popen[bytes] | None = None
        self._outgoing: SimpleQueue[Message | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, deliver: Deliver) -> EngineInfo:
        """See `Host`."""
        child = self._child or Child()
        self._process, connection = child.process, child.connection
        try:
            connection.send(self._recipe)
            report = _receive(connection, child.process)
        except BaseException:
            child.stop()
            raise
        if not isinstance(report, Started):
            child.process.wait()
            assert isinstance(report, Ended)
            raise report.error or EngineDead("the engine ended before it began")
        reports = threading.Thread(target=self._pump_reports, args=(connection, child.process, deliver), daemon=True)
        messages = threading.Thread(target=self._pump_messages, args=(connection,), daemon=True)
        self._threads = [reports, messages]
        for thread in self._threads:
            thread.start()
        return report.info

    def send(self, message: Message) -> None:
        """See `Host`."""
        self._outgoing.put(message)

    def close(self) -> None:
        """See `Host`. A process that does not end in time is killed."""
        if self._process is None:
            return
        self._outgoing.put(Shutdown())
        try:
            self._process.wait(JOIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _pump_reports(self, connection: Connection, process: subprocess.Popen[bytes], deliver: Deliver) -> None:
        report = _receive(connection, process)
        while not isinstance(report, Ended):
            deliver(report)
            report = _receive(connection, process)
        self._outgoing.put(None)
        deliver(report)

    def _pump_messages(self, connection: Connection) -> None:
        while (message := self._outgoing.get()) is not None:
            with contextlib.suppress(OSError):  # a process that has gone is reported by the other pump
                connection.send(message)


def _receive(connection: Connection, process: subprocess.Popen[bytes]) -> Report:
    """The next report; the end of the connection is one, too."""
    try:
        report: Report = connection.recv()
    except (EOFError, OSError):
        return Ended(EngineDead(f"the engine's process ended with exit code {process.wait()}"))
    except Exception as error:  # noqa: BLE001 - nothing that cannot be read may leave the clients waiting
        process.kill()
        return Ended(EngineDead(f"the engine's process sent what cannot be read: {type(error).__name__}: {error}"))
    return report


def child(descriptor: int) -> None:
    """The engine's process: reads its recipe, then messages, from an inherited socket, and writes its reports there."""
    # The process is ours alone, and so is what it logs: what was asked for by a switch is to be seen.
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    inbox: SimpleQueue[Message] = SimpleQueue()
    loaded = threading.Event()
    try:
        import ferrum.runtime.load  # noqa: F401 - it takes its time, and the recipe need not have come yet

        recipe = connection.recv()
        threading.Thread(target=_read, args=(connection, inbox, loaded), daemon=True).start()
        built = recipe()
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - it is raised again in the parent
        connection.send(Ended(as_step_error(error)))
        return
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # what there is by now will stay: to search it for garbage would hold up a step
    loaded.set()
    with contextlib.suppress(OSError):  # nobody is left to be told
        connection.send(Started(built.info))
        serve(built, inbox, connection.send)


def _read(connection: Connection, inbox: SimpleQueue[Message], loaded: threading.Event) -> None:
    """Move messages from the connection to the inbox; a parent that is gone needs no engine, nor one to be loaded."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            if not loaded.is_set():
                leave(1)
            inbox.put(Shutdown())
            return
