"""Clients that read nothing are cut off; clients that read slowly are not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ferrum.server import launch
from serve_kit import LARGE, SLOW, Served, chat_parts, heard, post_bytes, serving, wait_for, wire

SWIFT = replace(SLOW, seconds_per_step=0.0, max_tokens_per_step=8192)


@contextmanager
def asked(*, stream: bool, request_seconds: float | None = None) -> Iterator[tuple[Served, socket.socket]]:
    """Run a server and a connection that has begun to receive a large reply."""
    with serving(chat_parts(SWIFT), request_seconds=request_seconds) as server, wire(server) as connection:
        connection.sendall(post_bytes("/v1/completions", **LARGE, stream=stream))
        assert connection.recv(8, socket.MSG_PEEK) == b"HTTP/1.1"
        wait_for(lambda: waits(server))
        yield server, connection


def waits(server: Served) -> bool:
    """Return whether data waits for its client."""
    return any(each.transport.get_write_buffer_size() for each in list(server.connections))


@pytest.mark.parametrize(("stream", "request_seconds"), [(False, None), (True, None), (True, 3.0)])
def test_client_that_reads_nothing_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, stream: bool, request_seconds: float | None
) -> None:
    if request_seconds is None:
        monkeypatch.setattr(launch, "WRITE_SECONDS", 1.0)
    with asked(stream=stream, request_seconds=request_seconds) as (server, connection):
        wait_for(lambda: not waits(server))
        server.wait_idle()
        assert not heard(connection).endswith((b"}", b"\r\n0\r\n\r\n")), "it got everything after all"
        assert 'ferrum:live_requests{engine="0",model_name="fake"} 0.0' in server.http.get("/metrics").text


def test_slow_client_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads for several times the limit for clients that read nothing."""
    monkeypatch.setattr(launch, "WRITE_SECONDS", 0.5)
    with asked(stream=True) as (_, connection):
        assert heard(connection, pause=0.02).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
