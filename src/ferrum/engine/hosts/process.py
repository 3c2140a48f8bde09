"""An engine in a process of its own.

    client --send--> Writer ==socket==> SocketInbox --> Engine.run ==socket==> Reader --> deliver --> client

The engine reads its messages between its steps; reports are read by a thread here, or by the event loop that serves the
clients. The process is started by its interpreter's command line and not by `multiprocessing`, which would run the
caller's main script in it once more.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from ferrum.core.errors import EngineDead
from ferrum.core.logging import log_objects
from ferrum.engine.engine import as_step_error
from ferrum.engine.hosts import wire
from ferrum.engine.hosts.host import JOIN_SECONDS, Deliver, Recipe, serve
from ferrum.engine.hosts.inbox import SocketInbox
from ferrum.engine.messages import Ended, EngineInfo, Message, Report, Shutdown, Started
from ferrum.engine.progress import leave, show_cursor

if TYPE_CHECKING:  # no engine of ours needs it
    from asyncio import AbstractEventLoop

SWITCH_SECONDS: Final = 0.0005
"""How long a thread may keep the interpreter from one that waits for it, on both sides. Python's own 5 ms are as long
as a step, for which nobody shall wait who only passes something on: a long prompt is encoded beside the loop that
streams, pages come back from disk beside the loop that steps.
"""

_LOG: Final = logging.getLogger(__name__)

_PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from ferrum.engine.hosts.process import child; child({descriptor}, {log_objects})"
)


class Child:
    """A process that waits for a recipe. It imports what engines need meanwhile, beside whatever its parent does.

    A context manager: at the end of the block it is gone. It is in a session of its own: Ctrl-C is its parent's
    business. Without its parent it ends by itself.

    Args:
        log_objects: it logs as servers do, see `core/logging.py`.
    """

    def __init__(self, *, log_objects: bool = False) -> None:
        here, there = socket.socketpair()
        program = _PROGRAM.format(path=sys.path, descriptor=there.fileno(), log_objects=log_objects)
        with there:  # ours must be closed, else the end of the process would not end the connection
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        self.end = here

    def stop(self) -> None:
        """End it at once, if it has not ended. Idempotent."""
        self.process.kill()
        self.process.wait()
        self.end.close()

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
        self._reports: _Reports | None = None

    def start(self, deliver: Deliver) -> EngineInfo:
        """See `Host`."""
        child = self._child = self._child or Child()
        reports = _Reports(child, deliver)
        try:
            with contextlib.suppress(OSError):  # it has ended by now: its report, or how it ended, tells why
                wire.send(child.end, self._recipe)
            report = reports.next()
        except BaseException:
            child.stop()
            show_cursor()
            raise
        if not isinstance(report, Started):
            child.stop()
            assert isinstance(report, Ended)
            if isinstance(report.error, EngineDead):  # it could not tell any error of its own, nor end its bar
                show_cursor()
            raise report.error or EngineDead("the engine ended before it began")
        self._writer = wire.Writer(child.end)
        self._reports = reports
        reports.start()
        return report.info

    def send(self, message: Message) -> None:
        """See `Host`."""
        self._writer.send(message)

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        """See `Host`. The loop reads them itself: no thread has to be woken, nor to get hold of the interpreter."""
        if self._reports is not None:
            self._reports.read_on(loop)

    def close(self) -> None:
        """See `Host`. A process that does not end in time is killed."""
        if self._child is None or self._reports is None:
            return
        self._writer.send(Shutdown())
        try:
            self._child.process.wait(JOIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.process.kill()
        self._reports.join()
        self._writer.close()


class _Reports:
    """Reads what the engine's process reports, until its end, and delivers it: on a thread, or on an event loop.

    Args:
        child: the process.
        deliver: gets every report; the end of the connection is one, too.
    """

    def __init__(self, child: Child, deliver: Deliver) -> None:
        self._child = child
        self._deliver = deliver
        self._reader = wire.Reader(child.end)
        self._over = False
        self._turning = False

    def start(self) -> None:
        """Read and deliver on a thread."""
        self._stop, stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, args=(stopped,), name="ferrum-reports", daemon=True)
        self._thread.start()

    def read_on(self, loop: AbstractEventLoop) -> None:
        """Read and deliver on a loop, and not on the thread any more."""
        self._stop.close()
        self.join()
        if not self._over:
            loop.add_reader(self._child.end, self._look, loop)

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self._thread is not threading.current_thread():
            self._thread.join()
            self._stop.close()

    def next(self) -> Report:
        """The next report; the end of the connection is one, too."""
        process = self._child.process
        try:
            report: Report = self._reader.wait()
        except (EOFError, OSError):
            return Ended(EngineDead(f"the engine's process ended with exit code {process.wait()}"))
        except Exception as error:  # noqa: BLE001 - nothing that cannot be read may leave the clients waiting
            process.kill()
            return Ended(EngineDead(f"the engine's process sent what cannot be read: {type(error).__name__}: {error}"))
        return report

    def _run(self, stopped: socket.socket) -> None:
        news = select.poll()
        news.register(self._child.end, select.POLLIN)
        news.register(stopped, select.POLLIN)
        with stopped:
            while not self._over:
                if not self._reader.ready and any(each == stopped.fileno() for each, _ in news.poll()):
                    return
                self._pass_on()
        self._child.end.close()

    def _look(self, loop: AbstractEventLoop) -> None:
        if not self._turning:
            self._turn(loop)

    def _turn(self, loop: AbstractEventLoop) -> None:
        """Deliver one report if it has come; whoever else waits for the loop gets his turn before the next one."""
        try:
            whole = self._reader.look()
        except (EOFError, OSError):
            whole = True  # it is the end
        if whole:
            self._pass_on()
        self._turning = not self._over and self._reader.ready
        if self._turning:
            loop.call_soon(self._turn, loop)
        elif self._over:
            loop.remove_reader(self._child.end)
            self._child.end.close()

    def _pass_on(self) -> None:
        report = self.next()
        self._over = isinstance(report, Ended)
        try:
            self._deliver(report)
        except Exception:  # noqa: BLE001 - who waits for those behind it would wait for ever
            _LOG.exception("a report of the engine could not be delivered")


def child(descriptor: int, as_objects: bool) -> None:
    """The engine's process: reads its recipe, then messages, from an inherited socket, and writes its reports there."""
    # The process is ours alone, and so is what it logs: what was asked for by a switch is to be seen.
    if as_objects:
        log_objects(logging.INFO)
    else:
        logging.basicConfig(format="%(message)s", level=logging.INFO)
    os.set_inheritable(descriptor, False)
    end = socket.socket(fileno=descriptor)
    inbox = SocketInbox(end)
    loaded = threading.Event()
    try:
        import ferrum.runtime.load  # noqa: F401 - it takes its time, and the recipe need not have come yet

        recipe = inbox.reader.wait()
        threading.Thread(target=_watch, args=(end, loaded), daemon=True).start()
        built = recipe()
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - it is raised again in the parent
        wire.send(end, Ended(as_step_error(error)))
        return
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # what there is by now will stay: to search it for garbage would hold up a step
    loaded.set()
    with contextlib.suppress(OSError):  # nobody is left to be told
        wire.send(end, Started(built.info))
        serve(built, inbox, partial(wire.send, end))
    inbox.close()


def _watch(end: socket.socket, loaded: threading.Event) -> None:
    """A parent that goes while its engine is being loaded needs none. Later the engine looks for itself."""
    gone = select.poll()
    gone.register(end, 0)  # a hang-up is told of unasked
    gone.poll()
    if not loaded.is_set():
        leave(1)
