"""`ReplyBuilder`: the reply to one request, from the engine's deltas: events of a stream, or one JSON object.

Both are the same fold. A dialect says what the begin, the growth and the end of an item look like, and what a whole
reply does. How replies are sent is in `generation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from ferrum.client.request_output import Delta
from ferrum.server.chat.ask import Asked
from ferrum.server.chat.turn import Counts, Item, Step, Turn, finish_of
from ferrum.server.common.json_bodies import Reply

Piece = TypeVar("Piece")


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """What all chunks of a reply share; `fingerprint` names the arithmetic."""

    id: str
    created: int
    model: str
    fingerprint: str


class ReplyBuilder(Generic[Piece]):
    """Builds the reply to one client's request.

    Args:
        header: of every chunk.
        asked: the engine's requests for it.

    Attributes:
        CALL_PREFIX: of the ids of calls.
        uniform: chunks with nothing but text differ only in that text.
        id: of the reply.
        requests: for the engine, one per prompt.
        usage: tokens so far.
        turns: the choices that have begun, by place of the request and index.
    """

    CALL_PREFIX: ClassVar[str] = ""
    uniform: bool = False

    def __init__(self, header: ReplyHeader, asked: Asked) -> None:
        self.id = header.id
        self.requests = asked.requests
        self.usage = Counts(asked.requests, asked.page)
        self.turns: dict[tuple[int, int], Turn] = {}
        self.explanation = asked.explanation
        self._headers = asked.headers

    def headers(self, first: Delta | None) -> Mapping[str, str]:
        """Return headers of the response; `first` is the first delta, None if something was sent before it."""
        return self._headers(first)

    def add(self, place: int, delta: Delta) -> None:
        """Count a delta of the request at `place`. Raises the FerrumError that ended its choice."""
        finish_of(delta)
        self.usage.count(place, delta)

    def turn(self, place: int, index: int) -> Turn:
        """Return a choice, which begins if it has not."""
        key = (place, index)
        if key not in self.turns:
            self.turns[key] = Turn(self.id, index, self.CALL_PREFIX)
        return self.turns[key]

    def pieces(self, place: int, delta: Delta) -> Iterator[Piece]:
        """Yield what the dialect writes about the items for a delta that was added."""
        for step, item, text in self.turn(place, delta.index).steps(delta):
            if step is Step.GROWN:
                yield from self.grown(item, text)
            else:
                yield from self.begun(item) if step is Step.BEGUN else self.ended(item)

    def fold(self, place: int, delta: Delta) -> None:
        """Add a delta to a reply that is sent whole. Raises as `add`."""
        self.add(place, delta)
        turn = self.turn(place, delta.index)
        turn.deltas.append(delta)
        for _ in turn.steps(delta):
            pass

    def begun(self, item: Item) -> Iterable[Piece]:  # noqa: ARG002 - for dialects that write it
        """Return what is written when an item begins."""
        return ()

    def grown(self, item: Item, text: str) -> Iterable[Piece]:  # noqa: ARG002 - for dialects that write it
        """Return what is written for new text of an item."""
        return ()

    def ended(self, item: Item) -> Iterable[Piece]:  # noqa: ARG002 - for dialects that write it
        """Return what is written when an item ends."""
        return ()

    def chunks(self, place: int, delta: Delta) -> Iterable[Reply]:
        """Return the chunks of a stream for a delta that was added."""
        raise NotImplementedError

    def end_chunks(self) -> Iterable[Reply]:
        """Return the chunks after the last delta."""
        raise NotImplementedError

    def whole(self) -> Reply:
        """Return the whole reply, after the last delta was folded."""
        raise NotImplementedError
