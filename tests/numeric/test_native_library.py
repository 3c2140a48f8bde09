"""Loading of the library, its tiers and threads, and the fallback without it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from ferrum.core.errors import ConfigError, Unsupported
from ferrum.kernels.cpu import native_kernels as native
from ferrum.kernels.cpu.library import available_threads, chosen_tier, load
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import PoolGroup
from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime.backend import choose_kernels
from native_twin import TIERS, require_native

FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"},
    "avx512_vnni": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"},
    "avx2_vnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx2": {"avx2", "fma", "f16c"},
    "neon_dot": {"asimd", "asimddp"},
    "neon": {"asimd"},
    "portable": set(),
}


def about_processor(name: str) -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return set(next((line.split(":")[1].split() for line in lines if line.startswith(name)), []))


def test_all_tiers_of_the_processor_are_listed_best_first():
    require_native()
    features = about_processor("flags") | about_processor("Features")  # the latter on aarch64
    expected = [tier for tier, flags in FLAGS.items() if flags <= features]
    if expected[0] == "avx512" and about_processor("vendor_id") != {"AuthenticAMD"}:
        expected[:2] = reversed(expected[:2])  # its bfloat16 dot products are slow
    assert expected == list(TIERS)


def test_tier_can_be_chosen_and_missing_one_is_refused():
    require_native()
    for tier in TIERS:
        kernels = NativeKernels(tier, 1)
        assert (kernels.tier, kernels.description) == (tier, f"native {tier}")
        assert kernels.numerics_id == ReferenceKernels.numerics_id == NUMERICS_ID
    assert NativeKernels().tier == TIERS[0]
    with pytest.raises(ConfigError, match="portable") as refusal:
        chosen_tier("avx1024")
    assert refusal.value.param == "isa"


def test_default_threads_follow_the_cpu_quota(monkeypatch):
    asked = []
    monkeypatch.setattr("ferrum.kernels.cpu.library.cpu_quota", lambda *paths: asked.append(paths) or 1.4)
    assert available_threads() == 1
    assert asked == [(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]


def test_default_threads_stay_within_the_affinity_mask():
    assert 1 <= available_threads() <= len(os.sched_getaffinity(0))
    if TIERS:
        assert NativeKernels(TIERS[0]).threads == available_threads()
        assert NativeKernels(TIERS[0], 3).threads == 3


def test_head_size_is_limited_by_the_library():
    require_native()
    most = load().MAX_HEAD_DIM
    NativeKernels(head_dim=most).allocate((PoolGroup("g", 1, 16, 1, 1, most, most, "int8"),))
    with pytest.raises(Unsupported, match=f"{most + 1}"):
        NativeKernels(head_dim=most + 1)
    with pytest.raises(ValueError, match="heads"):
        NativeKernels().allocate((PoolGroup("g", 1, 16, 1, 1, most + 1, most + 1, "int8"),))


def test_freed_panel_memory_is_reused_and_zeroed():
    require_native()
    runtime = load().Runtime("portable", 1)

    def packed(rows: int) -> np.ndarray:
        return runtime.pack("float32", np.full((rows, 1000), 7, np.float32))

    place = packed(64).ctypes.data
    kept = packed(1)
    assert kept.ctypes.data == place, "it was given back"
    assert packed(1).ctypes.data != place, "it is held"
    lanes = kept.view(np.float32).reshape(1000, 32)
    assert (lanes[:, 0] == 7).all() and not lanes[:, 1:].any()


def test_error_names_the_number_of_refused_threads(monkeypatch):
    class Refused:
        MAX_HEAD_DIM, NUMERICS = 1, 0
        Runtime = staticmethod(lambda tier, threads: (_ for _ in ()).throw(RuntimeError("for want of room")))

    monkeypatch.setattr(native, "load", lambda: Refused)
    monkeypatch.setattr(native, "chosen_tier", lambda isa: "portable")
    with pytest.raises(ConfigError, match=r"300 threads: for want of room") as refusal:
        choose_kernels("cpu", "auto", threads=300)
    assert refusal.value.param == "threads"


def test_reference_kernels_replace_a_missing_library_with_one_warning(monkeypatch, caplog):
    def missing() -> None:
        raise Unsupported("native CPU kernels", "not built, for this test")

    monkeypatch.setattr(native, "load", missing)
    with caplog.at_level(logging.WARNING):
        assert {choose_kernels("cpu", "auto").kernels.name for _ in range(3)} == {"reference"}
    (warning,) = caplog.records
    assert "not built, for this test" in warning.message
    for asked in (("native",), ("auto", "avx2")):
        with pytest.raises(Unsupported, match="not built"):
            choose_kernels("cpu", *asked)
    assert choose_kernels("cpu", "reference").kernels.name == "reference"


def test_library_of_another_arithmetic_is_refused(monkeypatch):
    """Its source was changed or an old build is left: its bits would not be those that the id names."""
    require_native()
    monkeypatch.setattr("ferrum.kernels.cpu.library.VERSION", 99)
    with pytest.raises(Unsupported, match=r"not 99: install ferrum again"):
        load()


def test_kernels_of_the_cpu_are_refused_on_a_device():
    for kernels in ("native", "reference"):
        with pytest.raises(ConfigError, match=f"{kernels} computes on the CPU, not on cuda:1"):
            choose_kernels("cuda:1", kernels)
    with pytest.raises(ConfigError, match="use device=cuda"):
        choose_kernels("cpu", "cuda")


@pytest.mark.parametrize("option", [{"isa": "portable"}, {"threads": 1}])
def test_reference_kernels_refuse_native_options(option):
    with pytest.raises(ConfigError) as refusal:
        choose_kernels("cpu", "reference", **option)
    assert {refusal.value.param} == option.keys()
