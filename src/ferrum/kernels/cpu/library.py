"""Finding the native library, and how many threads it may use."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from ferrum.core.errors import ConfigError, Unsupported


def load() -> Any:
    """The compiled module.

    Raises:
        Unsupported: it was not built (no compiler at installation time), or does not load here.
    """
    try:
        return importlib.import_module("ferrum.kernels.cpu._native")
    except ImportError as error:
        raise Unsupported("native CPU kernels", f"the library was not built or does not load: {error}") from error


def tiers() -> tuple[str, ...]:
    """Instruction tiers that this machine runs, best first. Raises Unsupported as `load`."""
    return tuple(load().tiers())


def chosen_tier(name: str) -> str:
    """The tier of that name, or the best for "auto".

    Raises:
        ConfigError: this machine does not have it.
        Unsupported: as `load`.
    """
    known = tiers()
    if name == "auto":
        return known[0]
    if name not in known:
        raise ConfigError(f"instruction tier {name!r}: this machine has {', '.join(known)}", param="isa")
    return name


def available_threads() -> int:
    """Processors that this process may use: its affinity mask, cut by the quota of its control group."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, count if quota is None else min(count, int(quota + 0.5)))


def cpu_quota(membership: Path, root: Path) -> float | None:
    """Processors that the least quota of a process's control group and of those around it amounts to; None without one.

    Args:
        membership: the file that names the control groups, a line `number:controllers:path` each (cgroups(7)).
        root: where version 2 is mounted; version 1's processors in its folder `cpu`.
    """
    paths = _paths(membership)
    quotas = [_quota_v2(level) for level in _levels(root, paths.get("", "/"))]
    quotas += [_quota_v1(level) for level in _levels(root / "cpu", paths.get("cpu", "/"))]
    return min((quota for quota in quotas if quota is not None), default=None)


def _paths(membership: Path) -> dict[str, str]:
    """The control group of each controller of version 1, and under no name that of version 2."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {name: line[2] for line in lines if len(line) == 3 for name in line[1].split(",")}


def _levels(mount: Path, path: str) -> list[Path]:
    """The directories of a control group and of those around it.

    In a container the path may be the host's, or lead out of what is mounted: then only the mount itself is there.
    """
    parts = path.strip("/").split("/")
    return [mount.joinpath(*parts[:depth]) for depth in range(1 if ".." in parts else len(parts) + 1)]


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
