"""The host that runs an engine in a separate process, whose main function is in `engine/engine_main.py`.

    client --send--> Writer ==socket==> SocketInbox --> Engine.run ==socket==> Reader --> deliver --> client

The process starts from the interpreter's command line: `multiprocessing` would run the caller's main script again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, Self

from ferrum.core.errors import EngineDead
from ferrum.core.ranks import BEAT_SECONDS, SILENT_BEATS
from ferrum.engine import wire
from ferrum.engine.host import JOIN_SECONDS, Deliver, Recipe
from ferrum.engine.messages import Ended, EngineInfo, Message, Report, Shutdown, Started
from ferrum.engine.progress import show_cursor

if TYPE_CHECKING:  # an engine process does without it
    from asyncio import AbstractEventLoop

_LOG: Final = logging.getLogger(__name__)

_PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from ferrum.engine.engine_main import child; child({descriptor}, {log_objects})"
)


class Child:
    """A process that imports the engine's modules while it waits for a recipe. A context manager that stops it.

    It is in a separate session, so Ctrl-C reaches its parent only. It ends when its parent does.

    Args:
        log_objects: whether it logs JSON objects, see `core/logging.py`.

    Attributes:
        name: of the process, for errors.
        killed: why it was killed, if it was.
    """

    def __init__(self, *, log_objects: bool = False) -> None:
        here, there = socket.socketpair()
        program = _PROGRAM.format(path=sys.path, descriptor=there.fileno(), log_objects=log_objects)
        with there:  # close our copy, so that the connection ends with the process
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                start_new_session=True,
            )
        self.end = here
        self.name = "the engine process"
        self.killed = ""

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped the process (SIGSTOP), and none has continued it."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return False
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # it has ended
            return False

    def ended(self) -> EngineDead:
        """Wait until the process has ended, and return why."""
        code = self.process.wait()
        return EngineDead(f"{self.name} {self.killed or f'ended with exit code {code}'}")

    def stop(self) -> None:
        """Kill the process if it still runs. Idempotent."""
        self.process.kill()
        self.process.wait()
        self.end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ProcessHost:
    """An engine in a process, which shares no interpreter lock with its clients and may crash without them.

    Args:
        recipe: builds the engine.
        child: the process to use; None: a new one.
    """

    def __init__(self, recipe: Recipe, child: Child | None = None) -> None:
        self._recipe = recipe
        self._child = child
        self._reports: _Reports | None = None
        self._closed = threading.Event()

    def start(self, deliver: Deliver) -> EngineInfo:
        child = self._child = self._child or Child()
        reports = _Reports(child, deliver)
        try:
            with contextlib.suppress(OSError):  # it has ended: its report or exit code says why
                wire.send(child.end, self._recipe)
            report = reports.next()
        except BaseException:
            child.stop()
            show_cursor()
            raise
        if not isinstance(report, Started):
            child.stop()
            assert isinstance(report, Ended)
            if isinstance(report.error, EngineDead):  # it died without a report, maybe with a hidden cursor
                show_cursor()
            raise report.error or EngineDead("the engine ended before it started")
        self._writer = wire.Writer(child.end)
        self._reports = reports
        reports.start()
        if report.info.ranks > 1:
            child.name = f"rank 0 (process {child.process.pid})"
            threading.Thread(target=_watch, args=(child, self._closed), name="ferrum-rank-0", daemon=True).start()
        return report.info

    def send(self, message: Message) -> None:
        self._writer.send(message)

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        # The loop reads the socket itself: waking a thread that needs the interpreter would take longer.
        if self._reports is not None:
            self._reports.read_on(loop)

    def close(self) -> None:
        self._closed.set()
        if self._child is None or self._reports is None:
            return
        self._writer.send(Shutdown())
        try:
            self._child.process.wait(JOIN_SECONDS)
        except subprocess.TimeoutExpired:  # it does not end in time
            self._child.process.kill()
        self._reports.join()
        self._writer.close()


def _watch(child: Child, closed: threading.Event) -> None:
    """Kill an engine of several ranks that a signal has stopped, which the other ranks cannot see, until `closed`.

    The system says whether it is stopped: an engine that computes a long step, or a grammar, is not.
    """
    looks = 0
    while looks <= SILENT_BEATS:
        if closed.wait(BEAT_SECONDS) or child.process.returncode is not None:
            return
        looks = looks + 1 if child.stopped else 0
    child.killed = f"was stopped for {SILENT_BEATS * BEAT_SECONDS:g} s"
    child.process.kill()


class _Reports:
    """Reader of an engine process's reports, which delivers them on a thread or on an event loop.

    Args:
        child: the process.
        deliver: gets every report. The end of the connection becomes an `Ended`.
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
        """Read and deliver on a loop instead of the thread."""
        self._stop.close()
        self.join()
        if not self._over:
            loop.add_reader(self._child.end, self._readable, loop)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join()
            self._stop.close()

    def next(self) -> Report:
        """Wait for the next report; return an `Ended` if the connection ends."""
        try:
            report: Report = self._reader.wait()
        except (EOFError, OSError):
            return Ended(self._child.ended())
        except Exception as error:  # noqa: BLE001 - clients must not wait for a report that cannot be read
            self._child.process.kill()
            return Ended(EngineDead(f"unreadable report of the engine process: {type(error).__name__}: {error}"))
        return report

    def _run(self, stopped: socket.socket) -> None:
        poll = select.poll()
        poll.register(self._child.end, select.POLLIN)
        poll.register(stopped, select.POLLIN)
        with stopped:
            while not self._over:
                if not self._reader.ready and any(each == stopped.fileno() for each, _ in poll.poll()):
                    return
                self._pass_on()
        self._child.end.close()

    def _readable(self, loop: AbstractEventLoop) -> None:
        if not self._turning:
            self._turn(loop)

    def _turn(self, loop: AbstractEventLoop) -> None:
        """Deliver one report if it has arrived; other callbacks run before the next one."""
        try:
            whole = self._reader.poll()
        except (EOFError, OSError):
            whole = True  # the connection has ended, which `next` reports
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
        except Exception:  # noqa: BLE001 - later reports must still be delivered
            _LOG.exception("an engine report could not be delivered")
