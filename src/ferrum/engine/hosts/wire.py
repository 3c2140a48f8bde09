"""Objects over a socket between two processes of ours: eight bytes that tell a length, then a pickle of that length."""

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
    """Send an object; waits for the other side where that is behind. Raises OSError."""
    end.sendall(_framed(item))


def _framed(item: object) -> bytes:
    data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class Reader:
    """Reads objects, from one thread at a time.

    Args:
        end: the socket, which is left as it is.
    """

    def __init__(self, end: socket) -> None:
        self._end = end
        self._come = bytearray()

    @property
    def ready(self) -> bool:
        """Whether the next object can be read without a look at the socket."""
        return self._missing() == 0

    def wait(self) -> Any:
        """The next object. Raises EOFError, OSError, and whatever an object raises that cannot be read."""
        while self._missing():
            self._receive(0)
        return self._take()

    def look(self) -> bool:
        """Take in what has come, without waiting for more; whether the next object is whole. Raises as `wait`."""
        with suppress(BlockingIOError):
            while self._missing():
                self._receive(MSG_DONTWAIT)
        return self.ready

    def _missing(self) -> int:
        """How many bytes the next object lacks at least."""
        if len(self._come) < _LENGTH.size:
            return _LENGTH.size - len(self._come)
        (length,) = _LENGTH.unpack_from(self._come)
        return max(0, _LENGTH.size + int(length) - len(self._come))

    def _receive(self, flags: int) -> None:
        data = self._end.recv(_CHUNK, flags)
        if not data:
            raise EOFError
        self._come += data

    def _take(self) -> Any:
        (length,) = _LENGTH.unpack_from(self._come)
        end = _LENGTH.size + length
        data = bytes(self._come[_LENGTH.size : end])
        del self._come[:end]
        return pickle.loads(data)


class Writer:
    """Sends objects in order, from any thread, and never waits for the other side.

    What the socket does not take at once is sent by a thread. It has no bound of its own: what may be sent has.

    Args:
        end: the socket. Once it cannot be written to, what is sent is dropped; its reader learns why.
    """

    def __init__(self, end: socket) -> None:
        self._end = end
        self._late: deque[bytes] = deque()
        # Held as itself where an interrupt may come: in the midst of a Condition one would leave it held for ever.
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._closed = False
        self._thread = threading.Thread(target=self._send_late, name="ferrum-writer", daemon=True)
        self._thread.start()

    def send(self, item: object) -> None:
        """Send an object, or have it sent."""
        data = _framed(item)
        with self._lock:
            if not self._late:
                data = data[self._send_now(data) :]
            if data and not self._closed:
                self._late.append(data)
                self._change.notify()

    def close(self) -> None:
        """Send nothing more. Idempotent."""
        with self._lock:
            self._closed = True
            self._change.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _send_now(self, data: bytes) -> int:
        """How many of the bytes need not be sent any more."""
        try:
            return self._end.send(data, MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _send_late(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._late or self._closed)
                if self._closed:
                    return
                data = self._late[0]
            with suppress(OSError):
                self._end.sendall(data)
            with self._change:
                self._late.popleft()
