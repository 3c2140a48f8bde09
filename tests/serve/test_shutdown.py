"""How a server ends: by one signal when all is served, by two at once, and with an error that is told."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest

from serve_kit import USER, error_of, wait_for

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from serve_kit import chat_parts, SLOW
from ferrum.engine.client import AsyncEngine
from ferrum.server.config import ServerConfig
from ferrum.server.run import serve
serve(lambda: AsyncEngine.from_parts(chat_parts(SLOW, process=len(sys.argv) > 3)), ServerConfig(port=int(sys.argv[2])))
"""
TESTS = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(port: int | None = None, *, process: bool = False) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server in a process of its own, ready; its engine in another one, if asked for."""
    port = free_port() if port is None else port
    command = [sys.executable, "-c", SCRIPT, str(TESTS), str(port), *(["process"] if process else [])]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):
        try:
            wait_for(lambda: _ready(client), 30)
            yield process, client
        finally:
            process.kill()


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx.ConnectError:
        return False


def stream(client: httpx.Client, max_tokens: int, into: list[str]) -> None:
    body = {"model": "fake", "messages": USER, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        for line in response.iter_lines():
            if line:
                into.append(line)  # noqa: PERF401 - as they come: the test looks on


def test_one_signal_lets_streams_finish_and_takes_nothing_new() -> None:
    with started() as (process, client):
        lines: list[str] = []
        running = Thread(target=stream, args=(client, 100, lines))
        running.start()
        wait_for(lambda: bool(lines))
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: client.get("/ready").status_code == 503)
        assert error_of(client.get("/health"), 503)["code"] == "draining"
        refused = client.post("/v1/chat/completions", json={"model": "fake", "messages": USER})
        assert error_of(refused, 503)["code"] == "draining" and "retry-after" in refused.headers
        running.join()
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert process.wait(20) == 0
        log = [json.loads(line) for line in process.stderr or ()]
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in log)
        assert any(line.get("completion_tokens") == 100 for line in log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_two_signals_end_what_runs(number: signal.Signals) -> None:
    with started() as (process, client):
        lines: list[str] = []
        running = Thread(target=stream, args=(client, 4000, lines))
        running.start()
        wait_for(lambda: bool(lines))
        process.send_signal(number)
        wait_for(lambda: client.get("/ready").status_code == 503)
        process.send_signal(number)
        running.join()
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "request_cancelled"
        assert process.wait(20) == 0


@pytest.mark.parametrize("process", [False, True])
def test_one_signal_under_load_finishes_every_accepted_stream(process: bool) -> None:
    """Running and queued ones alike; whoever comes later is told that he is late."""
    with started(process=process) as (server, client):
        stream(client, 30, lines := [])
        alone = said(lines)
        streams: list[list[str]] = [[] for _ in range(24)]
        running = [Thread(target=stream, args=(client, 30, lines)) for lines in streams]
        for thread in running:
            thread.start()
        wait_for(lambda: live(client) == len(streams))
        server.send_signal(signal.SIGTERM)
        for thread in running:
            thread.join()
        assert server.wait(20) == 0
        assert {said(lines) for lines in streams} == {alone}


def said(lines: list[str]) -> str:
    """The text of a stream with a good end."""
    *chunks, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert done == "[DONE]" and choices[-1]["finish_reason"] == "length"
    return "".join(choice["delta"].get("content", "") for choice in choices)


def live(client: httpx.Client) -> int:
    """Sequences that run or wait, by the server's metrics."""
    text = client.get("/metrics").text
    found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(int(float(value)) for value in found)


@pytest.mark.parametrize("process", [False, True])
def test_a_server_that_was_killed_starts_again_on_its_port(process: bool) -> None:
    port = free_port()
    with started(port, process=process) as (server, client):
        lines: list[str] = []
        running = Thread(target=_cut_off, args=(client, lines))
        running.start()
        wait_for(lambda: bool(lines))
        children = _children(server.pid)
        assert len(children) == process
        server.kill()
        running.join()
        assert lines[-1] != "data: [DONE]"
        wait_for(lambda: not any(Path(f"/proc/{child}/cmdline").exists() for child in children))
    with started(port, process=process) as (_, client):
        lines = []
        stream(client, 10, lines)
        assert lines[-1] == "data: [DONE]"


def _cut_off(client: httpx.Client, lines: list[str]) -> None:
    with pytest.raises(httpx.HTTPError):
        stream(client, 4000, lines)


def _children(pid: int) -> list[str]:
    return [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
