"""What clients get when the engine's process dies, as docs/life-of-a-request.md describes it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx

from ferrum.sources.hub import BUILT_IN
from serve_kit import error_of, wait_for

ENDLESS = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True}


@contextmanager
def one_at_a_time() -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run `ferrum serve` with a place for one sequence; yield it and a client."""
    options = ["--port", "0", "--max-batch-size", "1", "--log-format", "text"]
    command = [sys.executable, "-m", "ferrum", "serve", BUILT_IN, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = next(match for line in server.stderr if (match := re.search(r"API (http:\S+)/v1", line)))
            with httpx.Client(base_url=found[1], timeout=60) as client:
                yield server, client
        finally:
            server.kill()


def test_death_of_the_engine_process_reaches_every_client() -> None:
    lines: SimpleQueue[str] = SimpleQueue()

    def streamed(client: httpx.Client) -> list[Any]:
        with client.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as response:
            received = []
            for line in filter(None, response.iter_lines()):
                received.append(line.removeprefix("data: "))
                lines.put(line)
        return received

    with one_at_a_time() as (server, client), ThreadPoolExecutor() as pool:
        running = pool.submit(streamed, client)
        lines.get(timeout=60)
        waiting = [
            pool.submit(client.post, "/v1/completions", json={**ENDLESS, "stream": kind}) for kind in (True, False)
        ]
        wait_for(lambda: 'num_requests_waiting{engine="0",model_name="ferrum-tiny"} 2.0' in client.get("/metrics").text)
        [child] = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        *_, last = running.result()
        assert json.loads(last)["error"]["code"] == "engine_dead"
        for each in waiting:
            assert error_of(each.result(), 503)["code"] == "engine_dead"
        late = [client.post("/v1/completions", json=ENDLESS), client.get("/health"), client.get("/ready")]
        for reply in late:
            assert error_of(reply, 503)["code"] == "engine_dead" and "retry-after" not in reply.headers
        assert [client.get(path).status_code for path in ("/metrics", "/v1/models", "/version")] == [200] * 3
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
