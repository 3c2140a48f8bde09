"""Measure how soon a killed server serves again, compared with a first start.

    python bench/restart.py --out bench/results/restart.json

Timed from the start of the `ferrum serve` process: until it is ready, and until the first token of a stream. The
server is killed (SIGKILL) while eight streams are open, a second one starts at once on the same port, is timed the
same way, and stops on SIGTERM, so the next one is a first start again. Both the built-in model and the packed one of
`cold_start.py` run.
"""

from __future__ import annotations

import json
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException
from statistics import median
from typing import Any, Final

from cold_start import SHAPE, asked
from ferrum.sources.hub import BUILT_IN
from script import run_script

STREAMS: Final = 8
TOKENS: Final = 500
READY: Final = "ready"
FIRST: Final = "first token"


class Server:
    """A server in a separate process.

    Attributes:
        seconds: from the start of the process until it was ready, and until the first token of a stream.
    """

    def __init__(self, model: str, port: int) -> None:
        self._port = port
        self.seconds: dict[str, float] = {}
        begun = time.monotonic()
        command = [sys.executable, "-m", "ferrum", "serve", model, "--served-model-name", "served", "--port", str(port)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not self._is_ready():
            assert self._process.poll() is None, "the server did not start"
            time.sleep(0.002)
        self.seconds[READY] = time.monotonic() - begun
        with ExitStack() as stack:
            self._stream(stack)
            self.seconds[FIRST] = time.monotonic() - begun

    def _is_ready(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _stream(self, stack: ExitStack) -> None:
        """Start a stream and wait for its first token; the stack closes it."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        stack.callback(connection.close)
        asked = {"model": "served", "prompt": "def first(tokens):", "max_tokens": TOKENS, "return_token_ids": True}
        body = json.dumps({**asked, "ignore_eos": True, "stream": True})
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200 and json.loads(response.readline().removeprefix(b"data: "))["choices"]

    def kill(self) -> None:
        """Kill it with SIGKILL while streams are open."""
        with ExitStack() as stack:
            for _ in range(STREAMS):
                self._stream(stack)
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Stop it with SIGTERM and wait for it."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def measure(model: str, count: int) -> dict[str, Any]:
    """Return medians and all times of first starts and of starts after a kill."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    afresh: list[Mapping[str, float]] = []
    again: list[Mapping[str, float]] = []
    for turn in range(count + 1):
        first = Server(model, port)
        first.kill()
        second = Server(model, port)
        second.end()
        if turn:  # the first one warms the page cache
            afresh.append(first.seconds)
            again.append(second.seconds)
    return {name: _summary(each) for name, each in (("afresh", afresh), ("after a kill", again))}


def _summary(runs: list[Mapping[str, float]]) -> dict[str, Any]:
    times = {name: sorted(round(run[name], 4) for run in runs) for name in (READY, FIRST)}
    return {name: {"median": median(each), "all": each} for name, each in times.items()}


def main() -> None:
    """Measure both models and print a line for each kind of start."""
    with asked(__doc__) as (options, packed):
        models = {"built-in": BUILT_IN, f"{SHAPE}, packed int8": str(packed)}
        report = {name: measure(model, options.count) for name, model in models.items()}
    for name, kinds in report.items():
        for kind, times in kinds.items():
            told = (f"{what} {each['median']:.3f} s (to {each['all'][-1]:.3f})" for what, each in times.items())
            print(f"{name}, {kind}: {', '.join(told)}")
    if options.out:
        options.out.write_text(json.dumps({"machine": platform.machine(), **report}, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
