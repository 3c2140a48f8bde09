"""`EngineSessions`: the clients of one engine on another machine, and the messages between them.

    RayHost --take--> EngineSessions --send--> host of an engine process
    RayHost <==reports== EngineSessions <--deliver--+

Several clients may use an engine: while an application is updated there are two ingresses. Each has a session.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from ferrum.core.errors import EngineDead
from ferrum.core.types import Request, TokenEvent
from ferrum.engine.host import Host
from ferrum.engine.messages import (
    Abort,
    AdapterReply,
    ComputedStep,
    Ended,
    EngineInfo,
    EngineStats,
    Events,
    LoadAdapter,
    Message,
    Report,
    UnloadAdapter,
)

LEASE_SECONDS: Final = 20.0
"""A session of which nothing is heard for so long ends: Ray lets a call go on after its caller was killed."""


@dataclass(slots=True, eq=False)
class _Session:
    """A client of the replica.

    Attributes:
        name: precedes the ids of its requests.
        live: choices that have not ended, by the ids of its requests.
        reports: that it has not got yet.
        arrived: is set when there are some.
        heard: monotonic seconds of its last message.
        adapters: keys of those that it loaded.
    """

    name: str
    live: dict[str, set[int]] = field(default_factory=dict)
    reports: deque[Report] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    heard: float = field(default_factory=time.monotonic)
    adapters: set[str] = field(default_factory=set)

    def end(self, event: TokenEvent) -> None:
        """Take the last event of a choice."""
        choices = self.live.get(event.request_id, set())
        choices.discard(event.choice)
        if not choices:
            self.live.pop(event.request_id, None)

    def put(self, report: Report) -> None:
        """Add a report to those that the client gets."""
        self.reports.append(report)
        self.arrived.set()


class EngineSessions:
    """The sessions of an engine. Used on one event loop, on which the host delivers.

    Args:
        name: of the replica: calls for another one are refused.
        host: of the engine; its reports go to `deliver`.
        stall_seconds: after so long with requests and without a report the replica is unhealthy.

    Attributes:
        info: what the engine serves; set once the host has started.
    """

    def __init__(self, name: str, host: Host, stall_seconds: float) -> None:
        self._name = name
        self._host = host
        self._stall_seconds = stall_seconds
        self._sessions: dict[str, _Session] = {}
        self._tickets: dict[int, tuple[_Session, int]] = {}
        self._numbers = count()
        self._stats = EngineStats()
        self._heard = time.monotonic()
        self._ended: Ended | None = None
        self.info: EngineInfo

    # Calls of clients

    async def attach(self, *, replica: str, session: str) -> tuple[EngineInfo, float]:
        """Begin a session; return what the engine serves, and the monotonic clock of this machine."""
        self._check(replica)
        self._sweep()
        self._sessions[session] = _Session(session)
        return self.info, time.monotonic()

    async def take(self, messages: Sequence[Message], *, replica: str, session: str) -> None:
        """Take messages of a session, in order. None keep the session alive."""
        self._check(replica)
        known = self._session(session)
        for message in messages:
            self._send(known, message)

    async def reports(self, *, replica: str, session: str) -> AsyncGenerator[tuple[Report, ...], None]:
        """Yield the reports to a session, those of several steps together if its client is slow."""
        self._check(replica)
        known = self._session(session)
        try:
            while self._sessions.get(session) is known:
                try:
                    await asyncio.wait_for(known.arrived.wait(), LEASE_SECONDS / 4)
                except TimeoutError:
                    self._sweep()
                    continue
                known.arrived.clear()
                reports = tuple(known.reports)
                known.reports.clear()
                yield reports
                if any(isinstance(each, Ended) for each in reports):
                    return
        finally:
            self._end(known)

    # Calls of Ray Serve

    async def check_health(self) -> None:
        """Raise if the engine has ended or stalls. Ray Serve then replaces the replica."""
        if self._ended is not None:
            raise EngineDead(str(self._ended.error or "the engine has ended"))
        silent = time.monotonic() - self._heard
        if silent > self._stall_seconds and any(each.live for each in self._sessions.values()):
            raise EngineDead(f"the engine reported nothing for {silent:.0f} s")
        self._sweep()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the choices that run or wait here, which the number of replicas follows."""
        return {"choices": float(self._stats.running + self._stats.waiting)}

    # Messages

    def _check(self, replica: str) -> None:
        if replica != self._name:
            raise EngineDead(f"the replica {replica} is gone")

    def _session(self, name: str) -> _Session:
        known = self._sessions.get(name)
        if known is None:
            raise EngineDead(f"the session {name} has ended")
        known.heard = time.monotonic()
        return known

    def _send(self, session: _Session, message: Message) -> None:
        """Pass a message on, with ids and tickets that no other session has."""
        if isinstance(message, Request | Abort):
            name = f"{session.name}/{message.request_id}"
            if isinstance(message, Request):
                if not any(each.live for each in self._sessions.values()):
                    self._heard = time.monotonic()
                session.live[name] = set(message.choices)
            message = replace(message, request_id=name)
        elif isinstance(message, LoadAdapter):
            ticket = next(self._numbers)
            self._tickets[ticket] = session, message.ticket
            message = replace(message, ticket=ticket)
        elif isinstance(message, UnloadAdapter):
            session.adapters.discard(message.key)
            if any(message.key in each.adapters for each in self._sessions.values()):
                return
        self._host.send(message)

    def deliver(self, report: Report) -> None:
        """Take a report of the engine, on the event loop; at first on the host's thread, when there is no session."""
        self._heard = time.monotonic()
        if isinstance(report, Events):
            self._take_events(report)
        elif isinstance(report, AdapterReply):
            session, ticket = self._tickets.pop(report.ticket)
            if not isinstance(report.found, Exception):
                session.adapters.add(report.found.key)
            session.put(AdapterReply(ticket, report.found))
        elif isinstance(report, Ended):
            self._ended = report
            for session in self._sessions.values():
                session.put(report)

    def _take_events(self, report: Events) -> None:
        events: dict[str, list[TokenEvent]] = {}
        for event in report.events:
            name, _, request = event.request_id.partition("/")
            events.setdefault(name, []).append(replace(event, request_id=request))
            if event.finish_reason is not None and name in self._sessions:
                self._sessions[name].end(event)
        self._stats = report.stats or self._stats
        for name, session in self._sessions.items():
            mine = tuple(events.get(name, ()))
            steps = tuple(_step_of(step, name) for step in report.steps)
            if mine or steps or report.stats is not None:
                session.put(Events(mine, report.stats, steps))

    def _sweep(self) -> None:
        """End sessions whose clients are gone."""
        for session in list(self._sessions.values()):
            if time.monotonic() - session.heard > LEASE_SECONDS:
                self._end(session)

    def _end(self, session: _Session) -> None:
        """End a session and its requests. Idempotent."""
        if self._sessions.get(session.name) is not session:
            return
        del self._sessions[session.name]
        session.arrived.set()
        for name in session.live:
            self._host.send(Abort(name))
        for key in list(session.adapters):
            self._send(session, UnloadAdapter(key))


def _step_of(step: ComputedStep, session: str) -> ComputedStep:
    """Return a step with the shares of a session, under the ids that its client knows."""
    prefix = f"{session}/"
    mine = (each for each in step.shares if each.request_id.startswith(prefix))
    return replace(step, shares=tuple(replace(each, request_id=each.request_id.removeprefix(prefix)) for each in mine))
