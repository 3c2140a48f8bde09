"""The NEON tiers under emulation: the bits of the reference and of this machine's tiers (`make test-neon`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from conformance_program import against_reference, build, need, output_of
from shared_models import folder

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]  # emulation is slow

STRIDE = "37"  # every such number of rows up to 600: emulation takes a hundred times as long
TARGET = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DCMAKE_EXE_LINKER_FLAGS=-static")
COMPILERS = {
    "gcc": ("-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",),
    "clang": ("-DCMAKE_CXX_COMPILER=clang++", "-DCMAKE_CXX_COMPILER_TARGET=aarch64-linux-gnu"),
}
TIERS = {"max": ["neon_dot", "neon", "portable"], "cortex-a57": ["neon", "portable"]}
"""Tiers of emulated processors: the second has no dot products."""


@cache
def program_for(compiler: str) -> Path:
    return build(folder(f"aarch64-{compiler}"), *TARGET, *COMPILERS[compiler])


def emulated(compiler: str, processor: str) -> list[str | Path]:
    """Return the command of the program on an emulated processor."""
    need("g++-aarch64-linux-gnu", "aarch64-linux-gnu-g++")  # its libraries serve both compilers
    emulator = need("qemu-user", "qemu-aarch64", "qemu-aarch64-static")
    if compiler == "clang":
        need("clang", "clang++")
    return [emulator, "-cpu", processor, program_for(compiler)]


@pytest.mark.parametrize("processor", TIERS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_neon_tiers_match_the_reference(tmp_path: Path, compiler: str, processor: str) -> None:
    lines = against_reference(tmp_path, emulated(compiler, processor))
    assert list(dict.fromkeys(line.split(",")[0] for line in lines)) == TIERS[processor]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_neon_tiers_give_the_bits_of_this_machine(compiler: str) -> None:
    """Numbers include those whose sums round up to 2^-126, which AArch64 flushes and x86 does not."""
    command = emulated(compiler, "max")
    need("a C++ compiler", "c++")
    here = output_of([build(folder("conformance")), "--tiers", STRIDE])
    assert here == output_of([*command, "--tiers", STRIDE])
