"""Compares ways of waking the streams of a step on an event loop whose clock is virtual.

A consumer costs the loop a fixed time per write and a little per token. New requests arrive at random and need a few
turns of the loop each. It reports the latency of those requests and of tokens, and
the loop's time spent on writing.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any, Protocol

from ferrum.client.async_engine import StreamWaker
from script import run_script

SEEDS = 5
SECONDS = 2.0
WRITE_SECONDS = 60e-6
TOKEN_SECONDS = 3e-6
TURN_SECONDS = 20e-6
TURNS = 6
ARRIVALS_PER_SECOND = 100.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes by waiting and by `work`."""

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        self.now = 0.0
        select = selector.select

        def skip(timeout: float | None = None) -> list[Any]:
            self.now += timeout or 0.0
            return select(0)

        selector.select = skip  # type: ignore[method-assign]

    def time(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        """Spend time on the loop's thread."""
        self.now += seconds


class Wakes(Protocol):
    """A way of waking streams."""

    def add(self, streams: Iterable[Any]) -> None: ...


class AtOnce:
    """Wakes every stream of a step in one turn."""

    def __init__(self, _: VirtualLoop) -> None: ...

    def add(self, streams: Iterable[Any]) -> None:
        for stream in streams:
            stream.wake()


WAYS: dict[str, Callable[[VirtualLoop], Wakes]] = {
    "at once": AtOnce,
    "a few a turn": StreamWaker,
}


@dataclass
class Load:
    """What the streams and the requests of a run experienced."""

    loop: VirtualLoop
    writing: float = 0.0
    token_latency: list[float] = field(default_factory=list)
    request_latency: list[float] = field(default_factory=list)


class Stream:
    """A stream whose consumer writes everything new when it is woken."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._unwritten: list[float] = []
        self._woken = False
        self.begun = False

    def push(self) -> None:
        self._unwritten.append(self._load.loop.time())

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._load.loop.call_soon(self._write)

    def _write(self) -> None:
        load = self._load
        cost = WRITE_SECONDS + TOKEN_SECONDS * len(self._unwritten)
        load.loop.work(cost)
        load.writing += cost
        load.token_latency += [load.loop.time() - produced for produced in self._unwritten]
        self._unwritten.clear()
        self._woken, self.begun = False, True


def run(way: str, streams: int, step_seconds: float, seed: int) -> Load:
    """Run one load for `SECONDS` of virtual time."""
    loop = VirtualLoop()
    load, random = Load(loop), Random(seed)
    waking = WAYS[way](loop)
    consumers = [Stream(load) for _ in range(streams)]

    def step(at: float) -> None:
        for each in consumers:
            each.push()
        waking.add(consumers)
        after = at + step_seconds * random.uniform(0.9, 1.1)
        loop.call_at(after, step, after)

    def arrive(at: float) -> None:
        turn(at, TURNS)
        after = at + random.expovariate(ARRIVALS_PER_SECOND)
        loop.call_at(after, arrive, after)

    def turn(arrived: float, left: int) -> None:
        loop.work(TURN_SECONDS)
        if left > 1:
            loop.call_soon(turn, arrived, left - 1)
        else:
            load.request_latency.append(loop.time() - arrived)

    loop.call_soon(step, 0.0)
    loop.call_soon(arrive, 0.0)
    loop.call_at(SECONDS, loop.stop)
    loop.run_forever()
    loop.close()
    return load


def p95(values: list[float]) -> float:
    """Milliseconds."""
    return 1e3 * sorted(values)[int(0.95 * len(values))]


def main() -> None:
    print("| streams | step, ms | way | request p95, ms | token p95, ms | loop's time writing |")
    print("|---|---|---|---|---|---|")
    for streams in (16, 64, 256):
        for step_seconds in (0.005, 0.02, 0.08):
            for way in WAYS:
                loads = [run(way, streams, step_seconds, seed) for seed in range(SEEDS)]
                requests = median(p95(each.request_latency) for each in loads)
                tokens = median(p95(each.token_latency) for each in loads)
                writing = median(each.writing for each in loads) / SECONDS
                print(
                    f"| {streams} | {1e3 * step_seconds:.0f} | {way} | {requests:.2f} | {tokens:.2f} | {writing:.0%} |"
                )


if __name__ == "__main__":
    run_script(main)
