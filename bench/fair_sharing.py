"""What a polite API key notices of a greedy one: 100 queued requests beside one request a second.

    python bench/fair_sharing.py --out bench/results/fair_sharing.json
    python bench/fair_sharing.py --engine-host thread --policy fcfs --out bench/results/fair_sharing.json

A server of its own serves the built-in model. The polite key's times to the first token are measured alone, then while
the greedy key, in a process of its own, keeps its 100 requests queued; a step's time is the median time between two
pieces of a polite stream then. That is a series; the file keeps those of earlier runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from ferrum.bench.serve_process import own_server
from ferrum.core.config import HOSTS, POLICIES
from ferrum.runtime.hub import BUILT_IN

PROMPT: Final = "def read(path):\n"
GREEDY_PAUSE: Final = 0.05
"""The greedy key's client looks so seldom, for it shares two processors with the server that is measured."""


@contextmanager
def server(host: str, policy: str) -> Iterator[str]:
    """The address of a server that knows the two keys."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("polite:polite\ngreedy:greedy\n")
        keys.flush()
        arguments = ["--engine-host", host, "--policy", policy, "--api-key-file", keys.name]
        with own_server(BUILT_IN, arguments) as served:
            yield served.address


async def stream(url: str, key: str, max_tokens: int, pause: float = 0.0) -> list[float]:
    """The moments at which the pieces of a stream came, after the one at which it was asked for.

    By a bare socket: a client that reads every piece as JSON would take the processors from the server.

    Args:
        pause: seconds between two looks for pieces.
    """
    host, port = url.removeprefix("http://").split(":")
    asked = {"model": "ferrum-tiny", "prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    moments = [time.perf_counter()]
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + body)
    first = await reader.readuntil(b"data: ")
    assert first.startswith(b"HTTP/1.1 200"), first
    moments.append(time.perf_counter())
    while await reader.read(1 << 16):
        moments.append(time.perf_counter())
        if pause:
            await asyncio.sleep(pause)
    writer.close()
    return moments


async def polite(url: str, seconds: int) -> tuple[list[float], list[float]]:
    """Times to the first token of one request a second, and the times between all later pieces."""
    asked = []
    for _ in range(seconds):
        asked.append(asyncio.create_task(stream(url, "polite", 8)))
        await asyncio.sleep(1.0)
    streams = await asyncio.gather(*asked)
    gaps = [later - earlier for moments in streams for earlier, later in pairwise(moments[1:])]
    return [moments[1] - moments[0] for moments in streams], gaps


async def greedy(url: str, requests: int) -> None:
    """So many requests at any time, of different lengths, without end."""

    async def ask(number: int) -> None:
        lengths = Random(number)
        while True:
            await stream(url, "greedy", lengths.randint(32, 256), GREEDY_PAUSE)

    await asyncio.gather(*map(ask, range(requests)))


@contextmanager
def pressed(url: str, requests: int) -> Iterator[None]:
    """Within the block a greedy key presses the server."""
    process = get_context("fork").Process(target=lambda: asyncio.run(greedy(url, requests)), daemon=True)
    process.start()
    time.sleep(5.0)
    yield
    process.kill()
    process.join()


def measure(url: str, seconds: int, requests: int) -> dict[str, Any]:
    """The polite key's times alone and beside the greedy one."""
    asyncio.run(polite(url, 3))  # warm-up
    alone, _ = asyncio.run(polite(url, seconds))
    with pressed(url, requests):
        beside, gaps = asyncio.run(polite(url, seconds))
    step = median(gaps)
    return {
        "alone_p99": p99(alone),
        "beside_p99": p99(beside),
        "beside_median": median(beside),
        "step_median": step,
        "bound": p99(alone) + 2 * step,
        "alone": alone,
        "beside": beside,
    }


def p99(values: list[float]) -> float:
    """The 99th percentile, by the nearest rank."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def main() -> None:
    """Measure a series, print it, and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine-host", choices=HOSTS, default="process")
    parser.add_argument("--policy", choices=POLICIES, default="fair")
    parser.add_argument("--seconds", type=int, default=30, help="requests of the polite key")
    parser.add_argument("--requests", type=int, default=100, help="requests that the greedy key keeps queued")
    parser.add_argument("--out", type=Path, help="where to add all figures")
    arguments = parser.parse_args()
    with server(arguments.engine_host, arguments.policy) as url:
        result = measure(url, arguments.seconds, arguments.requests)
    told = {name: f"{1e3 * value:.1f} ms" for name, value in result.items() if isinstance(value, float)}
    print(arguments.engine_host, arguments.policy, *(f"{name} {value}" for name, value in told.items()), sep="  ")
    if arguments.out is not None:
        add(arguments.out, {"engine_host": arguments.engine_host, "policy": arguments.policy, **result})


def add(path: Path, series: dict[str, Any]) -> None:
    """Add a series to those of the file."""
    before = json.loads(path.read_text())["series"] if path.exists() else []
    document = {"machine": platform.processor() or platform.machine(), "series": [*before, series]}
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
