"""Limits of the control groups (cgroups(7)) that this process is in: CPU quota, memory and swap.

Both versions of the interface are read. The machine's own limits are in `runtime/memory.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

MEMBERSHIP: Final = Path("/proc/self/cgroup")
ROOT: Final = Path("/sys/fs/cgroup")


def group_directories(controller: str, membership: Path, root: Path) -> list[Path]:
    """Return the directories of a process's control group and its ancestors, the outermost first.

    In a container the path may be the host's, or lead out of the mount: then only the mount itself is there.

    Args:
        controller: name of a version 1 controller, mounted in a folder of that name; empty for version 2.
        membership: file that lists the control groups, a line `number:controllers:path` each.
        root: where they are mounted.
    """
    parts = _paths(membership).get(controller, "/").strip("/").split("/")
    mount = root / controller
    return [mount.joinpath(*parts[:depth]) for depth in range(1 if ".." in parts else len(parts) + 1)]


def cpu_quota(membership: Path, root: Path) -> float | None:
    """Return the lowest CPU quota of the control groups, in CPUs; None without one.

    Args:
        membership, root: see `group_directories`.
    """
    quotas = [_quota_v2(group) for group in group_directories("", membership, root)]
    quotas += [_quota_v1(group) for group in group_directories("cpu", membership, root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_left(membership: Path, root: Path) -> int | None:
    """Return the bytes that the control groups still allow; None without a limit.

    Cached file pages do not count as used, since the kernel reclaims them. After a restart the weights of a service are
    still cached.

    Args:
        membership, root: see `group_directories`.
    """
    # Beyond memory.high the kernel kills no process but throttles all of them.
    marks = ("memory.max", "memory.high")
    groups = group_directories("", membership, root)
    left = [_left(group, mark, "memory.current") for group in groups for mark in marks]
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    left += [_left(group, *names) for group in group_directories("memory", membership, root)]
    return min((each for each in left if each is not None), default=None)


def memory_with_swap(memory: int, swap: int, membership: Path, root: Path) -> int:
    """Return the bytes that a process can allocate from this memory and the machine's swap.

    Version 2 limits what a control group swaps, version 1 its memory and swap together.

    Args:
        memory, swap: bytes left.
        membership, root: see `group_directories`.
    """
    groups = group_directories("", membership, root)
    swaps = [_room(group, "memory.swap.max", "memory.swap.current") for group in groups]
    names = ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", "total_")
    both = [_left(group, *names) for group in group_directories("memory", membership, root)]
    swap = min([swap, *(max(0, each) for each in swaps if each is not None)])
    return min([memory + swap, *(each for each in both if each is not None)])


def _paths(membership: Path) -> dict[str, str]:
    """Return the control group of each version 1 controller, and of version 2 under the empty name."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {name: line[2] for line in lines if len(line) == 3 for name in line[1].split(",")}


def _quota_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        return None if quota < 0 else quota / int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def _room(group: Path, limit: str, used: str) -> int | None:
    try:
        return int((group / limit).read_text()) - int((group / used).read_text())  # "max" is no limit
    except (OSError, ValueError):
        return None


def _left(group: Path, limit: str, used: str, prefix: str = "") -> int | None:
    """Return the bytes that a group may still use, reclaimable file pages included.

    Args:
        group: its directory.
        limit, used: names of the files with its limit and its usage.
        prefix: of the names in `memory.stat`.
    """
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        files = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    except (OSError, ValueError):
        return None
    room = _room(group, limit, used)
    return None if room is None else max(0, room + files)
