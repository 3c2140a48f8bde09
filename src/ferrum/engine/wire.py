"""Pickled objects over a socket between two processes of this package, each after its length in eight bytes."""

from __future__ import annotations

import pickle
import struct
import threading
from collections import deque
from contextlib import suppress
from socket import MSG_DONTWAIT, socket
from typing import Any, Final

_LENGTH: Final = struct.Struct("!Q")
_CHUNK: Final = 1 << 16


def send(end: socket, item: object) -> None:
    """Send an object; block while the socket's buffer is full. Raises OSError."""
    end.sendall(_framed(item))


def _framed(item: object) -> bytes:
    data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class Reader:
    """Reader of objects, for one thread at a time.

    Args:
        end: the socket. It is not closed here.
    """

    def __init__(self, end: socket) -> None:
        self._end = end
        self._received = bytearray()

    @property
    def ready(self) -> bool:
        """Whether the next object has arrived."""
        return self._missing() == 0

    def wait(self) -> Any:
        """Wait for the next object. Raises EOFError, OSError, and any error of unpickling."""
        while self._missing():
            self._receive(0)
        return self._take()

    def poll(self) -> bool:
        """Read without blocking; return whether the next object has arrived. Raises as `wait`."""
        with suppress(BlockingIOError):
            while self._missing():
                self._receive(MSG_DONTWAIT)
        return self.ready

    def _missing(self) -> int:
        """Return how many bytes of the next object are missing at least."""
        if len(self._received) < _LENGTH.size:
            return _LENGTH.size - len(self._received)
        (length,) = _LENGTH.unpack_from(self._received)
        return max(0, _LENGTH.size + int(length) - len(self._received))

    def _receive(self, flags: int) -> None:
        data = self._end.recv(_CHUNK, flags)
        if not data:
            raise EOFError
        self._received += data

    def _take(self) -> Any:
        (length,) = _LENGTH.unpack_from(self._received)
        end = _LENGTH.size + length
        data = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return pickle.loads(data)


class Writer:
    """Writer of objects in order, from any thread, that never blocks.

    A thread sends what the socket does not take at once. The backlog is bounded by the limits on what clients send.

    Args:
        end: the socket. Objects are dropped once it cannot be written to; the reader of the socket reports why.
    """

    def __init__(self, end: socket) -> None:
        self._end = end
        self._backlog: deque[bytes] = deque()
        # `send` takes the lock directly: an interrupt inside a Condition would leave it locked forever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._thread = threading.Thread(target=self._send_backlog, name="ferrum-writer", daemon=True)
        self._thread.start()

    def send(self, item: object) -> None:
        """Send an object, now or from the thread."""
        data = _framed(item)
        with self._lock:
            if not self._backlog:
                data = data[self._send_now(data) :]
            if data and not self._closed:
                self._backlog.append(data)
                self._changed.notify()

    def close(self) -> None:
        """Stop sending. Idempotent."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _send_now(self, data: bytes) -> int:
        """Send without blocking; return how many bytes are sent or dropped."""
        try:
            return self._end.send(data, MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _send_backlog(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._backlog or self._closed)
                if self._closed:
                    return
                data = self._backlog[0]
            with suppress(OSError):
                self._end.sendall(data)
            with self._changed:
                self._backlog.popleft()
