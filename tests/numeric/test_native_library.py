"""Finding the library, its tiers and threads; serving without it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from native_twin import TIERS, require_native

from ferrum.core.errors import ConfigError, Unsupported
from ferrum.kernels.cpu import kernels as native
from ferrum.kernels.cpu.kernels import NativeKernels
from ferrum.kernels.cpu.library import available_threads, chosen_tier, cpu_quota
from ferrum.runtime.kernels import choose_kernels

FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"},
    "avx512_vnni": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"},
    "avx2_vnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx2": {"avx2", "fma", "f16c"},
    "portable": set(),
}


def machine_flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return set(next((line.split(":")[1].split() for line in lines if line.startswith("flags")), []))


def test_every_tier_that_the_processor_has_is_offered_best_first():
    require_native()
    assert [tier for tier, flags in FLAGS.items() if flags <= machine_flags()] == list(TIERS)


def test_a_tier_can_be_forced_and_a_missing_one_is_refused():
    require_native()
    for tier in TIERS:
        assert NativeKernels(tier, 1).numerics_id == f"native-{tier}-3"
    assert NativeKernels().tier == TIERS[0]
    with pytest.raises(ConfigError, match="portable") as refusal:
        chosen_tier("avx1024")
    assert refusal.value.param == "isa"


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_quotas_of_both_versions_of_control_groups(tmp_path, files, processors):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == processors


def test_threads_never_pass_the_affinity_mask():
    assert 1 <= available_threads() <= len(os.sched_getaffinity(0))
    if TIERS:
        assert NativeKernels(TIERS[0]).threads == available_threads()
        assert NativeKernels(TIERS[0], 3).threads == 3


def test_without_the_library_the_reference_serves_and_says_so_once(monkeypatch, caplog):
    def missing() -> None:
        raise Unsupported("native CPU kernels", "not built, for this test")

    monkeypatch.setattr(native, "load", missing)
    with caplog.at_level(logging.WARNING):
        assert {choose_kernels("auto").kernels.name for _ in range(3)} == {"reference"}
    assert [record.message for record in caplog.records] == [
        "the slow reference kernels serve: not built, for this test"
    ]
    with pytest.raises(Unsupported, match="not built"):
        choose_kernels("native")
    assert choose_kernels("reference").kernels.name == "reference"
