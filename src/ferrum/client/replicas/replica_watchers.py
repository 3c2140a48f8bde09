"""`WATCHERS`: who is to know which replicas of a deployment run. The router that Ray Serve makes reports to it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final, TypeAlias

Seen: TypeAlias = Callable[[frozenset[str]], None]
"""Gets the ids of the replicas that take calls."""


class Watchers:
    """Functions that get the replicas of a deployment. Ray Serve makes routers itself, so there is one instance."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: dict[tuple[str, str], list[Seen]] = {}
        self._last: dict[tuple[str, str], frozenset[str]] = {}

    def add(self, application: str, deployment: str, seen: Seen) -> None:
        """Report the replicas of a deployment, now if they are known, and when they change."""
        with self._lock:
            self._seen.setdefault((application, deployment), []).append(seen)
            last = self._last.get((application, deployment))
        if last is not None:
            seen(last)

    def report(self, application: str, deployment: str, replicas: frozenset[str]) -> None:
        """Report the replicas of a deployment."""
        with self._lock:
            self._last[application, deployment] = replicas
            watchers = list(self._seen.get((application, deployment), ()))
        for seen in watchers:
            seen(replicas)


WATCHERS: Final = Watchers()
