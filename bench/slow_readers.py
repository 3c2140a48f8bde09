"""Measure many streaming clients with slow readers among them: errors, latency of the others, memory.

    python bench/slow_readers.py --seconds 300 --out bench/results/slow_readers.json

A new server serves the built-in model to 150 clients, then to 150 clients and 50 slow readers, which read 512 bytes
every 0.1 s through minimal buffers. Every stream is compared, byte for byte, with the complete reply to the same
request. The exit code is 1 if a stream differs, or a status is not 200 or 429.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import platform
import socket
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

from ferrum.sources.hub import BUILT_IN
from own_server import own_server
from script import needs, positive, run_script

with needs("httpx"):
    import httpx

PROMPTS: Final = ("def read(path):\n", "import os\n", "class Tree:\n    def ", "for line in ")
LENGTHS: Final = (40, 90, 160)
SLOW_BYTES: Final = 512
SLOW_SECONDS: Final = 0.1


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process and its children, one of which may be the engine."""
    status = Path(f"/proc/{pid}/status").read_text()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024 + sum(resident_mib(int(child)) for child in children)


@dataclass
class Crowd:
    """Results of a measurement.

    Attributes:
        gaps: seconds between two pieces of a stream of a fast reader.
        faults: streams with a wrong result.
    """

    texts: dict[tuple[str, int], str]
    gaps: list[float] = field(default_factory=list)
    streams: int = 0
    slow_streams: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)


def body_of(prompt: str, length: int, *, stream: bool) -> dict[str, Any]:
    """Return a deterministic request."""
    asked = {"model": "ferrum-tiny", "prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True}
    return {**asked, "stream": stream}


async def read_stream(url: str, body: bytes, *, slow: bool) -> tuple[bytes, list[float]]:
    """Return all bytes of a response on a new connection, and their arrival times."""
    host, port = url.removeprefix("http://").split(":")
    wire = socket.create_connection((host, int(port)))
    wire.setblocking(False)
    if slow:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    reader, writer = await asyncio.open_connection(sock=wire, limit=SLOW_BYTES if slow else 1 << 16)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    pieces, moments = [], []
    while piece := await reader.read(SLOW_BYTES if slow else 1 << 16):
        pieces.append(piece)
        moments.append(time.perf_counter())
        if slow:
            await asyncio.sleep(SLOW_SECONDS)
    writer.close()
    return b"".join(pieces), moments


def text_of(response: bytes) -> str:
    """Return the text of a completely received stream."""
    _, _, chunked = response.partition(b"\r\n\r\n")
    data = b""
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        length = int(size, 16)
        data, chunked = data + rest[:length], rest[length + 2 :]
    events = [event.removeprefix("data: ") for event in data.decode().split("\n\n") if event.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


async def client(url: str, crowd: Crowd, number: int, until: float, *, slow: bool) -> None:
    """Read one stream after another."""
    pick = Random(number)
    while time.monotonic() < until:
        prompt, length = pick.choice(PROMPTS), pick.choice(LENGTHS)
        response, moments = await read_stream(url, json.dumps(body_of(prompt, length, stream=True)).encode(), slow=slow)
        if response.startswith(b"HTTP/1.1 429"):
            crowd.refused += 1
            await asyncio.sleep(1.0)
            continue
        crowd.streams += 1
        crowd.slow_streams += slow
        try:
            if text_of(response) != crowd.texts[prompt, length]:
                crowd.faults.append(f"another text for {prompt!r}, {length}")
        except (AssertionError, ValueError, LookupError):
            crowd.faults.append(repr(response[-200:]))
        if not slow:
            crowd.gaps += [later - earlier for earlier, later in pairwise(moments[1:])]


async def measure(url: str, seconds: float, readers: int, slow_readers: int) -> Crowd:
    """Run fast and slow clients for some seconds."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        texts: dict[tuple[str, int], str] = {}
        for prompt in PROMPTS:
            for length in LENGTHS:
                reply = await http.post("/v1/completions", json=body_of(prompt, length, stream=False))
                texts[prompt, length] = reply.json()["choices"][0]["text"]
    crowd = Crowd(texts)
    until = time.monotonic() + seconds
    slow = [client(url, crowd, 1000 + number, until, slow=True) for number in range(slow_readers)]
    await asyncio.gather(*slow, *(client(url, crowd, number, until, slow=False) for number in range(readers)))
    return crowd


def figures(crowd: Crowd) -> dict[str, Any]:
    """Return the figures of a measurement."""
    gaps = sorted(crowd.gaps)
    places = {"median": 0.5, "p99": 0.99}
    return {
        "streams": crowd.streams,
        "slow_streams": crowd.slow_streams,
        "refused": crowd.refused,
        "faults": crowd.faults[:10],
        **{f"gap_{name}": gaps[math.ceil(place * len(gaps)) - 1] for name, place in places.items()},
    }


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds",
        type=float,
        default=300,
        help="Seconds with slow readers; a third of it without (default: 300).",
    )
    parser.add_argument("--readers", type=positive, default=150)
    parser.add_argument("--slow-readers", type=positive, default=50)
    parser.add_argument("--out", type=Path, help="File for all figures.")
    parser.add_argument("options", nargs="*", help="Options of `ferrum serve`, after --.")
    arguments = parser.parse_args()
    with own_server(BUILT_IN, arguments.options) as served:
        url, pid = served.address, served.pid
        without = asyncio.run(measure(url, arguments.seconds / 3, arguments.readers, 0))
        memory = [resident_mib(pid)]
        beside = asyncio.run(measure(url, arguments.seconds / 2, arguments.readers, arguments.slow_readers))
        memory.append(resident_mib(pid))
        later = asyncio.run(measure(url, arguments.seconds / 2, arguments.readers, arguments.slow_readers))
        memory.append(resident_mib(pid))
    results = {"without": figures(without), "with": figures(beside), "later": figures(later), "resident_mib": memory}
    print(json.dumps(results, indent=1))
    print(
        "p99 of gaps, with / without slow readers:",
        round(results["with"]["gap_p99"] / results["without"]["gap_p99"], 3),
    )
    if arguments.out is not None:
        machine = {"machine": platform.processor() or platform.machine()}
        arguments.out.write_text(json.dumps({**machine, **results}, indent=1) + "\n")
    return int(any(crowd.faults for crowd in (without, beside, later)))


if __name__ == "__main__":
    run_script(main)
