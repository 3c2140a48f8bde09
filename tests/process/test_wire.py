"""Objects between two processes arrive whole and in order, and writers never block."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from queue import Empty

import pytest

from ferrum.engine.inbox import SocketInbox
from ferrum.engine.messages import Abort, Shutdown, Wake
from ferrum.engine.wire import Reader, Writer, send

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.fixture
def inbox(pair: Pair) -> Iterator[SocketInbox]:
    """At the second socket."""
    with closing(SocketInbox(pair[1])) as made:
        yield made


def test_a_writer_never_waits_for_a_slow_reader(pair: Pair) -> None:
    here, there = pair
    items = [b"x" * size for size in (0, 1, 70_000, 3_000_000, 5)] * 3
    writer = Writer(here)
    for item in items:  # far more than the buffer of a socket, before any read
        writer.send(item)
    reader = Reader(there)
    assert [reader.wait() for _ in items] == items
    writer.send("late")
    assert reader.wait() == "late"
    writer.close()
    writer.close()


def test_polling_reads_what_has_arrived_without_waiting(pair: Pair) -> None:
    here, there = pair
    reader = Reader(there)
    data = pickle.dumps({"a": list(range(50))})
    for piece in (*struct.pack("!Q", len(data)), *data[:-1]):
        assert not reader.poll()
        here.send(bytes([piece]))
    assert not reader.poll() and not reader.ready
    here.send(data[-1:] + b"\0")  # and the beginning of another one
    assert reader.poll() and reader.ready
    assert reader.wait() == {"a": list(range(50))}
    assert not reader.poll()


def test_messages_behind_a_large_one_are_read_with_it(pair: Pair, inbox: SocketInbox) -> None:
    """An engine polls once per step: a prompt of 128,000 tokens and an abort took nine steps to arrive."""
    for item in (Abort("x" * 150_000, 0), Abort("b", 0)):
        send(pair[0], item)
    received = []
    while not inbox.empty():
        received.append(inbox.get(block=False))
    assert [len(each.request_id) for each in received if isinstance(each, Abort)] == [150_000, 1]


def test_the_end_of_the_other_side_follows_everything_it_sent(pair: Pair) -> None:
    here, there = pair
    send(here, "last")
    here.close()
    reader = Reader(there)
    assert reader.poll() and reader.wait() == "last"
    for read in (reader.poll, reader.wait):
        with pytest.raises(EOFError):
            read()


def test_objects_without_a_reader_are_dropped(pair: Pair) -> None:
    here, there = pair
    writer = Writer(here)
    writer.send(b"x" * 3_000_000)  # its thread is in the middle of it
    there.close()
    for _ in range(3):
        writer.send("more")
    writer.close()


def test_an_inbox_holds_messages_from_the_socket_and_from_threads(pair: Pair, inbox: SocketInbox) -> None:
    here, _ = pair
    assert inbox.empty()
    with pytest.raises(Empty):
        inbox.get(timeout=0.001)
    send(here, Abort("a"))
    send(here, Abort("b"))
    assert not inbox.empty()
    assert [inbox.get(), inbox.get()] == [Abort("a"), Abort("b")]
    inbox.put(Wake())
    assert not inbox.empty() and inbox.get() == Wake() and inbox.empty()


@pytest.mark.parametrize("source", ["socket", "thread"])
def test_a_message_wakes_a_waiting_inbox(pair: Pair, inbox: SocketInbox, source: str) -> None:
    here, _ = pair
    later = threading.Timer(0.05, (lambda: send(here, Wake())) if source == "socket" else lambda: inbox.put(Wake()))
    later.start()
    began = time.monotonic()
    assert inbox.get(timeout=30) == Wake()
    assert time.monotonic() - began < 20
    later.join()


def test_an_inbox_without_clients_has_one_shutdown(pair: Pair, inbox: SocketInbox) -> None:
    here, _ = pair
    send(here, Abort("a"))
    here.close()
    assert [inbox.get(), inbox.get()] == [Abort("a"), Shutdown()]
    assert inbox.empty()
