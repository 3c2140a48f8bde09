"""`ReplicaHost`: several engines as one. Requests of an engine that ends go on in another one, without a seam.

Engines of one arithmetic over equal files give the same bits. So it does not matter where a request runs, and what a
choice has generated elsewhere is all that another engine needs (`Request.made`). Clients see one engine: their ids,
their choices, each token once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Final

from ferrum.client.replicas.prefix_owners import PrefixOwners
from ferrum.client.replicas.stats_sum import sum_of
from ferrum.core.errors import ConfigError, FerrumError
from ferrum.core.lora_option import AdapterFacts
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import Made, Request, TokenEvent
from ferrum.engine.host import Deliver, Host
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

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_LOG: Final = logging.getLogger(__name__)

SAME: Final = ("model", "vocab_size", "max_sequence_length", "numerics_id", "weights", "kv_format", "page_size")
"""Fields that engines must share so that a request may run on any of them."""

_PAGE: Final = 64
"""Tokens of a link of the hash chain, for engines without pages."""


@dataclass(slots=True)
class _Choice:
    """What a choice has generated so far."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class _Part:
    """Choices of a request that run on one engine.

    Attributes:
        request: as its client sent it.
        sent: as the engine has it: the same, or one choice that goes on.
        engine: number of the engine.
        choices: those that have not ended.
    """

    request: Request
    sent: Request
    engine: int
    choices: dict[int, _Choice]


class ReplicaHost:
    """Several hosts of equal engines as one host.

    Args:
        hosts: of the engines, at least one.

    Attributes:
        moved: choices that went on in another engine.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = list(hosts)
        self._parts: dict[str, _Part] = {}  # by the engines' ids
        self._taking: set[int] = set()  # engines that take requests
        self._alive: set[int] = set()
        self._stats: dict[int, EngineStats] = {}
        self._replies: dict[int, dict[int, AdapterFacts | FerrumError]] = {}  # by ticket and engine
        self._numbers = count(1)
        self._lock = Lock()
        self._reports: deque[Report] = deque()  # to be delivered, in order
        self._delivering = Lock()
        self._closing = False
        self.moved = 0

    def start(self, deliver: Deliver) -> EngineInfo:
        """Start all engines at once.

        Raises:
            ConfigError: an engine differs from the first one; the fields are named.
            FerrumError: an engine could not be built.
        """
        self._deliver = deliver
        self._alive = set(range(len(self._hosts)))
        try:
            with ThreadPoolExecutor(len(self._hosts), "ferrum-start") as pool:
                starts = [pool.submit(host.start, partial(self._take, i)) for i, host in enumerate(self._hosts)]
            infos = [start.result() for start in starts]
            for number, info in enumerate(infos):
                _check_equal(infos[0], info, number)
        except BaseException:
            self._closing = True
            for host in self._hosts:
                host.close()
            raise
        self._owners = PrefixOwners(infos[0].page_size or _PAGE)
        self._taking = set(self._alive)
        return replace(infos[0], kv_capacity=min(info.kv_capacity for info in infos))

    def send(self, message: Message) -> None:
        with self._lock:
            if isinstance(message, Request):
                choices = {choice: _Choice() for choice in message.choices}
                if message.made is not None:
                    choices[message.made.choice] = _begun(message.made)
                self._run(message, message, choices)
            elif isinstance(message, Abort):
                self._abort(message)
            elif isinstance(message, LoadAdapter):
                self._replies[message.ticket] = {}
                self._broadcast(message)
            elif isinstance(message, UnloadAdapter):
                self._broadcast(message)
            else:
                raise TypeError(f"{type(message).__name__} is sent within an engine's process only")

    def deliver_on(self, loop: AbstractEventLoop) -> None:
        for host in self._hosts:
            host.deliver_on(loop)

    def drain(self, number: int) -> None:
        """Send an engine no more requests, and let those that it runs go on in others. The last one takes them all."""
        with self._lock:
            if self._taking == {number}:
                raise ConfigError("the last engine cannot be drained: close the client", param="replicas")
            self._taking.discard(number)
            for part in [each for each in self._parts.values() if each.engine == number]:
                self._hosts[number].send(Abort(part.sent.request_id))
                self._move(part)

    def close(self) -> None:
        with self._lock:
            self._closing = True
        for host in self._hosts:
            host.close()

    # Requests

    def _run(self, request: Request, sent: Request, choices: dict[int, _Choice]) -> None:
        """Send a request, or a choice of one that goes on, to an engine."""
        if not self._taking:
            return  # all engines have ended: `Ended` is on its way
        loads = dict.fromkeys(sorted(self._taking), 0)
        for part in self._parts.values():
            if part.engine in loads:
                loads[part.engine] += len(part.choices)
        engine = self._owners.choose(sent, loads)
        self._parts[sent.request_id] = _Part(request, sent, engine, choices)
        self._hosts[engine].send(sent)

    def _move(self, part: _Part) -> None:
        """Let the choices of an engine go on in others, each apart."""
        del self._parts[part.sent.request_id]
        for number, choice in part.choices.items():
            request = part.request
            logprobs = None if request.params.logprobs is None else tuple(choice.logprobs)
            params = request.params if request.params.n == 1 else request.params.but(n=1)
            name = f"{request.request_id}#{number}.{next(self._numbers)}"
            made = Made(number, tuple(choice.tokens), logprobs)
            self.moved += 1
            self._run(request, replace(request, request_id=name, params=params, made=made), {number: choice})

    def _abort(self, message: Abort) -> None:
        for part in [each for each in self._parts.values() if each.request.request_id == message.request_id]:
            if message.choice is None or message.choice in part.choices:
                self._hosts[part.engine].send(Abort(part.sent.request_id, message.choice))

    def _broadcast(self, message: Message) -> None:
        for number in sorted(self._alive):
            self._hosts[number].send(message)

    # Reports

    def _take(self, number: int, report: Report) -> None:
        """Take a report of an engine, on the thread that delivers it.

        Clients are called without the lock, since they send while they hold theirs.
        """
        with self._lock:
            if isinstance(report, Events):
                steps = tuple(map(self._named_step, report.steps))  # before choices end
                events = tuple(self._named(number, report.events))
                stats = None
                if report.stats is not None:
                    self._stats[number] = report.stats
                    stats = sum_of([self._stats[each] for each in sorted(self._stats)], report.stats.step_tokens)
                self._reports.append(Events(events, stats, steps))
            elif isinstance(report, AdapterReply):
                self._reply(number, report)
            elif isinstance(report, Ended):
                self._lose(number, report.error)
        with self._delivering:
            while self._reports:
                self._deliver(self._reports.popleft())

    def _named(self, number: int, events: Iterable[TokenEvent]) -> Iterable[TokenEvent]:
        """Yield events of an engine under the ids of its clients; those of choices that have moved are dropped."""
        for event in events:
            part = self._parts.get(event.request_id)
            if part is None or part.engine != number or event.choice not in part.choices:
                continue
            choice = part.choices[event.choice]
            choice.tokens += event.token_ids
            choice.logprobs += event.logprobs or ()
            if event.finish_reason is not None:
                del part.choices[event.choice]
                if not part.choices:
                    del self._parts[event.request_id]
            name = part.request.request_id
            yield event if event.request_id == name else replace(event, request_id=name)

    def _named_step(self, step: ComputedStep) -> ComputedStep:
        """Return a step with the clients' ids."""
        names = {name: part.request.request_id for name, part in self._parts.items() if part.sent is not part.request}
        shares = [replace(each, request_id=names.get(each.request_id, each.request_id)) for each in step.shares]
        return replace(step, shares=tuple(shares)) if names else step

    def _reply(self, number: int, reply: AdapterReply) -> None:
        """Pass on the reply to a `LoadAdapter` once all engines have answered: a failure of any is one of all."""
        replies = self._replies.get(reply.ticket)
        if replies is None:
            return
        replies[number] = reply.found
        self._reply_if_complete(reply.ticket)

    def _reply_if_complete(self, ticket: int) -> None:
        replies = self._replies[ticket]
        if not self._alive <= replies.keys() or not replies:
            return
        del self._replies[ticket]
        failures = [each for each in replies.values() if isinstance(each, FerrumError)]
        self._reports.append(AdapterReply(ticket, failures[0] if failures else next(iter(replies.values()))))

    def _lose(self, number: int, error: FerrumError | None) -> None:
        """Let the requests of an engine that has ended go on in others; without any, end as it did."""
        self._alive.discard(number)
        self._taking.discard(number)
        self._stats.pop(number, None)
        if not self._alive:
            self._reports.append(Ended(error))
            return
        if self._closing:
            return
        self._taking = self._taking or set(self._alive)  # rather those that were drained than none
        lost = [each for each in self._parts.values() if each.engine == number]
        choices = sum(len(each.choices) for each in lost)
        _LOG.error(
            "engine %d of %d has ended (%s): %d choices go on in others", number, len(self._hosts), error, choices
        )
        self._owners.forget(number)
        for part in lost:
            self._move(part)
        for ticket in list(self._replies):
            self._reply_if_complete(ticket)


def _begun(made: Made) -> _Choice:
    return _Choice(list(made.token_ids), list(made.logprobs or ()))


def _check_equal(first: EngineInfo, other: EngineInfo, number: int) -> None:
    """Refuse an engine whose requests could not go on elsewhere. Raises ConfigError."""
    different = [name for name in SAME if getattr(first, name) != getattr(other, name)]
    if different:
        fields = (f"{name} {getattr(other, name)!r} instead of {getattr(first, name)!r}" for name in different)
        raise ConfigError(f"engine {number} differs from the first one: {'; '.join(fields)}", param="replicas")
