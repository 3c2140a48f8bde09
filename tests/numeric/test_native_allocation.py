"""A native step allocates nothing, neither memory nor Python objects, and decoding for long keeps nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from functools import cache
from itertools import repeat
from pathlib import Path

import pytest
from counted_steps import executor_of
from native_twin import TIERS, require_native

from ferrum.runtime.inputs import Piece, stage
from scratch import folder
from source_tree import REPOSITORY

HOOK = REPOSITORY / "native" / "test" / "count_allocations.cpp"
KIB = 1 << 10


@cache
def hook() -> Path:
    """The counting library, compiled."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or sys.platform != "linux":
        pytest.skip("allocations cannot be counted without a C++ compiler and glibc")
    built = folder("hook") / "count_allocations.so"
    subprocess.run([compiler, "-std=c++17", "-O1", "-fPIC", "-shared", HOOK, "-o", built], check=True)
    return built


def report(*arguments: str) -> dict[str, int]:
    """What `counted_steps.py` says, every Python object being a block of malloc's."""
    require_native()
    exact = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}  # cached blocks count as in use
    environment = {**os.environ, **exact, "LD_PRELOAD": str(hook())}
    script = Path(__file__).with_name("counted_steps.py")
    done = subprocess.run([sys.executable, script, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.contract("4.recorded step")
def test_a_native_step_allocates_neither_memory_nor_objects() -> None:
    """Every block of malloc and its kin, on every thread of the team: Python's objects are among them here."""
    found = report("steps")
    assert {case.split()[0] for case in found} == set(TIERS)
    assert {case: count for case, count in found.items() if count} == {}


@pytest.mark.contract("4.recorded step")
@pytest.mark.parametrize("tier", TIERS)
def test_python_traces_no_memory_of_a_native_step(tier: str) -> None:
    lm = executor_of(isa=tier).lm
    assert lm.pages.reserve("a", 1)
    lm.replay(lm.kernels, stage([Piece("a", 0, [7], range(1), range(1))], lm.pages))
    run, program = lm.kernels.lowering.runtime.run, lm.replay._native

    def peak(times: int) -> int:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for _ in repeat(None, times):
            run(program)
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        peak(50)
        assert peak(1000) == peak(1)
    finally:
        tracemalloc.stop()


def assert_flat(steps: int) -> None:
    """One byte kept at each step would show."""
    grown = report("memory", str(steps))
    assert grown["in use"] < 1 * KIB
    assert grown["resident"] < 256 * KIB


@pytest.mark.contract("4.recorded step")
def test_memory_is_flat_over_five_thousand_decode_steps() -> None:
    assert_flat(5_000)


@pytest.mark.soak
def test_memory_is_flat_over_a_hundred_thousand_decode_steps() -> None:
    assert_flat(100_000)
