"""Finding the library, its tiers and threads; serving without it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from native_twin import TIERS, require_native

from ferrum.core.errors import ConfigError, Unsupported
from ferrum.kernels.cpu import kernels as native
from ferrum.kernels.cpu.kernels import MAX_HEAD_DIM, NativeKernels
from ferrum.kernels.cpu.library import available_threads, chosen_tier, cpu_quota
from ferrum.kernels.interface import PoolGroup
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


def v1(path: str, quota: int) -> dict[str, str]:
    """The files of a control group of version 1."""
    return {f"cpu{path}/cpu.cfs_quota_us": f"{quota}\n", f"cpu{path}/cpu.cfs_period_us": "100000\n"}


UNIT = "0::/system.slice/ferrum.service\n"
SLICE = "system.slice/cpu.max"
SERVICE = "system.slice/ferrum.service/cpu.max"
DOCKER_V1 = "4:memory:/docker/ab:c\n3:cpu,cpuacct:/docker/ab:c\n1:name=systemd:/docker\n0::/other\n"


@pytest.mark.parametrize(
    ("membership", "files", "processors"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        ("0::/\n", {"cpu.max": "9" * 5000 + " 1"}, None),
        ("0::/\n", {}, None),
        # A unit with CPUQuota=: the root has no such file, and the least quota on the way counts.
        (UNIT, {SERVICE: "50000 100000\n"}, 0.5),
        (UNIT, {SERVICE: "max 100000\n", SLICE: "200000 100000\n"}, 2.0),
        (UNIT, {SERVICE: "400000 100000\n", SLICE: "300000 200000\n"}, 1.5),
        (UNIT, {SERVICE: "100000 100000\n", SLICE: "300000 100000\n"}, 1.0),
        (UNIT, {SERVICE: "max 100000\n", SLICE: "max 100000\n"}, None),
        (UNIT, {"system.slice/other.service/cpu.max": "50000 100000\n"}, None),
        ("0::/a:b c/d\n", {"a:b c/d/cpu.max": "50000 100000\n"}, 0.5),
        # A container that sees its own group as the root: the path is the host's, or leads out of it.
        (UNIT, {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/../../x\n", {"cpu.max": "150000 100000\n", "x/cpu.max": "50000 100000\n"}, 1.5),
        # Version 1, alone and beside the other.
        ("1:cpu:/\n", v1("", -1), None),
        ("1:cpu:/\n", v1("", 400_000), 4.0),
        (DOCKER_V1, v1("", -1) | v1("/docker/ab:c", 250_000), 2.5),
        (DOCKER_V1, v1("", -1) | v1("/docker", 100_000) | v1("/docker/ab:c", 250_000), 1.0),
        (DOCKER_V1, v1("", 150_000), 1.5),
        (DOCKER_V1, v1("/other", 150_000), None),
        # What cannot be read: the roots are asked all the same.
        ("nonsense\n\n", {"cpu.max": "150000 100000\n"}, 1.5),
        (None, {"cpu.max": "150000 100000\n"}, 1.5),
        (None, v1("", 400_000), 4.0),
        (None, {}, None),
    ],
)
def test_the_least_quota_of_a_process_and_all_around_it_counts(tmp_path, membership, files, processors):
    root = tmp_path / "root"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if membership is not None:
        (tmp_path / "cgroup").write_text(membership)
    assert cpu_quota(tmp_path / "cgroup", root) == processors


def test_the_team_is_as_large_as_the_units_quota(monkeypatch):
    asked = []
    monkeypatch.setattr("ferrum.kernels.cpu.library.cpu_quota", lambda *paths: asked.append(paths) or 1.4)
    assert available_threads() == 1
    assert asked == [(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]


def test_threads_never_pass_the_affinity_mask():
    assert 1 <= available_threads() <= len(os.sched_getaffinity(0))
    if TIERS:
        assert NativeKernels(TIERS[0]).threads == available_threads()
        assert NativeKernels(TIERS[0], 3).threads == 3


def test_heads_are_as_wide_as_the_library_takes_them():
    require_native()
    NativeKernels(head_dim=MAX_HEAD_DIM).allocate((PoolGroup("g", 1, 16, 1, 1, MAX_HEAD_DIM, MAX_HEAD_DIM, "int8"),))
    with pytest.raises(Unsupported, match="513"):
        NativeKernels(head_dim=MAX_HEAD_DIM + 1)
    with pytest.raises(ValueError, match="heads"):
        NativeKernels().allocate((PoolGroup("g", 1, 16, 1, 1, MAX_HEAD_DIM + 1, MAX_HEAD_DIM + 1, "int8"),))


def test_threads_that_the_system_refuses_are_told_by_their_number(monkeypatch):
    class Refused:
        Runtime = staticmethod(lambda tier, threads: (_ for _ in ()).throw(RuntimeError("for want of room")))

    monkeypatch.setattr(native, "load", lambda: Refused)
    monkeypatch.setattr(native, "chosen_tier", lambda isa: "portable")
    with pytest.raises(ConfigError, match=r"team of 300: for want of room") as refusal:
        choose_kernels("auto", threads=300)
    assert refusal.value.param == "threads"


def test_without_the_library_the_reference_serves_and_says_so_once(monkeypatch, caplog):
    def missing() -> None:
        raise Unsupported("native CPU kernels", "not built, for this test")

    monkeypatch.setattr(native, "load", missing)
    with caplog.at_level(logging.WARNING):
        assert {choose_kernels("auto").kernels.name for _ in range(3)} == {"reference"}
    assert [record.message for record in caplog.records] == [
        "the slow reference kernels serve: not built, for this test"
    ]
    for asked in (("native",), ("auto", "avx2")):
        with pytest.raises(Unsupported, match="not built"):
            choose_kernels(*asked)
    assert choose_kernels("reference").kernels.name == "reference"


@pytest.mark.parametrize("option", [{"isa": "portable"}, {"threads": 1}])
def test_options_of_the_native_kernels_are_refused_with_the_reference(option):
    with pytest.raises(ConfigError) as refusal:
        choose_kernels("reference", **option)
    assert {refusal.value.param} == option.keys()
