"""The kernels without Python against vectors of the reference: with sanitizers, on arm64, by other compilers."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from native_vectors import write
from source_tree import REPOSITORY

pytestmark = pytest.mark.soak

ARM64 = (
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
    "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
    "-DCMAKE_EXE_LINKER_FLAGS=-static",
)


def need(package: str, *programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} on this machine: install {package}")


def report_of(folder: Path, *options: str, through: tuple[str, ...] = (), stride: int = 150) -> list[str]:
    """Build the conformance program with the options; return its output for a vector file, one line per tier.

    Also compares the tiers with each other, for every `stride`-th number of rows.
    """
    need("cmake", "cmake")
    switches = ("-DFERRUM_PYTHON=OFF", "-DFERRUM_CONFORMANCE=ON", "-DFERRUM_STRICT=ON", *options)
    subprocess.run(["cmake", "-S", REPOSITORY / "native", "-B", folder / "build", *switches], check=True)
    subprocess.run(["cmake", "--build", folder / "build", "--parallel", "2"], check=True)
    program = [*through, folder / "build" / "conformance"]
    cases = write(folder / "vectors", seed=1)
    lines = output_of(*program, folder / "vectors")
    assert f"{cases} cases, 0 failed" in lines[-1]
    output_of(*program, "--tiers", stride)
    return lines


def output_of(*command: Any) -> list[str]:
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def test_tiers_give_equal_bits_for_1_to_600_rows(tmp_path: Path) -> None:
    need("a C++ compiler", "c++")
    assert report_of(tmp_path, stride=1)


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_all_tiers_match_the_reference_under_sanitizers(tmp_path: Path, sanitizers: str) -> None:
    need("a C++ compiler", "c++")
    assert report_of(tmp_path, f"-DFERRUM_SANITIZE={sanitizers}")


def test_portable_kernels_match_the_reference_on_arm64(tmp_path: Path) -> None:
    need("g++-aarch64-linux-gnu", "aarch64-linux-gnu-g++")
    native = platform.machine() == "aarch64"
    if not native:
        need("qemu-user-static", "qemu-aarch64-static")
    lines = report_of(tmp_path, *ARM64, through=() if native else ("qemu-aarch64-static",))
    assert [line.split(",")[0] for line in lines] == ["portable", "portable"]


def test_avx_vnni_tier_matches_the_reference_by_its_stand_in(tmp_path: Path) -> None:
    need("a C++ compiler", "c++")
    lines = report_of(tmp_path, "-DFERRUM_VNNI_STAND_IN=ON")
    assert "avx2_vnni" in {line.split(",")[0] for line in lines}


@pytest.mark.parametrize(("package", "compiler"), [("g++-11", "g++-11"), ("clang-14", "clang++-14")])
def test_other_compilers_give_the_same_results(tmp_path: Path, package: str, compiler: str) -> None:
    need(package, compiler)
    assert report_of(tmp_path, f"-DCMAKE_CXX_COMPILER={compiler}")
