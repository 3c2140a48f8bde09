"""The kernels without Python against vectors of the reference: with sanitizers, by other compilers."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance_program import against_reference, build, need, output_of

pytestmark = pytest.mark.soak


def report_of(folder: Path, *options: str, stride: int = 120) -> list[str]:
    """Build the conformance program with the options; return its output for a vector file, one line per tier.

    Also compares the tiers with each other, for every `stride`-th number of rows.
    """
    program = build(folder, *options)
    output_of([program, "--tiers", str(stride)])
    return against_reference(folder, [program])


def test_tiers_give_equal_bits_for_1_to_600_rows(tmp_path: Path) -> None:
    need("a C++ compiler", "c++")
    assert report_of(tmp_path, stride=1)


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_all_tiers_match_the_reference_under_sanitizers(tmp_path: Path, sanitizers: str) -> None:
    need("a C++ compiler", "c++")
    assert report_of(tmp_path, f"-DFERRUM_SANITIZE={sanitizers}")


def test_avx_vnni_tier_matches_the_reference_by_its_stand_in(tmp_path: Path) -> None:
    need("a C++ compiler", "c++")
    lines = report_of(tmp_path, "-DFERRUM_VNNI_STAND_IN=ON")
    assert "avx2_vnni" in {line.split(",")[0] for line in lines}


@pytest.mark.parametrize(("package", "compiler"), [("g++-11", "g++-11"), ("clang-14", "clang++-14")])
def test_other_compilers_give_the_same_results(tmp_path: Path, package: str, compiler: str) -> None:
    need(package, compiler)
    assert report_of(tmp_path, f"-DCMAKE_CXX_COMPILER={compiler}")
