"""`HeldAdapters`: the adapters of an engine, read on another thread and held up to a limit of bytes.

A request waits outside the scheduler until all its adapters are in memory, and keeps them there until it ends. Names of
adapters are the clients' (`adapter_registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.errors import CapacityError, CheckpointError, FerrumError, RequestError, as_step_error
from ferrum.core.lora_option import AdapterFacts
from ferrum.core.memory_plan import size
from ferrum.core.threads import yield_to_steps
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.inbox import Inbox
from ferrum.engine.messages import AdapterCounts, AdapterRead, AdapterReply, LoadAdapter
from ferrum.engine.waiting_requests import WaitingRequests, last_events

if TYPE_CHECKING:
    from ferrum.engine.engine_executor import EngineExecutor

DEFAULT_ADAPTER_BYTES: Final = 1 << 30

KEPT_UNLOADED: Final = 1000
"""Unloaded adapters that can still be read again, for requests that chose them before and arrive after."""


@dataclass(slots=True)
class _Known:
    """An adapter that was loaded once, so that it can be read again.

    Attributes:
        wanted: a client has a name for it. Without one it is freed when its last request ends.
    """

    facts: AdapterFacts
    wanted: bool = True


class HeldAdapters:
    """Adapters by their keys. The engine's thread owns it.

    Args:
        executor: holds their numbers.
        inbox: gets an `AdapterRead` for each file, from another thread.
        limit: bytes of all adapters in memory. The least recently used ones that no request uses go first.
        live: whether a request has choices that have not ended.

    Attributes:
        waiting: requests whose adapters are not in memory.
        using: requests that run with adapters, by id.
    """

    def __init__(self, executor: EngineExecutor, inbox: Inbox, limit: int, live: Callable[[str], bool]) -> None:
        self._executor, self._inbox, self._limit, self._live = executor, inbox, limit, live
        self._reader: ThreadPoolExecutor | None = None
        self._known: dict[str, _Known] = {}  # those that were unloaded last come last
        self._held: dict[str, int] = {}  # bytes by key, the least recently used first
        self._reading: dict[str, int] = {}  # bytes of those that are read again
        self.using: dict[str, Request] = {}
        self.waiting = WaitingRequests()
        self._loads = self._evictions = 0

    # Loading

    def load(self, message: LoadAdapter) -> None:
        """Begin to read an adapter's files; `take` has the reply."""
        self._read(message.path, message.ticket, None)

    def take(self, read: AdapterRead) -> tuple[list[TokenEvent], AdapterReply | None]:
        """Hold an adapter that was read; return the last events of requests that it fails, and a reply."""
        if read.key is not None:
            self._reading.pop(read.key, None)
            events = self._take_again(read.key, read.found)
            self._drop_unwanted()  # its requests may have ended meanwhile
            return events, None
        assert read.ticket is not None
        if isinstance(read.found, FerrumError):
            return [], AdapterReply(read.ticket, read.found)
        facts, prepared = read.found
        try:
            if facts.nbytes > self._limit:
                raise CapacityError(self._too_large(facts.nbytes))
            known = facts.key in self._held or facts.key in self._reading
            if not known and self._make_room(facts.nbytes, self._wanted_keys()):
                self._hold(facts, prepared)  # else it is read again when a request needs it
        except Exception as error:  # noqa: BLE001 - an adapter must not end the engine
            return [], AdapterReply(read.ticket, as_step_error(error))
        self._known[facts.key] = _Known(facts)
        return [], AdapterReply(read.ticket, facts)

    def _take_again(self, key: str, found: tuple[AdapterFacts, Any] | FerrumError) -> list[TokenEvent]:
        """Hold an adapter that waiting requests need; return their last events if it cannot be read."""
        known = self._known[key].facts
        try:
            if isinstance(found, FerrumError):
                raise found
            facts, prepared = found
            if facts.key != key:
                raise CheckpointError(f"the adapter at {known.path!r} has changed since it was loaded: load it again")
            if key not in self._held:
                self._hold(facts, prepared)
        except Exception as error:  # noqa: BLE001 - as in `take`
            return self._fail(key, as_step_error(error))
        return []

    def _fail(self, key: str, error: FerrumError) -> list[TokenEvent]:
        events = []
        for request in self.waiting.requests():
            if key in keys_of(request) and (left := self.waiting.take(request)) is not None:
                events += last_events(request, FinishReason.ERROR, error, left)
        return events

    def unload(self, key: str) -> None:
        """Free an adapter when its last request ends; ignore an unknown one."""
        if key in self._known:
            self._known[key] = _Known(self._known.pop(key).facts, wanted=False)
            self._drop_unwanted()

    # Requests

    def add(self, request: Request, ended: frozenset[int] = frozenset()) -> list[TokenEvent]:
        """Let a request wait for its adapters, see `ready`; return its last events if it is refused.

        Args:
            request: the request, with adapters.
            ended: the choices that have ended already.
        """
        keys = keys_of(request)
        unknown = next((each.name for each in request.adapters if each.use.key not in self._known), None)
        error: FerrumError | None = None
        if unknown is not None:
            error = RequestError(f"no adapter {unknown!r} is loaded", param="adapters")
        elif (nbytes := sum(self._known[key].facts.nbytes for key in keys)) > self._limit:
            error = CapacityError(self._too_large(nbytes))
        if error is not None:
            return last_events(request, FinishReason.ERROR, error, ended)
        self.waiting.hold(request, ended)
        return []

    def ready(self) -> list[tuple[Request, frozenset[int]]]:
        """Remove and return waiting requests whose adapters are held, with the choices that have ended already.

        Files of the others are read if there is room. While the oldest one waits for room, no later one begins: they
        could keep it waiting forever.
        """
        found = []
        kept = {key for request in self.using.values() for key in keys_of(request)}
        for request in self.waiting.requests():
            keys = keys_of(request)
            kept |= keys
            missing = [key for key in keys if key not in self._held]
            if not missing:
                left = self.waiting.take(request)
                assert left is not None
                self.using[request.request_id] = request
                for key in keys:
                    self._held[key] = self._held.pop(key)  # now the most recently used
                found.append((request, left))
            elif not self._fetch([key for key in missing if key not in self._reading], kept):
                break
        return found

    def release(self) -> None:
        """Note which requests have ended."""
        self.using = {name: request for name, request in self.using.items() if self._live(name)}
        self._drop_unwanted()

    def _fetch(self, keys: list[str], kept: set[str]) -> bool:
        """Begin to read adapters again; return False if there is no room for one."""
        for key in keys:
            facts = self._known[key].facts
            if not self._make_room(facts.nbytes, kept):
                return False
            self._reading[key] = facts.nbytes
            self._read(facts.path, None, key)
        return True

    # Memory

    def _hold(self, facts: AdapterFacts, prepared: Any) -> None:
        self._executor.load_adapter(facts.key, prepared)
        self._held[facts.key] = facts.nbytes
        self._loads += 1

    def _make_room(self, nbytes: int, kept: Iterable[str]) -> bool:
        """Evict adapters that are not `kept` until there is room; evict none if there cannot be enough."""
        taken = sum(self._held.values()) + sum(self._reading.values())
        evicted = []
        for key in self._held:
            if taken + nbytes <= self._limit:
                break
            if key not in kept:
                evicted.append(key)
                taken -= self._held[key]
        if taken + nbytes > self._limit:
            return False
        for key in evicted:
            self._free(key)
            self._evictions += 1
        return True

    def _free(self, key: str) -> None:
        self._executor.unload_adapter(key)
        del self._held[key]

    def _drop_unwanted(self) -> None:
        """Free what was unloaded and no request needs, and forget the oldest facts of it."""
        used = self._wanted_keys().union(self._reading)
        unwanted = [key for key, known in self._known.items() if not (known.wanted or key in used)]
        for key in unwanted:
            if key in self._held:
                self._free(key)
        for key in unwanted[:-KEPT_UNLOADED]:
            del self._known[key]

    def _wanted_keys(self) -> set[str]:
        """Return the keys that requests use or wait for."""
        return {key for request in (*self.using.values(), *self.waiting.requests()) for key in keys_of(request)}

    def _too_large(self, nbytes: int) -> str:
        return f"adapters of {size(nbytes)} are larger than the limit of {size(self._limit)} (raise --lora-gib)"

    # Reports

    def counts(self) -> AdapterCounts:
        """Return what statistics show."""
        return AdapterCounts(
            loaded=len(self._held),
            nbytes=sum(self._held.values()),
            loads=self._loads,
            evictions=self._evictions,
            running=_names(self.using.values()),
            waiting=_names(self.waiting.requests()),
        )

    def close(self) -> None:
        """Read no more files."""
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)

    # On the thread that reads

    def _read(self, path: str, ticket: int | None, key: str | None) -> None:
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, "ferrum-adapters", yield_to_steps)
        self._reader.submit(_read, self._executor, self._inbox, path, ticket, key)


def _read(executor: EngineExecutor, inbox: Inbox, path: str, ticket: int | None, key: str | None) -> None:
    found: tuple[AdapterFacts, Any] | FerrumError
    try:
        found = executor.read_adapter(path)
    except FerrumError as error:
        found = error
    except BaseException as error:  # noqa: BLE001 - a bad file must not harm the engine
        found = CheckpointError(f"the adapter at {path!r} cannot be read: {type(error).__name__}: {error}")
    inbox.put(AdapterRead(found, ticket, key))


def keys_of(request: Request) -> set[str]:
    """Return the keys of a request's adapters."""
    return {each.use.key for each in request.adapters}


def _names(requests: Iterable[Request]) -> tuple[str, ...]:
    return tuple(sorted({each.name for request in requests for each in request.adapters}))
