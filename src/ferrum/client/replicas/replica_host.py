"""`ReplicaHost`: several engines as one. Requests of an engine that ends go on in another one, without a seam.

Engines of one arithmetic over equal files give the same bits. So it does not matter where a request runs, and what a
choice has generated elsewhere is all that another engine needs (`Request.made`). Clients see one engine: their ids,
their choices, each token once. Where engines come from is a `Source`; which of them take requests is in `members`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ferrum.client.replicas.live_parts import LiveParts, Part
from ferrum.client.replicas.members import Files, Member, Members, Source
from ferrum.client.replicas.stats_sum import sum_of
from ferrum.core.config import STALL_SECONDS
from ferrum.core.errors import ConfigError, EngineDead, FerrumError, ReplicaMismatch
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.host import Deliver, Host
from ferrum.engine.messages import (
    Abort,
    AdapterReply,
    ComputedStep,
    Ended,
    EngineInfo,
    Events,
    LoadAdapter,
    Message,
    Report,
    UnloadAdapter,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_LOG: Final = logging.getLogger(__name__)

WAIT_SECONDS: Final = 300.0
"""How long a choice waits for an engine: models take minutes to load."""

MISMATCH_SECONDS: Final = 10.0
"""How long a choice waits for an engine while only engines of other bits are known."""

TICK_SECONDS: Final = 0.5
"""Interval of the checks for engines that stall and choices that wait."""


class ReplicaHost:
    """Several hosts of equal engines as one host.

    Args:
        source: where engines come from.
        stall_seconds: an engine that has requests and reports nothing for so long counts as dead.
        files: digests of files that engines must have, see `EngineInfo.files`; empty: those of the first engine.
    """

    def __init__(self, source: Source, *, stall_seconds: float = STALL_SECONDS, files: Files = ()) -> None:
        self._source = source
        self._stall_seconds = stall_seconds
        # One lock for members and parts: both change when an engine ends.
        self._lock = threading.Lock()
        self._members = Members(self._lock, files)
        self._live = LiveParts()
        self._loop: AbstractEventLoop | None = None
        self._reports: deque[Report] = deque()  # to be delivered, in order
        self._delivering = threading.Lock()
        self._bell = threading.Event()  # wakes `ferrum-replicas`
        self._closing = False
        self._closers: list[threading.Thread] = []

    @property
    def moved(self) -> int:
        """Choices that went on in another engine."""
        return self._live.moved

    def start(self, deliver: Deliver) -> EngineInfo:
        """Start the engines, as many as the source needs to serve.

        Raises:
            ReplicaMismatch: an engine differs from the first one; the fields are named.
            FerrumError: an engine could not be built.
        """
        self._deliver = deliver
        try:
            self._source.start(self)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._watch, name="ferrum-replicas", daemon=True).start()
        return self._members.info()

    def send(self, message: Message) -> None:
        with self._lock:
            if isinstance(message, Request):
                self._place(self._live.part_of(message))
            elif isinstance(message, Abort):
                self._abort(message)
            elif isinstance(message, LoadAdapter):
                self._reports += self._members.load(message)
            elif isinstance(message, UnloadAdapter):
                self._members.unload(message)
            else:
                raise TypeError(f"{type(message).__name__} is sent within an engine's process only")
        if self._reports:
            self._bell.set()  # the caller holds locks that clients need for reports

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        with self._lock:
            self._loop = loop
            hosts = [each.host for each in self._members if each.info is not None]
        for host in hosts:
            host.deliver_on(loop)

    def close(self) -> None:
        self._closing = True
        self._bell.set()
        self._source.close()
        with self._lock:
            hosts = [each.host for each in self._members]
            if not hosts:
                self._reports.append(Ended())
        self._flush()
        for host in hosts:
            host.close()
        for closer in self._closers:
            closer.join()

    # Engines, called by the source

    def join(self, host: Host) -> int:
        """Start an engine, give it the adapters of the others, and let it take requests; return its number.

        It blocks until then.

        Raises:
            ReplicaMismatch: the engine would compute other bits; the differences are named. It is closed.
            FerrumError: the engine could not be built, or ended meanwhile.
        """
        with self._lock:
            member = self._members.add(host)
        try:
            info = host.start(partial(self._take, member.number))
            with self._lock:
                if self._closing:
                    raise EngineDead("the client is closed")
                self._members.check(member, info)
                loop = self._loop
            if loop is not None:
                loop.call_soon_threadsafe(host.deliver_on, loop)
            self._members.catch_up(member)
        except BaseException as error:
            with self._lock:
                self._members.drop(member.number)
                if isinstance(error, ReplicaMismatch):
                    self._live.mismatch = error
            host.close()
            raise
        with self._lock:
            self._live.mismatch = None
            for part in self._live.take_waiting():
                self._place(part)
            for other in self._members.leaving():
                self._move_all(other)
        self._flush()
        return member.number

    def leave(self, number: int) -> None:
        """Send an engine no more requests, and let those that it runs go on in others; then close its host.

        Without another engine it keeps those that it runs.
        """
        with self._lock:
            member = self._members.get(number)
            if member is None:
                return
            member.taking = False
            self._move_all(member)
            self._close_if_left(member)
        self._flush()

    def drain(self, number: int) -> None:
        """Let an engine leave. Raises ConfigError for the last one."""
        with self._lock:
            if [each.number for each in self._members.taking()] == [number]:
                raise ConfigError("the last engine cannot be drained: close the client", param="replicas")
        self.leave(number)

    def give_up(self, error: FerrumError | None) -> None:
        """End as an engine does that has ended, unless there are engines."""
        with self._lock:
            if not len(self._members):
                self._reports.append(Ended(error))
        self._flush()

    # Requests. The lock is held

    def _place(self, part: Part) -> None:
        """Send a part to an engine, or let it wait for one."""
        taking = self._members.taking()
        if not taking:
            self._live.wait(part, time.monotonic())
            return
        loads = self._live.loads(each.number for each in taking)
        member = self._members.of(self._members.owners.choose(part.sent, loads))
        if not self._live.runs_on(member.number):
            member.heard = time.monotonic()
        self._live.place(part, member.number)
        member.host.send(part.sent)

    def _move_all(self, member: Member) -> None:
        """Let the choices of an engine go on in others, if there are any."""
        if not self._members.taking():
            return
        for part in self._live.of_engine(member.number):
            member.host.send(Abort(part.sent.request_id))
            for moved in self._live.move(part):
                self._place(moved)
        self._close_if_left(member)

    def _close_if_left(self, member: Member) -> None:
        if not member.taking and member.joined and not self._live.runs_on(member.number):
            self._members.drop(member.number)
            self._close_soon(member.host)

    def _abort(self, message: Abort) -> None:
        for part in self._live.of_request(message.request_id):
            if message.choice is not None and message.choice not in part.choices:
                continue
            chosen = list(part.choices) if message.choice is None else [message.choice]
            part.aborted.update(chosen)
            if part.engine is not None:
                self._members.of(part.engine).host.send(Abort(part.sent.request_id, message.choice))
                continue
            for choice in chosen:
                self._end(part, choice, FinishReason.ABORT, None)

    def _end(self, part: Part, choice: int, reason: FinishReason, error: FerrumError | None) -> None:
        """End a choice that no engine runs."""
        name, trace = part.request.request_id, part.request.trace_id
        event = TokenEvent(name, choice, finish_reason=reason, error=error, trace_id=trace)
        self._reports.append(Events((event,)))
        self._live.end(part, choice)

    # Reports

    def _take(self, number: int, report: Report) -> None:
        """Take a report of an engine, on the thread that delivers it."""
        ended: int | None = None
        with self._lock:
            member = self._members.get(number)
            if member is None:
                return  # it counts as dead
            member.heard = time.monotonic()
            if isinstance(report, Events):
                self._take_events(member, report)
            elif isinstance(report, AdapterReply):
                reply = self._members.reply(member, report)
                if reply is not None:
                    self._reports.append(reply)
            elif isinstance(report, Ended):
                ended = self._lose(member, report.error)
        self._deliver_all()
        if ended is not None:
            self._close_soon(member.host)
            self._source.ended(ended)

    def _flush(self) -> None:
        """Deliver what is ready, on the event loop if there is one."""
        if self._loop is None:
            self._deliver_all()
        else:
            with suppress(RuntimeError):  # a closed loop has no clients
                self._loop.call_soon_threadsafe(self._deliver_all)

    def _deliver_all(self) -> None:
        """Deliver what is ready. Clients are called without the lock, since they send while they hold theirs."""
        while self._reports and self._delivering.acquire(blocking=False):
            try:
                while self._reports:
                    self._deliver(self._reports.popleft())
            finally:
                self._delivering.release()

    def _take_events(self, member: Member, report: Events) -> None:
        steps = tuple(map(self._named_step, report.steps))  # before choices end
        events = tuple(self._live.named(member.number, report.events))
        stats = None
        if report.stats is not None:
            member.stats = report.stats
            known = [each.stats for each in self._members if each.stats is not None]
            stats = sum_of(known, report.stats.step_tokens)
        self._reports.append(Events(events, stats, steps))
        self._close_if_left(member)

    def _named_step(self, step: ComputedStep) -> ComputedStep:
        """Return a step with the clients' ids."""
        names = self._live.new_names()
        shares = [replace(each, request_id=names.get(each.request_id, each.request_id)) for each in step.shares]
        return replace(step, shares=tuple(shares)) if names else step

    def _lose(self, member: Member, error: FerrumError | None) -> int | None:
        """Let the choices of an engine that has ended go on in others; return its number if it had joined."""
        self._members.drop(member.number)
        self._reports += self._members.complete_loads()
        if self._closing:
            if not len(self._members):
                self._reports.append(Ended(error))
            return None
        if not member.joined:
            return None  # `join` raises
        lost = self._live.of_engine(member.number)
        choices = sum(len(each.choices) for each in lost)
        _LOG.error("engine %d has ended (%s): %d choices go on in others", member.number, error, choices)
        for part in lost:
            for moved in self._live.move(part, dead=True):
                self._place_or_fail(moved, error)
        return member.number

    def _place_or_fail(self, part: Part, error: FerrumError | None) -> None:
        """Send a part of an engine that has ended to another one, unless it seems to end each engine."""
        (number, choice) = next(iter(part.choices.items()))
        if choice.deaths < self._live.most_deaths:
            self._place(part)
            return
        reason = f"{choice.deaths} engines ended in a row while they ran this request ({error})"
        self._end(part, number, FinishReason.ERROR, EngineDead(reason))

    def _close_soon(self, host: Host) -> None:
        """Close a host on a thread: it may take the time of a step, or wait for the thread that calls this."""
        closer = threading.Thread(target=host.close, name="ferrum-close", daemon=True)
        self._closers = [*(each for each in self._closers if each.is_alive()), closer]
        closer.start()

    # Time

    def _watch(self) -> None:
        while not self._closing:
            self._bell.wait(TICK_SECONDS)
            self._bell.clear()
            for number in self._check(time.monotonic()):
                self._source.ended(number)

    def _check(self, now: float) -> list[int]:
        """Count engines that stall as dead, and end choices that have waited too long; return those engines."""
        with self._lock:
            stalled = [each for each in self._members if now - each.heard > self._stall_seconds]
            stalled = [each for each in stalled if each.joined and self._live.runs_on(each.number)]
            for member in stalled:
                reason = f"it reported nothing for {now - member.heard:.0f} s (--stall-seconds {self._stall_seconds:g})"
                self._lose(member, EngineDead(reason))
                self._close_soon(member.host)
            mismatch = self._live.mismatch
            limit = WAIT_SECONDS if mismatch is None else MISMATCH_SECONDS
            for part in self._live.waiting_since(now - limit):
                error = mismatch or EngineDead(f"no engine was ready within {limit:g} s")
                for choice in list(part.choices):
                    self._end(part, choice, FinishReason.ERROR, error)
        self._flush()
        return [each.number for each in stalled]
