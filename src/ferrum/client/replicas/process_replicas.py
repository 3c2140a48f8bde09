"""`ProcessReplicas`: engines that are processes of this machine. One that ends is started again."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ferrum.client.engine_process import ProcessHost
from ferrum.core.errors import FerrumError, ReplicaMismatch
from ferrum.engine.host import Recipe

if TYPE_CHECKING:
    from ferrum.client.engine_process import Child
    from ferrum.client.replicas.members import Joins

_LOG: Final = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""How often a start is tried."""

PAUSE_SECONDS: Final = 1.0
"""Pause before the second attempt, doubled before the next one."""

_SUFFIXES: Final = (".safetensors", ".json", ".gguf")
"""Of the files that decide on a model's output."""


class ProcessReplicas:
    """A number of engine processes.

    Args:
        recipe: builds an engine.
        count: how many engines.
        child: the process of the first one; None: a new one.
        path: directory or file of the model: an engine is not started again from changed files.
    """

    def __init__(self, recipe: Recipe, count: int, child: Child | None = None, path: Path | None = None) -> None:
        self._recipe = recipe
        self._path = path
        self._files = _identity(path)
        self._count = count
        self._child = child
        self._closed = threading.Event()

    def start(self, joins: Joins) -> None:
        self._joins = joins
        hosts = [ProcessHost(self._recipe, self._child), *(ProcessHost(self._recipe) for _ in range(self._count - 1))]
        with ThreadPoolExecutor(self._count, "ferrum-start") as pool:
            starts = [pool.submit(joins.join, host) for host in hosts]
        for start in starts:
            start.result()

    def ended(self, number: int) -> None:  # noqa: ARG002 - each process may take the place of any other
        threading.Thread(target=self._start_again, name="ferrum-start", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _start_again(self) -> None:
        """Start an engine in place of one that has ended."""
        error: FerrumError | None = None
        for attempt in range(ATTEMPTS):
            if self._closed.wait(PAUSE_SECONDS * 2**attempt if attempt else 0):
                return
            if _identity(self._path) != self._files:
                error = ReplicaMismatch(f"the files of {self._path} have changed: restart to serve the new ones")
                _LOG.error("an engine is not started again: %s", error)
                break
            try:
                number = self._joins.join(ProcessHost(self._recipe))
            except FerrumError as failure:
                error = failure
                _LOG.error("an engine could not be started again: %s", failure)
            else:
                _LOG.warning("engine %d has started in place of one that ended", number)
                return
        self._joins.give_up(error)


def _identity(path: Path | None) -> list[tuple[str, int, int, int]] | None:
    """Return names, sizes and times of change of a model's files; None if there are none."""
    if path is None:
        return None
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        states = [(each.name, each.stat()) for each in files if each.suffix in _SUFFIXES]
    except OSError:
        return None
    return [(name, state.st_size, state.st_mtime_ns, state.st_ino) for name, state in states]
