"""`ReplyStore`: replies that clients fetch, continue and delete, limited in number and bytes.

It holds OpenAI's stored responses and Anthropic's threads, each by the id of its reply. What the items of turns are,
and the errors for missing replies, is up to the dialects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from pydantic_core import from_json

from ferrum.server.common.error_replies import ApiError

OPTIONS: Final = "--max-stored-responses, --stored-responses-mib"

GONE: Final = f"it was deleted, never stored for this API key, or evicted as the least recently used ({OPTIONS})"


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The items of one reply. Replies that continue the same one share its turn.

    Attributes:
        before: the turn that it continues.
        asked, said: its items of input and output, each a JSON array.
    """

    before: Turn | None
    asked: bytes
    said: bytes = b"[]"

    @property
    def size(self) -> int:
        """Its bytes, without earlier turns."""
        return len(self.asked) + len(self.said)

    def back(self) -> Iterator[Turn]:
        """Yield this turn, then the earlier ones."""
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.before

    def input_items(self) -> list[Any]:
        """Return the items that the response was generated from, with those of earlier turns."""
        return [*all_items(self.before), *from_json(self.asked)]


def all_items(turn: Turn | None) -> list[Any]:
    """Return the items of a turn and of those before it."""
    turns = [] if turn is None else [*turn.back()][::-1]
    return [item for each in turns for part in (each.asked, each.said) for item in from_json(part)]


class Run(Protocol):
    """A response in progress in the background."""

    def shown(self) -> bytes:
        """Return the response as it is now, as JSON."""

    def cancel(self) -> None:
        """End it as cancelled."""


class Log(Protocol):
    """The events of a background response."""

    @property
    def size(self) -> int:
        """Bytes that it keeps."""

    def forget(self) -> int:
        """Keep only the newest events and return the freed bytes."""


@dataclass(slots=True, eq=False)
class StoredReply:
    """A reply in the store.

    Attributes:
        turn: its items; without output while it is in progress.
        json: the whole reply; empty while it is in progress, and of threads.
        background: it was started in the background.
        run: its generation, while it is in progress in the background.
        log: its events, if it was started as a stream in the background.
        deleted: a client has deleted it, perhaps in progress.
    """

    tenant: str
    id: str
    turn: Turn
    json: bytes = b""
    background: bool = False
    run: Run | None = None
    log: Log | None = None
    deleted: bool = False

    @property
    def size(self) -> int:
        """Its bytes, without its turns."""
        return len(self.json) + (0 if self.log is None else self.log.size)

    def shown(self) -> bytes:
        """Return the response as it is now, as JSON."""
        return self.json if self.run is None else self.run.shown()


class ReplyStore:
    """The stored replies of all API keys. Used by the event loop only.

    Those in progress are never evicted. A turn is counted once, and kept while any stored reply or later turn needs it.

    Args:
        most: number of replies.
        most_bytes: of all replies and their turns, as JSON.

    Attributes:
        size: bytes in use.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, str], StoredReply] = OrderedDict()  # least recently used first
        self._users: dict[Turn, int] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._held)

    def find(self, tenant: str, id: str) -> StoredReply | None:
        """Return a reply of the tenant and mark it as used."""
        stored = self._held.get((tenant, id))
        if stored is not None:
            self._held.move_to_end((tenant, id))
        return stored

    def begin(self, stored: StoredReply) -> None:
        """Add a response in progress. Raises ApiError, 429, if those in progress leave no room for it."""
        running = [each for each in self._held.values() if each.run is not None]
        size = sum(each.size + each.turn.size for each in running) + stored.turn.size
        if len(running) >= self._most or size > self._most_bytes:
            reason = f"{len(running)} background responses are in progress, with {size} bytes; retry later ({OPTIONS})"
            raise ApiError(429, reason, code="store_full", headers={"retry-after": "1"})
        self._put(stored)

    def finish(self, stored: StoredReply, json: bytes, said: bytes) -> None:
        """Add a reply at its end, or complete the one in progress; a deleted one stays deleted.

        Args:
            json: see `StoredReply`.
            said: see `Turn`.
        """
        if self._held.get((stored.tenant, stored.id)) is stored:
            self._drop(stored)
        stored.run = None
        stored.json = json
        stored.turn = replace(stored.turn, said=said)
        if not stored.deleted:
            self._put(stored)

    def grow(self, stored: StoredReply, size: int) -> None:
        """Count an event that the log of a response has got; without room the log forgets old events."""
        if stored.log is None or self._held.get((stored.tenant, stored.id)) is not stored:
            return
        self.size += size
        if stored.log.size > self._most_bytes // 2:  # leave room for the response
            self.size -= stored.log.forget()
        self._evict()
        if self.size > self._most_bytes:
            self.size -= stored.log.forget()

    def delete(self, stored: StoredReply) -> None:
        """Remove a response and end it if it is in progress; later ones that continue it keep its items."""
        self._drop(stored)
        stored.deleted = True
        if stored.run is not None:
            stored.run.cancel()

    def _put(self, stored: StoredReply) -> None:
        before = self._held.get((stored.tenant, stored.id))
        if before is not None:  # clients may use an id again
            self._drop(before)
        if stored.run is None and stored.size + sum(each.size for each in stored.turn.back()) > self._most_bytes:
            return  # nothing else would have room
        self._held[stored.tenant, stored.id] = stored
        self.size += stored.size
        for turn in stored.turn.back():
            self._users[turn] = self._users.get(turn, 0) + 1
            if self._users[turn] > 1:
                break
            self.size += turn.size
        self._evict()

    def _drop(self, stored: StoredReply) -> None:
        del self._held[stored.tenant, stored.id]
        self.size -= stored.size
        for turn in stored.turn.back():
            self._users[turn] -= 1
            if self._users[turn]:
                break
            del self._users[turn]
            self.size -= turn.size

    def _evict(self) -> None:
        """Remove the least recently used responses until the rest fits."""
        while len(self._held) > self._most or self.size > self._most_bytes:
            oldest = next((each for each in self._held.values() if each.run is None), None)
            if oldest is None:
                return
            self._drop(oldest)
