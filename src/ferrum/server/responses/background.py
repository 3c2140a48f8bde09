"""`BackgroundRun`: generates a response while no client waits for it, and `EventLog`, its events.

Where it is kept is in `common.reply_store`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import ExitStack
from typing import Final

from ferrum.client.async_engine import AsyncStream
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError, CancelledError, as_api_error
from ferrum.server.common.reply_store import ReplyStore, StoredReply
from ferrum.server.responses.replies import Event, ResponsesBuilder

TAIL: Final = 256
"""Newest events that are always kept of a response."""

FORGOTTEN: Final = ApiError(
    404, "events are no longer stored; fetch the response without stream", code="events_not_found", param="stream"
)


class EventLog:
    """The events of a response, which any number of clients may read while it grows.

    Attributes:
        size: bytes that are kept.
        ended: no more events come.
    """

    def __init__(self) -> None:
        self.size = 0
        self.ended = False
        self._events: list[bytes] = []
        self._first = 0  # number of the first event that is kept
        self._grown = asyncio.Event()

    def add(self, event: bytes) -> None:
        """Add an event and wake the readers."""
        self._events.append(event)
        self.size += len(event)
        self._wake()

    def end(self) -> None:
        """Let readers end after the last event."""
        self.ended = True
        self._wake()

    def forget(self) -> int:
        """Keep only the newest events, which readers may be about to send, and return the freed bytes."""
        old = self._events[:-TAIL]
        freed = sum(map(len, old))
        self._first += len(old)
        self._events = self._events[-TAIL:]
        self.size -= freed
        return freed

    def check(self, number: int) -> None:
        """Raise ApiError, 404, if the event of that number is no longer kept."""
        if number < self._first:
            raise FORGOTTEN

    async def read(self, number: int, seconds: float) -> AsyncGenerator[bytes | None, None]:
        """Yield all events from a number on, and None after every `seconds` without one.

        Raises:
            ApiError: events that were not read yet are no longer kept.
        """
        while True:
            self.check(number)
            if new := self._events[number - self._first :]:
                number += len(new)
                yield b"".join(new)
            elif self.ended:
                return
            else:
                try:
                    await asyncio.wait_for(self._grown.wait(), seconds)
                except TimeoutError:
                    yield None

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


class BackgroundRun:
    """The generation of one response.

    Args:
        stored: the response, which is in the store while this runs.
        log: gets the events, or None.
    """

    def __init__(
        self,
        store: ReplyStore,
        stored: StoredReply,
        builder: ResponsesBuilder,
        stream: AsyncStream,
        dialect: Dialect,
        log: EventLog | None,
    ) -> None:
        self._store = store
        self._stored = stored
        self._builder = builder
        self._stream = stream
        self._dialect = dialect
        self._log = log

    def begin(self) -> None:
        """Write the events before the first delta."""
        self._write(self._builder.accepted())

    async def follow(self, leaving: ExitStack) -> None:
        """Read the stream to its end and store the response, then close `leaving`."""
        with leaving:
            try:
                async for place, delta in self._stream:
                    self._builder.add(place, delta)
                    self._write(self._builder.chunks(place, delta))
                self._write(self._builder.end_chunks())
            except Exception as error:  # noqa: BLE001 - whatever happens, the response gets an end
                self._write(self._builder.failure(as_api_error(error, self._builder.id)))

    def shown(self) -> bytes:
        """Return the response as it is now, as JSON."""
        return self._builder.unfinished().json_bytes()

    def cancel(self) -> None:
        """End the response as cancelled, and free what the engine holds for it within a step."""
        self._write(self._builder.failure(as_api_error(CancelledError("the response was cancelled"))))
        self._stream.abort()

    def _write(self, events: Iterable[Event]) -> None:
        """Write events, the last of which stores the response. Once it has ended, write nothing."""
        if self._stored.run is not self:
            return
        for each in events:
            if self._log is not None:
                data = self._dialect.event % {b"name": each.EVENT.encode(), b"json": each.json_bytes()}
                self._log.add(data)
                self._store.grow(self._stored, len(data))
        if self._stored.run is not self and self._log is not None:
            self._log.end()
