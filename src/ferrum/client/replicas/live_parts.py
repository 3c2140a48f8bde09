"""`LiveParts`: which engine runs which choices, and what each choice has generated so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from ferrum.core.errors import FerrumError
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import FinishReason, Made, Request, TokenEvent

MOST_DEATHS: Final = 3
"""Engines that may end in a row under a choice before it counts as the cause."""


@dataclass(slots=True)
class Choice:
    """What a choice has generated so far.

    Attributes:
        deaths: engines that ended since it got its last token.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    deaths: int = 0


@dataclass(slots=True)
class Part:
    """Choices of a request that run on one engine, or wait for one.

    Attributes:
        request: as its client sent it.
        sent: as the engine has it: the same, or one choice that goes on.
        choices: those that have not ended.
        engine: number of the engine; None: it waits.
        since: when it began to wait, in monotonic seconds.
        aborted: choices that the client has aborted.
    """

    request: Request
    sent: Request
    choices: dict[int, Choice]
    engine: int | None = None
    since: float = 0.0
    aborted: set[int] = field(default_factory=set)


class LiveParts:
    """The parts of live requests. Used under the lock of its host.

    Attributes:
        moved: choices that went on in another engine.
        mismatch: why the last engine could not join, if its bits differ; None once another one joined.
        most_deaths: see `MOST_DEATHS`.
    """

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}  # by the engines' ids
        self._numbers = count(1)
        self.moved = 0
        self.mismatch: FerrumError | None = None
        self.most_deaths = MOST_DEATHS

    def part_of(self, request: Request) -> Part:
        """Return a new part: a request with all its choices."""
        choices = {choice: Choice() for choice in request.choices}
        if request.made is not None:
            made = request.made
            choices[made.choice] = Choice(list(made.token_ids), list(made.logprobs or ()))
        return Part(request, request, choices)

    def place(self, part: Part, engine: int) -> None:
        """Let a part run on an engine."""
        part.engine = engine
        self._parts[part.sent.request_id] = part

    def wait(self, part: Part, now: float) -> None:
        """Let a part wait for an engine."""
        part.engine, part.since = None, now
        self._parts[part.sent.request_id] = part

    def take_waiting(self) -> list[Part]:
        """Return the parts that wait, in order. The caller places them."""
        return [each for each in self._parts.values() if each.engine is None]

    def waiting_since(self, before: float) -> list[Part]:
        """Return the parts that have waited since a time."""
        return [each for each in self._parts.values() if each.engine is None and each.since < before]

    def of_engine(self, engine: int) -> list[Part]:
        """Return the parts of an engine."""
        return [each for each in self._parts.values() if each.engine == engine]

    def of_request(self, name: str) -> list[Part]:
        """Return the parts of a request, by its client's id."""
        return [each for each in self._parts.values() if each.request.request_id == name]

    def runs_on(self, engine: int) -> bool:
        """Return whether an engine has parts."""
        return any(each.engine == engine for each in self._parts.values())

    def loads(self, engines: Iterable[int]) -> dict[int, int]:
        """Return the number of choices of each engine."""
        loads = dict.fromkeys(engines, 0)
        for part in self._parts.values():
            if part.engine in loads:
                loads[part.engine] += len(part.choices)
        return loads

    def move(self, part: Part, *, dead: bool = False) -> Iterator[Part]:
        """Forget a part and yield its choices as parts, each of which goes on after what it has generated.

        Args:
            part: of an engine.
            dead: the engine has ended.
        """
        del self._parts[part.sent.request_id]
        request = part.request
        params = request.params if request.params.n == 1 else request.params.but(n=1)
        for number, choice in part.choices.items():
            logprobs = None if request.params.logprobs is None else tuple(choice.logprobs)
            name = f"{request.request_id}#{number}.{next(self._numbers)}"
            made = Made(number, tuple(choice.tokens), logprobs)
            self.moved += 1
            choice.deaths += dead
            yield Part(request, replace(request, request_id=name, params=params, made=made), {number: choice})

    def end(self, part: Part, choice: int) -> None:
        """Forget a choice."""
        del part.choices[choice]
        if not part.choices:
            self._parts.pop(part.sent.request_id, None)

    def named(self, engine: int, events: Iterable[TokenEvent]) -> Iterator[TokenEvent]:
        """Yield events of an engine under the ids of its clients.

        Those of choices that have moved are dropped. So is the end of choices that an engine aborts since it shuts
        down: they go on elsewhere.
        """
        for event in events:
            part = self._parts.get(event.request_id)
            if part is None or part.engine != engine or event.choice not in part.choices:
                continue
            if event.finish_reason is FinishReason.ABORT and event.choice not in part.aborted:
                continue
            choice = part.choices[event.choice]
            choice.tokens += event.token_ids
            choice.logprobs += event.logprobs or ()
            if event.token_ids:
                choice.deaths = 0
            if event.finish_reason is not None:
                self.end(part, event.choice)
            name = part.request.request_id
            yield event if event.request_id == name else replace(event, request_id=name)

    def new_names(self) -> dict[str, str]:
        """Return the clients' ids of requests that engines know by others."""
        return {name: part.request.request_id for name, part in self._parts.items() if part.sent is not part.request}
