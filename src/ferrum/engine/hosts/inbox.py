"""The inbox of an engine that has a process for itself: what its clients send, and what its own threads put there."""

from __future__ import annotations

import select
import socket
from queue import Empty, SimpleQueue
from typing import Protocol

from ferrum.engine.hosts.wire import Reader
from ferrum.engine.messages import Message, Shutdown


class Inbox(Protocol):
    """Messages in order. A `SimpleQueue` is one."""

    def put(self, item: Message) -> None:
        """Add a message; from any thread."""
        ...

    def get(self, block: bool = True, timeout: float | None = None) -> Message:
        """Take the oldest one. Raises `queue.Empty` after `timeout` seconds without any."""
        ...

    def empty(self) -> bool:
        """Whether none has come."""
        ...


class SocketInbox:
    """Looks at the socket whenever the engine looks here. A thread that reads it would wait for a processor meanwhile,
    behind the engine's own step, and might miss the next one.

    Args:
        end: the socket; once its other side is closed, there is a `Shutdown`.
    """

    def __init__(self, end: socket.socket) -> None:
        self.reader = Reader(end)
        self._put: SimpleQueue[Message] = SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._news = select.poll()
        for each in (end, self._woken):
            self._news.register(each, select.POLLIN)
        self._closed = False

    def put(self, item: Message) -> None:
        """See `Inbox`."""
        self._put.put(item)
        self._wake.send(b" ")

    def empty(self) -> bool:
        """See `Inbox`."""
        return not self._come() and self._put.empty()

    def get(self, block: bool = True, timeout: float | None = None) -> Message:
        """See `Inbox`."""
        if self.empty() and block:
            self._news.poll(None if timeout is None else 1e3 * timeout)
        if self._come():
            message: Message = self.reader.wait()
            return message
        if self._put.empty():
            raise Empty
        self._woken.recv(1)
        return self._put.get()

    def close(self) -> None:
        """Nobody waits here any more. The socket is left as it is."""
        self._wake.close()
        self._woken.close()

    def _come(self) -> bool:
        """Whether there is a whole message of the socket's."""
        if not self._closed:
            try:
                return self.reader.look()
            except (EOFError, OSError):
                self._closed = True
                self.put(Shutdown())
        return False
