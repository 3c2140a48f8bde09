"""Shutdown: one signal drains, two abort, and a failure ends with its error."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import sleep

import httpx
import pytest

from ferrum.client.async_engine import AsyncEngine
from ferrum.engine.host import Built
from serve_kit import ENDLESS_TOKENS, LARGE, SLOW, USER, chat_parts, error_of, heard, post_bytes, serving, wait_for

SCRIPT = """
import signal, sys
from ferrum.cli.start import _end
signal.signal(signal.SIGHUP, _end)  # as the command does; the tests may run under nohup
from dataclasses import replace
tests, port, hold, loading, process, drain = sys.argv[1:]
sys.path.insert(0, tests)
from serve_kit import chat_parts, SLOW
from ferrum.client.async_engine import AsyncEngine
from ferrum.server.server_config import ServerConfig
from ferrum.server.launch import serve
recipe = replace(SLOW, max_tokens_per_step=8192, hold=hold, hold_loading=loading or None)
parts = chat_parts(recipe, process=process == "process")
config = ServerConfig(port=int(port), keep_alive_seconds=0.05, drain_seconds=float(drain))
serve(lambda: AsyncEngine.from_parts(parts), config)
"""
FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""
IMPATIENT = """
from ferrum.engine import host
host.JOIN_SECONDS = 1.0
"""
TESTS = Path(__file__).parents[1] / "support"


@dataclass
class Started:
    """A server process whose steps, or loading, wait while the file `hold` exists."""

    process: subprocess.Popen[str]
    client: httpx.Client
    hold: Path


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port within the block: it is bound, and only our servers listen on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextmanager
def started(
    port: int, place: Path, *, process: bool = False, loads: bool = False, drain: float = 300.0
) -> Iterator[Started]:
    """Start a server, optionally with an engine process, and wait until it is ready or loading."""
    hold = place / "hold"
    if loads:
        hold.touch()
    holds = ("", str(hold)) if loads else (str(hold), "")
    kind = "process" if process else "thread"
    command = [sys.executable, "-c", SCRIPT, str(TESTS), str(port), *holds, kind, str(drain)]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        try:
            wait_for(lambda: _answers(client, 503 if loads else 200), 120)
            yield Started(server, client, hold)
        finally:
            server.kill()
            hold.unlink(missing_ok=True)


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


def _answers(client: httpx.Client, status: int) -> bool:
    try:
        return client.get("/ready").status_code == status
    except httpx.ConnectError:
        return False


def stream(client: httpx.Client, max_tokens: int, into: list[str]) -> None:
    body = {"model": "fake", "messages": USER, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        for line in response.iter_lines():
            if line:
                into.append(line)  # noqa: PERF401 - the test reads the list meanwhile


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGHUP, signal.SIGHUP)])  # a closed terminal sends two
def test_one_signal_finishes_streams_and_rejects_new_requests(
    port: int, tmp_path: Path, signals: tuple[signal.Signals, ...]
) -> None:
    with started(port, tmp_path) as server:
        server.hold.touch()
        lines: list[str] = []
        running = Thread(target=stream, args=(server.client, 30, lines))
        running.start()
        wait_for(lambda: bool(lines))
        for number in signals:
            server.process.send_signal(number)
        wait_for(lambda: server.client.get("/ready").status_code == 503)
        assert error_of(server.client.get("/health"), 503)["code"] == "draining"
        refused = server.client.post("/v1/chat/completions", json={"model": "fake", "messages": USER})
        assert error_of(refused, 503)["code"] == "draining" and "retry-after" in refused.headers
        server.hold.unlink()
        running.join()
        assert said(lines)
        assert server.process.wait(60) == 0
        log = [json.loads(line) for line in server.process.stderr or ()]
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in log)
        assert any(line.get("completion_tokens") == 30 for line in log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_two_signals_abort_running_requests(port: int, tmp_path: Path, number: signal.Signals) -> None:
    with started(port, tmp_path) as server:
        lines: list[str] = []
        running = Thread(target=stream, args=(server.client, ENDLESS_TOKENS, lines))
        running.start()
        wait_for(lambda: bool(lines))
        server.process.send_signal(number)
        wait_for(lambda: server.client.get("/ready").status_code == 503)
        server.process.send_signal(number)
        running.join()
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "request_cancelled"
        assert server.process.wait(60) == 0


def test_two_signals_end_a_server_with_a_stuck_engine(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SCRIPT", IMPATIENT + SCRIPT)
    with started(port, tmp_path, process=True) as server:
        server.hold.touch()
        lines: list[str] = []
        running = Thread(target=_cut_off, args=(server.client, lines))
        running.start()
        wait_for(lambda: bool(lines))  # a keep-alive comment
        children = _children(server.process.pid)
        assert len(children) == 1
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.client.get("/ready").status_code == 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        running.join()
        wait_for(lambda: not any(Path(f"/proc/{child}/cmdline").exists() for child in children))


@pytest.mark.parametrize("process", [False, True])
def test_one_signal_under_load_finishes_every_accepted_stream(port: int, tmp_path: Path, process: bool) -> None:
    """Both running and queued streams."""
    with started(port, tmp_path, process=process) as server:
        stream(server.client, 30, lines := [])
        alone = said(lines)
        server.hold.touch()
        streams: list[list[str]] = [[] for _ in range(24)]
        running = [Thread(target=stream, args=(server.client, 30, lines)) for lines in streams]
        for thread in running:
            thread.start()
        wait_for(lambda: all(streams))  # each got a keep-alive comment
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.client.get("/ready").status_code == 503)
        server.hold.unlink()
        for thread in running:
            thread.join()
        assert server.process.wait(60) == 0
        assert {said(lines) for lines in streams} == {alone}


def said(lines: list[str]) -> str:
    """Return the text of a stream that ended normally."""
    *chunks, done = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert done == "[DONE]" and choices[-1]["finish_reason"] == "length"
    return "".join(choice["delta"].get("content", "") for choice in choices)


LARGE_ONE = post_bytes("/v1/completions", **LARGE)
CLIENTS = {
    "reads no stream": post_bytes("/v1/completions", **LARGE, stream=True),
    "reads no reply": LARGE_ONE,
    "sends half a body": LARGE_ONE[: len(LARGE_ONE) // 2],
}


@contextmanager
def asked(server: Started, port: int, request: bytes) -> Iterator[socket.socket]:
    """Send a request on a connection and wait until the engine has finished it."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        if len(request) >= len(LARGE_ONE):
            wait_for(lambda: _all_generated(server.client))
        yield connection


@pytest.mark.parametrize("name", CLIENTS)
def test_stalled_client_does_not_delay_shutdown(port: int, tmp_path: Path, name: str) -> None:
    with started(port, tmp_path, drain=0.5) as server, asked(server, port, CLIENTS[name]):
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0


def test_second_signal_cuts_a_stalled_client(port: int, tmp_path: Path) -> None:
    with started(port, tmp_path) as server, asked(server, port, CLIENTS["reads no stream"]):
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.client.get("/ready").status_code == 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0


def test_file_limit_is_raised_and_exhaustion_is_logged_once(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    monkeypatch.setitem(globals(), "SCRIPT", FEW_DESCRIPTORS + SCRIPT)
    with started(port, tmp_path) as server, ExitStack() as crowd:
        assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (40, 40)) == (most, most)
        for _ in range(60):
            crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        assert server.process.stderr is not None
        wait_for(lambda: "cannot accept new connections" in server.process.stderr.readline())
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert len(list(server.process.stderr)) < 20


def test_reply_is_sent_completely_before_shutdown(port: int, tmp_path: Path) -> None:
    """Although no request runs: the client reads for longer than CLOSE_SECONDS."""
    with started(port, tmp_path) as server, asked(server, port, LARGE_ONE) as connection:
        server.process.send_signal(signal.SIGTERM)
        head, _, body = heard(connection, pause=0.02).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and len(json.loads(body)["choices"]) == 256
        assert server.process.wait(20) == 0


@pytest.mark.parametrize(
    ("number", "process"), [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGKILL, True)]
)
def test_signal_ends_a_loading_server(port: int, tmp_path: Path, number: signal.Signals, process: bool) -> None:
    """The loading itself cannot be interrupted; its process ends too."""
    with started(port, tmp_path, process=process, loads=True) as server:
        wait_for(lambda: server.hold.read_text() == "loading")
        children = _children(server.process.pid)
        assert len(children) == process
        server.process.send_signal(number)
        assert server.process.wait(60) == (-number if number is signal.SIGKILL else 0)
        wait_for(lambda: not any(Path(f"/proc/{child}/cmdline").exists() for child in children))


def test_engine_built_after_shutdown_is_closed() -> None:
    go = Event()
    built: list[Built] = []

    def load() -> AsyncEngine:
        go.wait()
        built.append(SLOW())
        return AsyncEngine.from_parts(chat_parts(lambda: built[0]))  # type: ignore[arg-type]

    with serving(load, ready=False) as server:
        assert server.http.get("/health").status_code == 503
    go.set()
    wait_for(lambda: bool(built) and built[0].executor.stopped)  # type: ignore[attr-defined]


@pytest.mark.parametrize("process", [False, True])
def test_killed_server_can_restart_on_its_port(port: int, tmp_path: Path, process: bool) -> None:
    with started(port, tmp_path, process=process) as server:
        lines: list[str] = []
        running = Thread(target=_cut_off, args=(server.client, lines))
        running.start()
        wait_for(lambda: bool(lines))
        children = _children(server.process.pid)
        assert len(children) == process
        server.process.kill()
        running.join()
        assert lines[-1] != "data: [DONE]"
        wait_for(lambda: not any(Path(f"/proc/{child}/cmdline").exists() for child in children))
    with started(port, tmp_path, process=process) as server:
        lines = []
        stream(server.client, 10, lines)
        assert lines[-1] == "data: [DONE]"


def _cut_off(client: httpx.Client, lines: list[str]) -> None:
    with pytest.raises(httpx.HTTPError):
        stream(client, ENDLESS_TOKENS, lines)


def _children(pid: int) -> list[str]:
    return [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def _all_generated(client: httpx.Client) -> bool:
    sleep(0.2)  # polling without a pause would slow the server
    return 'vllm:request_params_n_count{engine="0",model_name="fake"} 2.0' in client.get("/metrics").text
