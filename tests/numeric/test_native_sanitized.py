"""The native tests and a long search over shapes, with and without sanitizers; only in `make soak`.

Each runs in a separate process, because a sanitizer ends the process at an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

from native_twin import require_native
from shared_models import folder
from source_tree import REPOSITORY

FOLDER = "tests/numeric"
SEARCHES = ["test_native_fuzz", "test_native_adapter_fuzz", "test_native_sampler_fuzz", "test_native_state_fuzz"]
OTHERS = [f"test_native_{name}" for name in ("adapters", "attention", "library", "products", "rows", "sampler")]
TESTS = [*SEARCHES, *OTHERS, "test_latent_attention", "test_block_panels"]
assert all((REPOSITORY / FOLDER / f"{name}.py").exists() for name in TESTS), "name the new place of a renamed file here"

RUNTIMES = {"address": "asan", "undefined": "ubsan", "thread": "tsan"}
"""The compiler library of each sanitizer, and the prefix of its symbols."""

pytestmark = pytest.mark.soak


def run(test: str, **environment: str) -> None:
    """Run a test file; on failure, show the end of its output."""
    fixed = ("-x", "-s", "-p", "no:cacheprovider", "--timeout", "7000")
    aside = ("-p", "native_library_plugin") if "FERRUM_LIBRARY_ASIDE" in environment else ()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *fixed, *aside, f"{FOLDER}/{test}.py"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": "tests/support", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert "skipped" not in done.stdout.splitlines()[-1], "what is skipped was not searched"


@cache
def library(sanitizers: str) -> Path:
    """Build the library with these sanitizers, as pip builds it."""
    target = folder("sanitized")
    define = f"cmake.define.FERRUM_SANITIZE={sanitizers}"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", target, "-C", define, REPOSITORY]
    subprocess.run(command, check=True)
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if "/_native." in each)
        found = Path(archive.extract(name, target))
    for each in sanitizers.split(","):
        assert f"__{RUNTIMES[each]}_".encode() in found.read_bytes(), f"there is no {each} sanitizer in the library"
    return found


def of_the_compiler(name: str) -> str:
    """Return the path of a library of the compiler."""
    command = [os.environ.get("CXX", "c++"), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("test", SEARCHES)
def test_long_search_over_shapes_finds_no_error(test: str) -> None:
    require_native()
    run(test, FERRUM_FUZZ="20")


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(("sanitizers", "times"), [("address,undefined", 4), ("thread", 1)])
def test_sanitizers_find_no_error(sanitizers: str, times: int, test: str) -> None:
    """The runtime of a sanitizer must be the first library of a process, with the library that throws exceptions."""
    require_native()
    first = RUNTIMES[sanitizers.split(",")[0]]
    run(
        test,
        FERRUM_LIBRARY_ASIDE=str(library(sanitizers)),
        FERRUM_FUZZ=str(times),
        LD_PRELOAD=" ".join(map(of_the_compiler, (f"lib{first}.so", "libstdc++.so"))),
        ASAN_OPTIONS="detect_leaks=0",  # the interpreter leaks at exit
        UBSAN_OPTIONS="print_stacktrace=1",
        OPENBLAS_NUM_THREADS="1",  # the thread sanitizer does not understand how numpy's threads wait
    )
