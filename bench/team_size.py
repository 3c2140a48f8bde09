"""Time decode steps on a crowded machine, by the rule that sets the number of threads of a step.

    python bench/team_size.py

Each rule runs steps of the built-in model for a second, in turn, five times, while another process loops without rest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final, Protocol

from ferrum.core.policy_config import POLICY
from ferrum.kernels.cpu.library import available_threads
from ferrum.kernels.cpu.native_kernels import TeamSize, count_preemptions
from ferrum.runtime.load import load_executor
from ferrum.runtime.step_tables import Piece, stage
from script import run_script

ROUNDS: Final = 5
CONTEXT: Final = 64
STEPS: Final = ((1, 1), (8, 1), (1, 128))
"""Sequences, and tokens of each."""


class Rule(Protocol):
    """A rule: the number of threads of the next step, and what it learns from the last one."""

    threads: int

    def observe(self, seconds: float) -> None: ...


class Fixed:
    """The same number of threads for every step."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def observe(self, seconds: float) -> None:
        """Ignore the step."""


class Idle(Fixed):
    """As many threads as cores that no other process uses, by the load average of the last minute."""

    _seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._seconds += seconds
        if self._seconds < POLICY.team_interval_seconds:  # to read it takes long
            return
        self._seconds = 0.0
        others = os.getloadavg()[0] - self.threads
        self.threads = max(1, min(available_threads(), round((os.cpu_count() or 1) - others)))


class Counter:
    """Preemptions of this thread while one rule runs."""

    def __init__(self) -> None:
        self._total = self._before = 0

    def resume(self) -> None:
        """Ignore the preemptions since the last call."""
        self._before = count_preemptions()

    def __call__(self) -> int:
        """Return the count."""
        now = count_preemptions()
        self._total, self._before = self._total + now - self._before, now
        return self._total


@contextmanager
def busy_process() -> Iterator[None]:
    """Run a process that loops without rest for as long as the context lasts."""
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _spin() -> None:
    while True:
        pass


def step_of(sequences: int, tokens: int) -> Callable[[Rule], None]:
    """Return a step of the built-in model."""
    lm: Any = load_executor("ferrum-tiny", kv_capacity=4096).lm
    pieces = []
    for name in map(str, range(sequences)):
        assert lm.pages.reserve(name, CONTEXT + tokens)
        pieces.append(Piece(name, CONTEXT, [5] * tokens, range(1), range(0)))
    lm.replay.submit(lm.kernels, stage(pieces, lm.pages))
    runtime, program = lm.kernels.lowering.runtime, lm.replay._native

    def step(rule: Rule, lm: Any = lm) -> None:  # noqa: ARG001 - the program borrows the memory of lm
        runtime.use(rule.threads)
        begun = time.perf_counter()
        runtime.run(program)
        rule.observe(time.perf_counter() - begun)

    return step


def measure(step: Callable[[Rule], None], seconds: float) -> dict[str, list[float]]:
    """Return the seconds of a step by rule, one value per round."""
    counter = Counter()
    rules: dict[str, Rule] = {
        "adaptive": TeamSize(available_threads(), counter),
        "all threads": Fixed(available_threads()),
        "load average": Idle(available_threads()),
    }
    seen: dict[str, list[float]] = {name: [] for name in rules}
    for turn in range(ROUNDS):
        for name in sorted(rules, reverse=bool(turn % 2)):
            counter.resume()
            steps, begun = 0, time.perf_counter()
            while time.perf_counter() < begun + seconds:
                step(rules[name])
                steps += 1
            seen[name].append((time.perf_counter() - begun) / steps)
    return seen


def main() -> None:
    """Measure each step, and print a row of a table per step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    seconds = parser.parse_args().seconds
    if not seconds > 0:
        parser.error(f"--seconds must be above 0, not {seconds}")
    with busy_process():
        for sequences, tokens in STEPS:
            seen = measure(step_of(sequences, tokens), seconds)
            cells = [
                f"{name} {1e3 * median(each):.2f} ms ({1e3 * min(each):.2f}-{1e3 * max(each):.2f})"
                for name, each in seen.items()
            ]
            print(f"{sequences} x {tokens}:", ", ".join(cells), "load", round(os.getloadavg()[0], 1))


if __name__ == "__main__":
    run_script(main)
