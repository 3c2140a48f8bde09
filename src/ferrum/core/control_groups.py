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

    What was read from files and not lately is no part of what they hold: it makes room by itself.

    Args:
        membership, root: see `group_directories`.
    """
    names = ("memory.max", "memory.current", "inactive_file")
    left = [_left(group, *names) for group in group_directories("", membership, root)]
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    left += [_left(group, *names) for group in group_directories("memory", membership, root)]
    return min((each for each in left if each is not None), default=None)


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


def _left(group: Path, limit: str, used: str, reclaimable: str) -> int | None:
    try:
        room = int((group / limit).read_text()) - int((group / used).read_text())  # "max" is no limit
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, room + int(stat[reclaimable]))
    except (OSError, ValueError, KeyError):
        return None
