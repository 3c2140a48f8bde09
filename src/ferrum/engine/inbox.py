"""The inbox of an engine process: messages of clients from a socket, and of threads in the process."""

from __future__ import annotations

import select
import socket
from queue import Empty, SimpleQueue
from typing import Protocol

from ferrum.engine.messages import Message, Shutdown
from ferrum.engine.wire import Reader


class Inbox(Protocol):
    """Messages in order. `SimpleQueue` is one implementation."""

    def put(self, item: Message) -> None:
        """Add a message; from any thread."""

    def get(self, block: bool = True, timeout: float | None = None) -> Message:
        """Return the oldest message. Raises `queue.Empty` after `timeout` seconds without one."""

    def empty(self) -> bool:
        """Return whether no message waits."""


class SocketInbox:
    """An inbox that reads the socket when the engine asks.

    A reading thread would have to wait for a processor behind the engine's step.

    Args:
        end: the socket. A `Shutdown` is added when its other side closes.
    """

    def __init__(self, end: socket.socket) -> None:
        self.reader = Reader(end)
        self._own: SimpleQueue[Message] = SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._poll = select.poll()
        for each in (end, self._woken):
            self._poll.register(each, select.POLLIN)
        self._closed = False

    def put(self, item: Message) -> None:
        self._own.put(item)
        self._wake.send(b" ")

    def empty(self) -> bool:
        return not self._arrived() and self._own.empty()

    def get(self, block: bool = True, timeout: float | None = None) -> Message:
        if self.empty() and block:
            self._poll.poll(None if timeout is None else 1e3 * timeout)
        if self._arrived():
            message: Message = self.reader.wait()
            return message
        if self._own.empty():
            raise Empty
        self._woken.recv(1)
        return self._own.get()

    def close(self) -> None:
        """Close the wake-up sockets, and leave the clients' socket open."""
        self._wake.close()
        self._woken.close()

    def _arrived(self) -> bool:
        """Return whether a whole message has arrived on the socket."""
        if not self._closed:
            try:
                return self.reader.poll()
            except (EOFError, OSError):
                self._closed = True
                self.put(Shutdown())
        return False
