"""`RayReplicas`: engines that are replicas of Ray Serve, and `RayHost`, which sends messages to one of them.

Ray starts, stops, checks and scales replicas. This module only takes notice: a replica that Ray runs joins, one that it
is about to stop leaves.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from ferrum.client.replicas.replica_watchers import WATCHERS
from ferrum.core.errors import EngineDead, FerrumError, ReplicaMismatch
from ferrum.core.types import Request
from ferrum.engine.host import Deliver
from ferrum.engine.messages import Ended, EngineInfo, Events, Message, Report

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from ferrum.client.replicas.members import Joins

_LOG: Final = logging.getLogger(__name__)

BEAT_SECONDS: Final = 3.0
"""Pause after which a message without contents is sent: it keeps the session, and finds a process that hangs."""

ANSWER_SECONDS: Final = 15.0
"""A replica whose process does not answer for so long counts as dead."""

RETRY_SECONDS: Final = 2.0
"""Pause before a replica that could not join is tried again."""


class RayHost:
    """One replica.

    Args:
        handle: of the deployment of the engines.
        replica: id of the replica.
        start_seconds: maximum time until it has answered first.
    """

    def __init__(self, handle: Any, replica: str, start_seconds: float) -> None:
        self._handle = handle
        self._start_seconds = start_seconds
        self._to = {"replica": replica, "session": uuid4().hex[:12]}
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        self._loop: AbstractEventLoop | None = None
        self._closed = threading.Event()
        self._ended = threading.Lock()  # taken once, by the thread that reports the end
        self._stream: Any = None

    def start(self, deliver: Deliver) -> EngineInfo:
        """Begin a session. Raises EngineDead."""
        self._deliver = deliver
        before = time.monotonic()
        try:
            info, there = self._handle.attach.remote(**self._to).result(timeout_s=self._start_seconds)
            self._offset = there - (before + time.monotonic()) / 2
            self._stream = self._handle.options(stream=True).reports.remote(**self._to)
        except Exception as error:  # noqa: BLE001 - Ray's errors have many types
            raise _dead(error) from None
        assert isinstance(info, EngineInfo)
        threading.Thread(target=self._read, name="ferrum-reports", daemon=True).start()
        threading.Thread(target=self._write, name="ferrum-writer", daemon=True).start()
        return info

    def send(self, message: Message) -> None:
        self._messages.put(message)

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        self._loop = loop

    def close(self) -> None:
        self._closed.set()
        self._messages.put(None)
        if self._stream is not None:
            with suppress(Exception):  # the replica may be gone
                self._stream.cancel()
            self._end(None)

    def _read(self) -> None:
        """Deliver reports until the session ends."""
        try:
            for reports in self._stream:
                for report in reports:
                    if isinstance(report, Ended):
                        self._end(report.error)
                        return
                    self._pass_on(self._on_this_clock(report))
            self._end(EngineDead("the session has ended"))
        except Exception as error:  # noqa: BLE001 - as above
            self._end(_dead(error))

    def _write(self) -> None:
        """Send messages in order: those that arrive during a call go together in the next one."""
        while not self._closed.is_set():
            messages: list[Message] = []
            with suppress(Empty):
                first = self._messages.get(timeout=BEAT_SECONDS)
                messages += [] if first is None else [first]
                while True:
                    message = self._messages.get_nowait()
                    messages += [] if message is None else [message]
            if self._closed.is_set():
                return
            try:
                sent = [self._on_that_clock(each) for each in messages]
                self._handle.take.remote(sent, **self._to).result(timeout_s=ANSWER_SECONDS)
            except Exception as error:  # noqa: BLE001 - as above
                self._end(_dead(error))
                return

    def _end(self, error: FerrumError | None) -> None:
        if self._ended.acquire(blocking=False):
            self._pass_on(Ended(error))

    def _pass_on(self, report: Report) -> None:
        if self._loop is None:
            self._deliver(report)
        else:
            with suppress(RuntimeError):  # a closed loop has no clients
                self._loop.call_soon_threadsafe(self._deliver, report)

    # Monotonic clocks of two machines differ

    def _on_that_clock(self, message: Message) -> Message:
        if not isinstance(message, Request):
            return message
        deadline = None if message.deadline is None else message.deadline + self._offset
        return replace(message, arrival=message.arrival + self._offset, deadline=deadline)

    def _on_this_clock(self, report: Report) -> Report:
        if not isinstance(report, Events):
            return report
        events = (
            each if each.scheduled is None else replace(each, scheduled=each.scheduled - self._offset)
            for each in report.events
        )
        return report._replace(events=tuple(events))


def _dead(error: Exception) -> FerrumError:
    """Return an error of Ray as one of an engine."""
    cause = getattr(error, "cause", None)  # Ray's error of a call is also one of the type that was raised
    for each in (cause, error):
        if isinstance(each, FerrumError):
            return each
    text = str(error).strip().partition("\n")[0] or "no answer"
    return EngineDead(f"the replica has ended: {type(error).__name__}: {text}")


class RayReplicas:
    """The replicas of a deployment, as Ray starts and stops them.

    Args:
        handle: of the deployment, whose router is `PinnedRouter`.
        start_seconds: maximum time until the first replica serves.
    """

    def __init__(self, handle: Any, start_seconds: float) -> None:
        self._handle = handle
        self._start_seconds = start_seconds
        self._changed = threading.Condition()
        self._running: frozenset[str] = frozenset()
        self._joined: dict[str, int] = {}
        self._joining: dict[str, float] = {}  # by id: when it may be tried again; infinite while it is tried
        self._refused: ReplicaMismatch | None = None
        self._closed = False

    def start(self, joins: Joins) -> None:
        """Wait for the first replica.

        Raises:
            ReplicaMismatch: all replicas differ from what is wanted.
            EngineDead: no replica was ready in time.
        """
        self._joins = joins
        WATCHERS.add(self._handle.app_name, self._handle.deployment_name, self._see)
        threading.Thread(target=self._watch, name="ferrum-ray", daemon=True).start()
        with suppress(Exception):  # the first call of a handle makes its router; any replica refuses it
            self._handle.attach.remote(replica="", session="").result(timeout_s=self._start_seconds)
        with self._changed:
            ready = self._changed.wait_for(lambda: self._joined or self._refused, self._start_seconds)
        if not self._joined and self._refused is not None:
            raise self._refused
        if not ready:
            raise EngineDead(f"no replica was ready within {self._start_seconds:g} s")

    def ended(self, number: int) -> None:
        """Try to let the replica join again while Ray runs it: only its session may have ended."""
        with self._changed:
            for name in [each for each, joined in self._joined.items() if joined == number]:
                del self._joined[name]
                self._joining[name] = time.monotonic() + RETRY_SECONDS

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _see(self, running: frozenset[str]) -> None:
        with self._changed:
            self._running = running
            self._changed.notify_all()

    def _watch(self) -> None:
        """Let replicas join that run, and leave that Ray stops."""
        while True:
            with self._changed:
                self._changed.wait(RETRY_SECONDS / 2)
                if self._closed:
                    return
                left = [self._joined.pop(name) for name in list(self._joined) if name not in self._running]
                now = time.monotonic()
                known = self._joined.keys() | {name for name, until in self._joining.items() if until > now}
                new: Sequence[str] = sorted(self._running - known)
                self._joining |= dict.fromkeys(new, float("inf"))
            for number in left:
                self._joins.leave(number)
            for name in new:
                threading.Thread(target=self._join, args=(name,), name="ferrum-start", daemon=True).start()

    def _join(self, name: str) -> None:
        again = time.monotonic() + RETRY_SECONDS
        number = None
        try:
            number = self._joins.join(RayHost(self._handle, name, self._start_seconds))
        except ReplicaMismatch as error:
            _LOG.error("replica %s is refused: %s", name, error)
            self._refused, again = error, float("inf")
        except FerrumError as error:
            _LOG.warning("replica %s could not join: %s", name, error)
        with self._changed:
            if number is None:
                self._joining[name] = max(again, time.monotonic() + RETRY_SECONDS)
            else:
                del self._joining[name]
                self._joined[name] = number
            self._changed.notify_all()
