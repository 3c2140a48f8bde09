"""`ferrum serve` greets a terminal with three lines and logs text there; otherwise it logs JSON objects."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from ferrum.server.launch import greeting
from ferrum.sources.hub import BUILT_IN

COMMAND = [sys.executable, "-m", "ferrum", "serve", BUILT_IN, "--port", "0", "--engine-host", "thread"]


@contextmanager
def on_terminal(*options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command on a new terminal; yield it and the terminal's other end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, *options], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def shown(terminal: int, until: bytes | None = None) -> str:
    """Return what a terminal shows up to a text, or to the end of its program."""
    text = b""
    with suppress(OSError):  # Linux ends a terminal without a program with EIO
        while (until is None or until not in text) and (piece := os.read(terminal, 4096)):
            text += piece
    return text.decode().replace("\r\n", "\n")


def test_terminal_gets_three_lines_and_log_lines_of_text() -> None:
    with on_terminal() as (process, terminal):
        first = shown(terminal, until=b"ends them")
        *_, model, addresses, stop = first.strip().split("\n")
        found = re.fullmatch(r"page (http://127\.0\.0\.1:\d+)/   API \1/v1", addresses)
        assert found is not None and model.endswith(f"{BUILT_IN} is ready") and stop.startswith("Ctrl-C stops")
        assert httpx.get(f"{found[1]}/v1/models").status_code == 200
        assert "text/html" in httpx.get(found[1]).headers["content-type"]
        os.kill(process.pid, signal.SIGINT)
        rest = shown(terminal)
        assert process.wait() == 0
    assert re.search(r"^\d\d:\d\d:\d\d request .*status=200 method=GET path=/v1/models", rest, re.MULTILINE)
    assert "{" not in first + rest


def test_json_is_logged_where_it_is_asked_for() -> None:
    with on_terminal("--log-format", "json") as (process, terminal):
        seen = shown(terminal, until=b"is loaded on")
        os.kill(process.pid, signal.SIGINT)
        seen += shown(terminal)
        assert process.wait() == 0
    objects = [json.loads(line) for line in seen.splitlines() if line.startswith("{")]
    assert any(each["message"].startswith(f"{BUILT_IN} is loaded on") for each in objects)
    assert "is ready" not in seen


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("localhost", "http://localhost:80"),
    ],
)
def test_address_can_be_opened_from_this_machine(host: str, url: str) -> None:
    assert f"page {url}/   API {url}/v1\n" in greeting("m", host, 80)
