"""CPU, memory and swap limits of control groups, on every level and in both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrum.core.control_groups import cpu_quota, memory_left
from ferrum.runtime import memory

MIB = 1 << 20

UNIT = "0::/system.slice/ferrum.service\n"
SLICE = "system.slice/cpu.max"
SERVICE = "system.slice/ferrum.service/cpu.max"
DOCKER = "4:memory:/docker/ab:c\n3:cpu,cpuacct:/docker/ab:c\n1:name=systemd:/docker\n0::/other\n"


def laid_out(folder: Path, membership: str | None, files: dict[str, str]) -> tuple[Path, Path]:
    """Return the membership file, if any, and the root with these files."""
    root = folder / "root"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if membership is not None:
        (folder / "cgroup").write_text(membership)
    return folder / "cgroup", root


def cpu_v1(path: str, quota: int) -> dict[str, str]:
    """Return the CPU files of a version 1 control group."""
    return {f"cpu{path}/cpu.cfs_quota_us": f"{quota}\n", f"cpu{path}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("membership", "files", "processors"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        ("0::/\n", {"cpu.max": "9" * 5000 + " 1"}, None),
        ("0::/\n", {}, None),
        # A unit with CPUQuota=: the root has no such file, and the lowest quota of all ancestors counts.
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
        # Version 1, alone and together with version 2.
        ("1:cpu:/\n", cpu_v1("", -1), None),
        ("1:cpu:/\n", cpu_v1("", 400_000), 4.0),
        (DOCKER, cpu_v1("", -1) | cpu_v1("/docker/ab:c", 250_000), 2.5),
        (DOCKER, cpu_v1("", -1) | cpu_v1("/docker", 100_000) | cpu_v1("/docker/ab:c", 250_000), 1.0),
        (DOCKER, cpu_v1("", 150_000), 1.5),
        (DOCKER, cpu_v1("/other", 150_000), None),
        # Unreadable membership: the roots still count.
        ("nonsense\n\n", {"cpu.max": "150000 100000\n"}, 1.5),
        (None, {"cpu.max": "150000 100000\n"}, 1.5),
        (None, cpu_v1("", 400_000), 4.0),
        (None, {}, None),
    ],
)
def test_the_lowest_quota_of_a_group_and_its_ancestors_counts(
    tmp_path: Path, membership: str | None, files: dict[str, str], processors: float | None
) -> None:
    assert cpu_quota(*laid_out(tmp_path, membership, files)) == processors


def v2(path: str, limit: int | str, used: int, **files: int) -> dict[str, str]:
    """The files of a control group of version 2, sizes in MiB; `files` are those of pages of files, by their kind."""
    most = limit if isinstance(limit, str) else str(limit * MIB)
    stat = "anon 1\n" + "".join(f"{kind}_file {size * MIB}\n" for kind, size in files.items())
    return {f"{path}memory.max": most, f"{path}memory.current": f"{used * MIB}\n", f"{path}memory.stat": stat}


def v1(path: str, limit: int, used: int, active: int = 0, inactive: int = 0) -> dict[str, str]:
    """The same of version 1."""
    files = {
        "limit_in_bytes": f"{limit * MIB}\n",
        "usage_in_bytes": f"{used * MIB}\n",
        "stat": f"active_file 7\ntotal_active_file {active * MIB}\ntotal_inactive_file {inactive * MIB}\n",
    }
    return {f"memory{path}/memory.{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("membership", "files", "left"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", v2("", "max\n", 5), None),
        ("0::/\n", v2("", 600, 100), 500),
        ("0::/\n", v2("", 600, 500, inactive=300), 400),
        ("0::/\n", v2("", 600, 500, active=300), 400),
        ("0::/\n", v2("", 600, 500, active=200, inactive=100), 400),
        ("0::/\n", v2("", 600, 700), 0),
        ("0::/\n", v2("", "max\n", 100) | {"memory.high": f"{600 * MIB}\n"}, 500),
        ("0::/\n", v2("", 600, 100) | {"memory.high": f"{300 * MIB}\n"}, 200),
        ("0::/\n", v2("", 600, 100) | {"memory.high": "max\n"}, 500),
        (UNIT, v2("system.slice/ferrum.service/", 600, 100) | v2("system.slice/", 900, 700), 200),
        (UNIT, v2("system.slice/ferrum.service/", "max\n", 100) | v2("system.slice/", 900, 100), 800),
        (UNIT, v2("system.slice/other.service/", 600, 100), None),
        (DOCKER, v1("/docker/ab:c", 300, 100) | v1("", 1 << 40, 100), 200),
        (DOCKER, v1("", 300, 100), 200),
        (DOCKER, v1("", 300, 250, active=100, inactive=50), 200),
        (None, v2("", 600, 100), 500),
        ("0::/\n", {**v2("", 600, 100), "memory.stat": "nonsense"}, None),
    ],
)
def test_the_group_with_the_least_memory_left_counts(
    tmp_path: Path, membership: str | None, files: dict[str, str], left: int | None
) -> None:
    assert memory_left(*laid_out(tmp_path, membership, files)) == (None if left is None else left * MIB)


def swap_v2(path: str, limit: int | str, used: int) -> dict[str, str]:
    """Return the swap files of a version 2 control group."""
    most = limit if isinstance(limit, str) else str(limit * MIB)
    return {f"{path}memory.swap.max": most, f"{path}memory.swap.current": f"{used * MIB}\n"}


def swap_v1(path: str, limit: int, used: int) -> dict[str, str]:
    """Return the files of memory and swap together of a version 1 control group."""
    files = {"limit_in_bytes": limit, "usage_in_bytes": used}
    return {f"memory{path}/memory.memsw.{name}": f"{size * MIB}\n" for name, size in files.items()}


@pytest.mark.parametrize(
    ("membership", "files", "free"),
    [
        ("0::/\n", {}, 900 + 5000),
        ("0::/\n", v2("", 600, 100), 500 + 5000),  # an old kernel that does not count swap
        ("0::/\n", v2("", 600, 100) | swap_v2("", "max\n", 7), 500 + 5000),
        ("0::/\n", v2("", 600, 100) | swap_v2("", 0, 0), 500),  # as in Kubernetes
        ("0::/\n", v2("", 600, 100) | swap_v2("", 300, 100), 500 + 200),
        ("0::/\n", v2("", 600, 100) | swap_v2("", 100, 300), 500),
        ("0::/\n", swap_v2("", 9000, 100), 900 + 5000),
        (UNIT, swap_v2("system.slice/ferrum.service/", 300, 0) | swap_v2("system.slice/", 200, 100), 900 + 100),
        (DOCKER, v1("", 300, 100) | swap_v1("", 300, 100), 200),
        (DOCKER, v1("", 300, 250, active=150) | swap_v1("", 600, 350), 200 + 200),
        (DOCKER, v1("", 2000, 100) | swap_v1("", 2000, 100), 1900),  # the machine has 900 MiB left, and swap
    ],
)
def test_swap_counts_within_the_limits_of_the_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str], free: int
) -> None:
    for name, path in zip(("MEMBERSHIP", "ROOT"), laid_out(tmp_path, membership, files), strict=True):
        monkeypatch.setattr(memory, name, path)
    monkeypatch.setattr(memory, "_machine_memory", lambda: 900 * MIB)
    monkeypatch.setattr(memory, "_meminfo", lambda name: {"SwapFree": 5000 * MIB}[name])
    assert memory.free_memory() == free * MIB


@pytest.mark.parametrize(("left", "available"), [(None, 100), (0, 0), (7, 7), (200, 100)])
def test_the_pool_is_sized_within_machine_and_group_limits(
    monkeypatch: pytest.MonkeyPatch, left: int | None, available: int
) -> None:
    monkeypatch.setattr(memory, "_machine_memory", lambda: 100)
    monkeypatch.setattr(memory, "memory_left", lambda *paths: left)
    assert memory.available_memory() == available
