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


def memory_left(membership: Path = MEMBERSHIP, root: Path = ROOT) -> int | None:
    """Bytes that the control groups of a process still let it take; None where none has a limit.

    What was read from files and not lately is no part of what they hold: it makes room by itself.
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


def _left(group: Path, limit: str, used: str, reclaimable: str) -> int | None:
    try:
        room = int((group / limit).read_text()) - int((group / used).read_text())  # "max" is no limit
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, room + int(stat[reclaimable]))
    except (OSError, ValueError, KeyError):
        return None
