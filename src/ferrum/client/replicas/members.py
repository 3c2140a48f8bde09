"""`Members`: the engines behind one host: which of them take requests, what they must share, and their adapters."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, Protocol, TypeAlias

from ferrum.client.replicas.prefix_owners import PrefixOwners
from ferrum.core.errors import EngineDead, FerrumError, ReplicaMismatch
from ferrum.core.lora_option import AdapterFacts
from ferrum.engine.host import Host
from ferrum.engine.messages import AdapterReply, EngineInfo, EngineStats, LoadAdapter, UnloadAdapter

SAME: Final = ("vocab_size", "max_sequence_length", "numerics_id", "weights", "kv_format", "page_size")
"""Fields that engines must share so that a request may run on any of them."""

PAGE: Final = 64
"""Tokens of a link of the hash chain, for engines without pages."""

Files: TypeAlias = Sequence[tuple[str, str]]
"""Digests of files by name, see `EngineInfo.files`."""


class Joins(Protocol):
    """What a source calls, see `ReplicaHost`."""

    def join(self, host: Host) -> int: ...

    def leave(self, number: int) -> None: ...

    def give_up(self, error: FerrumError | None) -> None: ...


class Source(Protocol):
    """Where engines come from: processes of this machine, or replicas of a cluster."""

    def start(self, joins: Joins) -> None:
        """Let engines join, and return when requests can be served. Raises FerrumError."""

    def ended(self, number: int) -> None:
        """Take notice that an engine has ended, or counts as dead."""

    def close(self) -> None:
        """Let no more engines join. Idempotent."""


@dataclass(slots=True, eq=False)
class Member:
    """An engine.

    Attributes:
        number: of the engine; none is used twice.
        taking: it takes requests.
        joined: it has taken requests.
        ended: it has ended.
        heard: when it reported last, or got a request after it had none, in monotonic seconds.
        stats: its latest statistics.
        adapters: keys of its adapters, loaded for the others before it joined.
        loading: keys of adapters by ticket, while it joins.
        failure: why it cannot have an adapter of the others.
    """

    number: int
    host: Host
    info: EngineInfo | None = None
    taking: bool = False
    joined: bool = False
    ended: bool = False
    heard: float = 0.0
    stats: EngineStats | None = None
    adapters: set[str] = field(default_factory=set)
    loading: dict[int, str] = field(default_factory=dict)
    failure: FerrumError | None = None


@dataclass(slots=True)
class _Load:
    """An adapter that all engines load.

    Attributes:
        waiting: numbers of the engines that have not replied.
    """

    path: str
    waiting: set[int]
    found: list[AdapterFacts | FerrumError] = field(default_factory=list)


class Members:
    """The engines of a host.

    Args:
        lock: of the host; it is held in all methods but `catch_up` and `info`.
        files: that engines must have.

    Attributes:
        owners: chooses engines by the beginnings of prompts.
    """

    def __init__(self, lock: threading.Lock, files: Files) -> None:
        self._changed = threading.Condition(lock)
        self._members: dict[int, Member] = {}
        self._numbers = count()
        self._facts: dict[str, object] = _digests(files)
        self._info: EngineInfo | None = None
        self._adapters: dict[str, str] = {}  # paths by key
        self._loads: dict[int, _Load] = {}  # by ticket of the client
        self._tickets = count(-1, -1)  # those of clients are not negative
        self.owners = PrefixOwners(PAGE)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def info(self) -> EngineInfo:
        """Return what the engines serve."""
        assert self._info is not None
        return self._info

    def get(self, number: int) -> Member | None:
        """Return an engine, or None if it has ended."""
        return self._members.get(number)

    def of(self, number: int) -> Member:
        """Return an engine that has not ended."""
        return self._members[number]

    def taking(self) -> list[Member]:
        """Return the engines that take requests."""
        return [each for each in self._members.values() if each.taking]

    def leaving(self) -> list[Member]:
        """Return the engines that have taken requests and take no more."""
        return [each for each in self._members.values() if each.joined and not each.taking]

    def add(self, host: Host) -> Member:
        """Return a new engine, which takes no requests yet."""
        member = Member(next(self._numbers), host, heard=time.monotonic())
        self._members[member.number] = member
        return member

    def drop(self, number: int) -> None:
        """Forget an engine."""
        member = self._members.pop(number, None)
        if member is not None:
            member.ended, member.taking = True, False
            self.owners.forget(number)
            self._changed.notify_all()

    def check(self, member: Member, info: EngineInfo) -> None:
        """Refuse an engine whose requests could not go on in the others. Raises ReplicaMismatch."""
        facts = {**{name: getattr(info, name) for name in SAME}, **_digests(info.files)}
        different = [name for name, fact in facts.items() if self._facts.get(name, fact) != fact]
        if different:
            texts = (f"{name} {facts[name]!r} instead of {self._facts[name]!r}" for name in different)
            raise ReplicaMismatch(f"engine {member.number} differs from the others: {'; '.join(texts)}")
        self._facts.update(facts)
        member.info = info
        if self._info is None:
            self._info = info
            self.owners = PrefixOwners(info.page_size or PAGE)
        else:
            self._info = replace(self._info, kv_capacity=min(self._info.kv_capacity, info.kv_capacity))

    # Adapters

    def catch_up(self, member: Member) -> None:
        """Let an engine load the adapters of the others, then let it take requests. The lock is not held.

        Raises:
            ReplicaMismatch: one of its adapters differs.
            FerrumError: an adapter cannot be loaded, or the engine has ended.
        """
        with self._changed:
            while True:
                if member.ended:
                    raise EngineDead("the engine ended while it joined")
                if member.failure is not None:
                    raise member.failure
                missing = {key: path for key, path in self._adapters.items() if key not in member.adapters}
                if not missing and not self._loads:
                    member.taking = member.joined = True
                    return
                for key, path in missing.items():
                    if key not in member.loading.values():
                        ticket = next(self._tickets)
                        member.loading[ticket] = key
                        member.host.send(LoadAdapter(ticket, path))
                self._changed.wait()

    def load(self, message: LoadAdapter) -> list[AdapterReply]:
        """Let all engines load an adapter; return the reply if there are none."""
        joined = [each for each in self._members.values() if each.joined]
        self._loads[message.ticket] = _Load(message.path, {each.number for each in joined})
        for each in joined:
            each.host.send(message)
        return self.complete_loads()

    def unload(self, message: UnloadAdapter) -> None:
        """Let all engines free an adapter."""
        self._adapters.pop(message.key, None)
        for each in self._members.values():
            if each.info is not None:
                each.adapters.discard(message.key)
                each.host.send(message)

    def reply(self, member: Member, reply: AdapterReply) -> AdapterReply | None:
        """Take the reply of an engine; return that to the client once all have answered."""
        if reply.ticket in member.loading:
            key = member.loading.pop(reply.ticket)
            if isinstance(reply.found, FerrumError):
                member.failure = reply.found
            elif reply.found.key != key:
                difference = f"digest {reply.found.key} instead of {key}"
                member.failure = ReplicaMismatch(
                    f"engine {member.number} differs from the others: adapter {reply.found.path}: {difference}"
                )
            member.adapters.add(key)
            self._changed.notify_all()
            return None
        load = self._loads.get(reply.ticket)
        if load is None or member.number not in load.waiting:
            return None
        load.waiting.discard(member.number)
        load.found.append(reply.found)
        if not isinstance(reply.found, FerrumError):
            member.adapters.add(reply.found.key)
        return next(iter(self.complete_loads()), None)

    def complete_loads(self) -> list[AdapterReply]:
        """Return the replies to clients for adapters that all living engines have answered."""
        replies = []
        for ticket, load in list(self._loads.items()):
            load.waiting &= self._members.keys()
            if not load.waiting:
                del self._loads[ticket]
                replies.append(AdapterReply(ticket, self._agreed(load)))
                self._changed.notify_all()
        return replies

    def _agreed(self, load: _Load) -> AdapterFacts | FerrumError:
        """Return what all engines loaded; a failure of any is one of all, and nothing stays loaded."""
        if not load.found:
            return EngineDead("no engine is ready to load an adapter")
        facts = [each for each in load.found if not isinstance(each, FerrumError)]
        failures = [each for each in load.found if isinstance(each, FerrumError)]
        keys = {each.key for each in facts}
        if not failures and len(keys) == 1:
            self._adapters[facts[0].key] = load.path
            return facts[0]
        for key in keys - self._adapters.keys():
            self.unload(UnloadAdapter(key))
        found = " and ".join(sorted(keys))
        return failures[0] if failures else ReplicaMismatch(f"adapter {load.path} differs between engines: {found}")


def _digests(files: Files) -> dict[str, object]:
    return {f"digest of {name}": digest for name, digest in files}
