"""Builds of the conformance program in `native/test`, for this machine or another, and its reports."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from native_vectors import write
from source_tree import REPOSITORY

SWITCHES = ("-DFERRUM_PYTHON=OFF", "-DFERRUM_CONFORMANCE=ON", "-DFERRUM_STRICT=ON")


def need(package: str, *programs: str) -> str:
    """Return the first of the programs that is installed; skip the test if none is."""
    for program in programs:
        if shutil.which(program) is not None:
            return program
    pytest.skip(f"there is no {' or '.join(programs)} on this machine: install {package}")


def build(folder: Path, *options: str) -> Path:
    """Build the program with the CMake options; return its path."""
    need("cmake", "cmake")
    subprocess.run(["cmake", "-S", REPOSITORY / "native", "-B", folder / "build", *SWITCHES, *options], check=True)
    subprocess.run(["cmake", "--build", folder / "build", "--parallel", "2"], check=True)
    return folder / "build" / "conformance"


def output_of(command: Sequence[str | Path]) -> list[str]:
    """Return the lines that a run of the program prints, which must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def against_reference(folder: Path, command: Sequence[str | Path]) -> list[str]:
    """Run the program on a vector file of the reference; return its output, one line per tier."""
    cases = write(folder / "vectors", seed=1)
    lines = output_of([*command, folder / "vectors"])
    assert lines and all(line.endswith(f"{cases} cases, 0 failed") for line in lines)
    return lines
