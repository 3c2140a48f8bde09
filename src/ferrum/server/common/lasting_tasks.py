"""`LastingTasks`: work on the event loop that outlives the HTTP request that started it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class LastingTasks:
    """Tasks that end with the engine's requests. Call from the event loop's thread only."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work until its end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until all have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)
