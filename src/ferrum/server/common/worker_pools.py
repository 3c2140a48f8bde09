"""`WorkerPools`: runs slow request preparation off the event loop, with a bound on how much waits.

What is prepared is defined by the routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from ferrum.core.errors import EngineDead, QueueFull

NUM_THREADS: Final = 2
MAX_WAITING: Final = 16

LARGE_BYTES: Final = 1 << 20
"""Above this size a body takes seconds to encode, and hundreds of megabytes of memory."""

Result = TypeVar("Result")


class WorkerPools:
    """Threads for request preparation. Call from the event loop's thread only."""

    def __init__(self) -> None:
        self._templates = _Pool("a chat_template in the body")
        self._large = _Pool(f"a body over {LARGE_BYTES} bytes")

    async def run(self, size: int, work: Callable[[], Result], *, template: bool = False) -> Result:
        """Run the work for a body of `size` bytes; large bodies queue for a few threads.

        Args:
            template: the body has a chat template, which may take long; such bodies have threads for themselves.

        Raises:
            QueueFull: too many large bodies are waiting.
            EngineDead: the server is shutting down.
        """
        if template:
            return await self._templates.run(work)
        return await (asyncio.to_thread(work) if size <= LARGE_BYTES else self._large.run(work))

    def close(self) -> None:
        """Start no more queued work. Running work finishes first."""
        self._templates.close()
        self._large.close()


class _Pool:
    """A few threads with a short queue.

    Args:
        kind: names the requests in the error for a full queue.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="ferrum-worker")
        self._count = 0
        self._closed = False

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run the work in one of the threads. Raises as `WorkerPools.run`."""
        if self._closed:
            raise EngineDead("the server is shutting down")
        limit = NUM_THREADS + MAX_WAITING
        if self._count >= limit:
            raise QueueFull(f"{self._count} requests with {self._kind} are in progress, at most {limit}; retry later")
        self._count += 1
        future = self._threads.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed and future.cancelled():
                raise EngineDead("the server is shutting down") from None
            raise
        finally:
            self._count -= 1

    def close(self) -> None:
        """Cancel what is queued. Idempotent."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
