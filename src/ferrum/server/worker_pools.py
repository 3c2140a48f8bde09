"""Work that a client can make long, kept apart: a little of it is done at a time, and nobody else waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from ferrum.core.errors import EngineDead, QueueFull

AT_ONCE: Final = 2
WAITING: Final = 16

LARGE_BYTES: Final = 1 << 20
"""Beyond so many a body takes seconds to encode, and hundreds of megabytes."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


class Beside:
    """Makes of bodies what they become, beside the event loop. Used on one."""

    def __init__(self) -> None:
        self._templates = _Aside("a chat_template of their own")
        self._large = _Aside(f"more than {LARGE_BYTES} bytes")

    async def run(self, size: int, work: Callable[Given, Made], *arguments: Given.args, **named: Given.kwargs) -> Made:
        """What the work makes of a body of so many bytes: of a large one after others.

        Raises:
            QueueFull: many large ones wait already.
            EngineDead: the server ends.
        """
        if size <= LARGE_BYTES:
            return await asyncio.to_thread(work, *arguments, **named)
        return await self._large.run(work, *arguments, **named)

    async def fill_in(self, work: Callable[Given, Made], *arguments: Given.args, **named: Given.kwargs) -> Made:
        """What the work makes of a body with a chat template, which may take long. Errors as of `run`."""
        return await self._templates.run(work, *arguments, **named)

    def close(self) -> None:
        """Begin with no more that may take long. What runs comes to its end first."""
        self._templates.close()
        self._large.close()


class _Aside:
    """A few threads, and a short queue before them.

    Args:
        what: kind of requests there are, for those that are refused.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="ferrum-aside")
        self._count = 0
        self._closed = False

    async def run(self, work: Callable[Given, Made], *arguments: Given.args, **named: Given.kwargs) -> Made:
        """What the work makes of its arguments, in one of the threads.

        Raises:
            QueueFull: as many wait as may.
            EngineDead: it is closed, or was before the work began.
        """
        if self._closed:
            raise EngineDead("the server ends")
        if self._count >= AT_ONCE + WAITING:
            raise QueueFull(f"{self._count} requests with {self._what} are there, as many as may be")
        self._count += 1
        future = self._threads.submit(work, *arguments, **named)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed and future.cancelled():
                raise EngineDead("the server ends") from None
            raise
        finally:
            self._count -= 1

    def close(self) -> None:
        """See `Beside.close`."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
