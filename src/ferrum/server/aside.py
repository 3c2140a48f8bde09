"""Work that may take long for no good reason, kept apart: a little of it is done at a time, and nobody else waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from ferrum.core.errors import QueueFull

AT_ONCE: Final = 2
WAITING: Final = 16

Given = ParamSpec("Given")
Made = TypeVar("Made")


class Aside:
    """A few threads, and a short queue before them. Used on one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="ferrum-aside")
        self._count = 0

    async def run(self, work: Callable[Given, Made], *arguments: Given.args, **named: Given.kwargs) -> Made:
        """What the work makes of its arguments, in one of the threads.

        Raises:
            QueueFull: as many wait as may.
        """
        if self._count >= AT_ONCE + WAITING:
            raise QueueFull(f"{self._count} requests with a chat_template of their own are there, as many as may be")
        self._count += 1
        try:
            return await asyncio.wrap_future(self._threads.submit(work, *arguments, **named))
        finally:
            self._count -= 1

    def close(self) -> None:
        """Begin with nothing more. What runs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
