"""Processes of ranks: which a process has started, and what they leave behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

MODEL = "ferrum-tiny"
PATIENCE = 60


def workers_of(process: int) -> list[int]:
    """Return the ranks that a process has started, in their order."""
    return _children(process, b"rank_worker")


def hosts_of(process: int) -> list[int]:
    """Return the engine processes that a process has started."""
    return _children(process, b"engine_main")


def _children(process: int, name: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == process:
                found += [int(entry.name)] if name in (entry / "cmdline").read_bytes() else []
        except OSError:  # it has ended
            continue
    return sorted(found)


def runs(process: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, at most `PATIENCE` seconds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def held_things() -> tuple[int, int, list[str]]:
    """Return how many sockets and memories of ranks this process has, and the machine's named shared memory."""
    sockets = sum(_target(each).startswith("socket:") for each in Path("/proc/self/fd").iterdir())
    memories = Path("/proc/self/maps").read_text().count("memfd:ferrum-ranks")
    return sockets, memories, sorted(each.name for each in Path("/dev/shm").iterdir())


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # the descriptor that listed the folder
        return ""
