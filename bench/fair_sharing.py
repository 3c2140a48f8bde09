"""Measure time to first token for a polite API key while a greedy one keeps 100 requests queued.

    python bench/fair_sharing.py --out bench/results/fair_sharing.json
    python bench/fair_sharing.py --engine-host thread --policy fcfs --out bench/results/fair_sharing.json

A new server serves the built-in model. The polite key sends one request a second, first alone, then while a separate
process sends the greedy key's requests. The mean step time comes from the server's metrics. Each run adds a series to
the file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import selectors
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final, cast
from urllib.request import urlopen

from ferrum.core.config import HOSTS, POLICIES
from ferrum.sources.hub import BUILT_IN
from own_server import own_server
from script import positive, run_script

PROMPT: Final = "def read(path):\n"
GREEDY_PAUSE: Final = 0.02
"""Seconds between two polls of the greedy client: it shares the processors with the measured server."""


@contextmanager
def server(host: str, policy: str) -> Iterator[str]:
    """Run a server that accepts the two keys, and yield its address."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("polite:polite\ngreedy:greedy\n")
        keys.flush()
        arguments = ["--engine-host", host, "--policy", policy, "--api-key-file", keys.name]
        with own_server(BUILT_IN, arguments) as served:
            yield served.address


def request(key: str, max_tokens: int) -> bytes:
    """Return the bytes of a request for a streamed completion."""
    asked = {"model": "ferrum-tiny", "prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def address(url: str) -> tuple[str, int]:
    """Return host and port."""
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def first_token(url: str) -> float:
    """Send a polite request and return the seconds until its first token."""
    asked = time.perf_counter()
    with socket.create_connection(address(url)) as connection:
        connection.sendall(request("polite", 8))
        come = b""
        while b"data: " not in come:
            data = connection.recv(1 << 16)
            assert data and come[:12] in (b"", b"HTTP/1.1 200"), come
            come += data
        seconds = time.perf_counter() - asked
        while connection.recv(1 << 16):
            pass
    return seconds


def polite(url: str, seconds: int) -> list[float]:
    """Return the times to first token of one request a second."""
    with ThreadPoolExecutor(seconds) as threads:
        asked = []
        for _ in range(seconds):
            asked.append(threads.submit(first_token, url))
            time.sleep(1.0)
        return [each.result() for each in asked]


def steps(url: str) -> float:
    """Return the number of steps of the server's engine so far."""
    with urlopen(f"{url}/metrics") as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("vllm:iteration_tokens_total_count"))


def greedy(url: str, requests: int) -> None:
    """Keep this many requests of different lengths in progress, for ever."""
    streams = selectors.DefaultSelector()
    lengths = Random(0)

    def ask() -> None:
        connection = socket.create_connection(address(url))
        connection.sendall(request("greedy", lengths.randint(32, 256)))
        streams.register(connection, selectors.EVENT_READ)

    for _ in range(requests):
        ask()
    while True:
        time.sleep(GREEDY_PAUSE)
        for key, _ in streams.select(0):
            connection = cast("socket.socket", key.fileobj)
            if not connection.recv(1 << 14):
                streams.unregister(connection)
                connection.close()
                ask()


@contextmanager
def pressed(url: str, requests: int) -> Iterator[None]:
    """Load the server with a greedy key within the block."""
    process = get_context("fork").Process(target=greedy, args=(url, requests), daemon=True)
    process.start()
    time.sleep(5.0)
    yield
    process.kill()
    process.join()


def measure(url: str, seconds: int, requests: int) -> dict[str, Any]:
    """Measure the polite key alone and next to the greedy one."""
    polite(url, 3)  # warm-up
    alone = polite(url, seconds)
    with pressed(url, requests):
        before, stolen, began = steps(url), stolen_seconds(), time.perf_counter()
        time.sleep(1.0)  # until the request for metrics is no longer part of the load
        beside = polite(url, seconds)
        took = time.perf_counter() - began
        step, stolen = took / (steps(url) - before), (stolen_seconds() - stolen) / took
    return {
        "alone_p99": p99(alone),
        "beside_p99": p99(beside),
        "beside_median": median(beside),
        "step_mean": step,
        "bound": p99(alone) + 2 * step,
        "stolen_per_second": stolen,
        "alone": alone,
        "beside": beside,
    }


def stolen_seconds() -> float:
    """Return the processor seconds that the hypervisor gave to other machines (steal time)."""
    _, *spent = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(spent[7]) / os.sysconf("SC_CLK_TCK")


def p99(values: list[float]) -> float:
    """Return the 99th percentile, by the nearest rank."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def main() -> None:
    """Measure a series, print it, and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine-host", choices=HOSTS, default="process")
    parser.add_argument("--policy", choices=POLICIES, default="fair")
    parser.add_argument("--seconds", type=positive, default=30, help="requests of the polite key")
    parser.add_argument("--requests", type=positive, default=100, help="requests that the greedy key keeps queued")
    parser.add_argument("--out", type=Path, help="where to add all figures")
    arguments = parser.parse_args()
    with server(arguments.engine_host, arguments.policy) as url:
        result = measure(url, arguments.seconds, arguments.requests)
    shown = {name: f"{1e3 * value:.1f} ms" for name, value in result.items() if isinstance(value, float)}
    print(arguments.engine_host, arguments.policy, *(f"{name} {value}" for name, value in shown.items()), sep="  ")
    if arguments.out is not None:
        add(arguments.out, {"engine_host": arguments.engine_host, "policy": arguments.policy, **result})


def add(path: Path, series: dict[str, Any]) -> None:
    """Add a series to those of the file."""
    before = json.loads(path.read_text())["series"] if path.exists() else []
    document = {"machine": platform.processor() or platform.machine(), "series": [*before, series]}
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
