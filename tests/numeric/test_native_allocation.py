"""Native steps allocate no memory and no Python objects, and long decoding leaks nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from native_twin import TIERS, require_native
from shared_models import folder
from source_tree import REPOSITORY

HOOK = REPOSITORY / "native" / "test" / "count_allocations.cpp"
KIB = 1 << 10


@cache
def hook() -> Path:
    """Compile the counting library."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or sys.platform != "linux":
        pytest.skip("allocations cannot be counted without a C++ compiler and glibc")
    built = folder("hook") / "count_allocations.so"
    subprocess.run([compiler, "-std=c++17", "-O1", "-fPIC", "-shared", HOOK, "-o", built], check=True)
    return built


def report(*arguments: str) -> dict[str, int]:
    """Run `counted_steps.py` with malloc for every Python object."""
    require_native()
    exact = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}  # cached blocks count as in use
    environment = {**os.environ, **exact, "LD_PRELOAD": str(hook())}
    script = Path(__file__).parents[1] / "support" / "counted_steps.py"
    done = subprocess.run([sys.executable, script, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.contract("4.recorded step")
def test_native_step_allocates_neither_memory_nor_objects() -> None:
    """Counts blocks of malloc and its relatives on all threads, including Python objects."""
    found = report("steps")
    assert {case.split()[0] for case in found} == set(TIERS)
    assert {case: count for case, count in found.items() if count} == {}


def assert_flat(steps: int) -> None:
    """One leaked byte per step would show."""
    grown = report("memory", str(steps))
    assert grown["in use"] < 1 * KIB
    assert grown["resident"] < 256 * KIB


@pytest.mark.contract("4.recorded step")
def test_memory_is_flat_over_thousands_of_decode_steps() -> None:
    assert_flat(2_500)


@pytest.mark.soak
def test_memory_is_flat_over_a_hundred_thousand_decode_steps() -> None:
    assert_flat(100_000)
