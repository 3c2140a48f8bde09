"""The control groups that this process is in (cgroups(7)): their limits are its own, beside the machine's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MEMBERSHIP: Final = Path("/proc/self/cgroup")
ROOT: Final = Path("/sys/fs/cgroup")


def group_directories(controller: str, membership: Path, root: Path) -> list[Path]:
    """The directories of a process's control group and of those around it, the outermost first.

    In a container the path may be the host's, or lead out of what is mounted: then only the mount itself is there.

    Args:
        controller: of version 1, mounted in a folder of its name; none: version 2.
        membership: the file that names the control groups, a line `number:controllers:path` each.
        root: where they are mounted.
    """
    parts = _paths(membership).get(controller, "/").strip("/").split("/")
    mount = root / controller
    return [mount.joinpath(*parts[:depth]) for depth in range(1 if ".." in parts else len(parts) + 1)]


def cpu_quota(membership: Path, root: Path) -> float | None:
    """Processors that the least quota of a process's control group and of those around it amounts to; None without one.

    Args:
        membership, root: see `group_directories`.
    """
    quotas = [_quota_v2(group) for group in group_directories("", membership, root)]
    quotas += [_quota_v1(group) for group in group_directories("cpu", membership, root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_left(membership: Path, root: Path) -> int | None:
    """Bytes that the control groups of a process still let it take; None where none has a limit.

    What was read from files, however lately, is no part of what they hold: it makes room by itself. The weights of a
    service that starts again are there from the last time.

    Args:
        membership, root: see `group_directories`.
    """
    # Beyond the high mark nobody is killed, but all are put to sleep again and again.
    marks = ("memory.max", "memory.high")
    groups = group_directories("", membership, root)
    left = [_left(group, mark, "memory.current") for group in groups for mark in marks]
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    left += [_left(group, *names) for group in group_directories("memory", membership, root)]
    return min((each for each in left if each is not None), default=None)


def memory_with_swap(memory: int, swap: int, membership: Path, root: Path) -> int:
    """Bytes that a process can take in all, where so much memory is left to it and so much of the machine's swap.

    Version 2 limits what a control group swaps, version 1 its memory and swap together.

    Args:
        membership, root: see `group_directories`.
    """
    groups = group_directories("", membership, root)
    swaps = [_room(group, "memory.swap.max", "memory.swap.current") for group in groups]
    names = ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", "total_")
    both = [_left(group, *names) for group in group_directories("memory", membership, root)]
    swap = min([swap, *(max(0, each) for each in swaps if each is not None)])
    return min([memory + swap, *(each for each in both if each is not None)])


def _paths(membership: Path) -> dict[str, str]:
    """The control group of each controller of version 1, and under no name that of version 2."""
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
    """What a group may yet take, with the pages of files that it makes room of; the prefix is of their names."""
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        files = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    except (OSError, ValueError):
        return None
    room = _room(group, limit, used)
    return None if room is None else max(0, room + files)
