"""Memory that control groups allow; `test_native_library.py` has their processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrum.core.control_groups import memory_left
from ferrum.runtime import memory

MIB = 1 << 20
UNIT = "0::/system.slice/ferrum.service\n"
DOCKER_V1 = "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n"


def v2(path: str, limit: int | str, used: int, inactive: int = 0) -> dict[str, str]:
    """The files of a control group of version 2, sizes in MiB."""
    most = limit if isinstance(limit, str) else str(limit * MIB)
    stat = f"anon 1\ninactive_file {inactive * MIB}\n"
    return {f"{path}memory.max": most, f"{path}memory.current": f"{used * MIB}\n", f"{path}memory.stat": stat}


def v1(path: str, limit: int, used: int) -> dict[str, str]:
    """The same of version 1."""
    files = {
        "limit_in_bytes": f"{limit * MIB}\n",
        "usage_in_bytes": f"{used * MIB}\n",
        "stat": "total_inactive_file 0\n",
    }
    return {f"memory{path}/memory.{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("membership", "files", "left"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", v2("", "max\n", 5), None),
        ("0::/\n", v2("", 600, 100), 500),
        ("0::/\n", v2("", 600, 500, inactive=300), 400),
        ("0::/\n", v2("", 600, 700), 0),
        (UNIT, v2("system.slice/ferrum.service/", 600, 100) | v2("system.slice/", 900, 700), 200),
        (UNIT, v2("system.slice/ferrum.service/", "max\n", 100) | v2("system.slice/", 900, 100), 800),
        (UNIT, v2("system.slice/other.service/", 600, 100), None),
        (DOCKER_V1, v1("/docker/ab", 300, 100) | v1("", 1 << 40, 100), 200),
        (DOCKER_V1, v1("", 300, 100), 200),
        (None, v2("", 600, 100), 500),
        ("0::/\n", {**v2("", 600, 100), "memory.stat": "nonsense"}, None),
    ],
)
def test_the_group_with_the_least_room_counts(
    tmp_path: Path, membership: str | None, files: dict[str, str], left: int | None
) -> None:
    root = tmp_path / "root"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if membership is not None:
        (tmp_path / "cgroup").write_text(membership)
    assert memory_left(tmp_path / "cgroup", root) == (None if left is None else left * MIB)


@pytest.mark.parametrize(("left", "available"), [(None, 100), (0, 0), (7, 7), (200, 100)])
def test_the_pool_is_sized_by_what_machine_and_groups_allow(
    monkeypatch: pytest.MonkeyPatch, left: int | None, available: int
) -> None:
    monkeypatch.setattr(memory, "_machine_memory", lambda: 100)
    monkeypatch.setattr(memory, "memory_left", lambda: left)
    assert memory.available_memory() == available
