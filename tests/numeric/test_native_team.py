"""The thread team: forked processes, refused threads, errors on a thread, floating-point modes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.quant.dense import DenseWeight
from native_twin import require_native

IN_A_FORKED_PROCESS = """
import os, sys
import numpy as np
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.quant.dense import DenseWeight

kernels = NativeKernels(threads=2)
weight = kernels.weight(DenseWeight(np.arange(4096, dtype=np.float32).reshape(64, 64)))
rows = np.arange(128, dtype=np.float32).reshape(2, 64)
before = weight.matmul(rows)
if os.fork() == 0:
    again = kernels.weight(DenseWeight(np.arange(4096, dtype=np.float32).reshape(64, 64)))  # the team packs
    same = all(np.array_equal(before, each.matmul(rows)) for each in (weight, again))
    sys.exit(7 if same else 1)  # the exit destroys the team
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""

MORE_THAN_FIT = """
import resource
from pathlib import Path
from ferrum.kernels.cpu.library import load

held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (512 << 20), resource.RLIM_INFINITY))
try:
    load().Runtime("auto", 1000)
except RuntimeError as error:
    print(error)
print(load().Runtime("auto", 3).threads)
"""

MEMORY_RUNS_OUT_IN_A_SAMPLER = """
import resource
from pathlib import Path
import numpy as np
from ferrum.kernels.cpu.library import load

library = load()
team = library.SamplerTeam(library.Runtime("auto", 2))
wishes = [(np.ones(1 << 24, np.float32), 0.8, 0, 0.9, 0.0, 1, 0, 0)] * 2
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (32 << 20), resource.RLIM_INFINITY))
try:
    team.draw(wishes)
except MemoryError as error:
    print(type(error).__name__)
short = [(wish[0][:1000], *wish[1:]) for wish in wishes]
print(team.draw(short) == team.draw(short[:1]) * 2)
"""


def lines_of(script: str) -> list[str]:
    require_native()
    if sys.platform != "linux":
        pytest.skip("limits of memory and forked processes as Linux has them")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_forked_process_computes_the_same_bits_and_exits() -> None:
    assert lines_of(IN_A_FORKED_PROCESS) == ["7"]


def test_refused_threads_raise_and_the_next_team_works() -> None:
    refusal, threads = lines_of(MORE_THAN_FIT)
    assert refusal
    assert threads == "3"


def test_error_on_a_thread_reaches_the_caller_and_the_team_survives() -> None:
    assert lines_of(MEMORY_RUNS_OUT_IN_A_SAMPLER) == ["MemoryError", "True"]


@pytest.mark.parametrize("threads", [1, 2])
def test_subnormal_numbers_survive_a_flush_to_zero_mode_of_the_caller(threads: int) -> None:
    """Some libraries set the flush mode for the thread that loads them and its child threads."""
    require_native()
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    weight = DenseWeight((rng.standard_normal((4096, 64)) * 1e-20).astype(np.float32))
    rows = (rng.standard_normal((4, 64)) * 1e-20).astype(np.float32)
    expected = NativeKernels(threads=threads).weight(weight).matmul(rows)
    assert (np.abs(expected) < np.finfo(np.float32).tiny).any()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush them")
    try:
        products = [NativeKernels(threads=threads).weight(weight).matmul(rows) for _ in range(3)]
        flushes = np.float32(1e-30) * np.float32(1e-10) == 0
    finally:
        torch.set_flush_denormal(False)
    assert all(product.tobytes() == expected.tobytes() for product in products)
    assert flushes, "the caller's mode is as it was"
