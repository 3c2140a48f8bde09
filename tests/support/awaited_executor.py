"""A synchronous face of `AsyncModelExecutor`, so that the contract's tests run on it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from contract_kit import Kit, Maker
from ferrum.verbs.async_executor import AsyncModelExecutor
from ferrum.verbs.model_executor import ModelExecutor


@cache
def running_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that runs in a thread until the process ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tests-loop", daemon=True).start()
    return loop


class AwaitedExecutor:
    """An executor whose verbs are awaited on an event loop; everything else is the wrapped executor's."""

    def __init__(self, executor: ModelExecutor) -> None:
        vars(self)["_face"] = AsyncModelExecutor(executor)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._face, name, None)
        return getattr(self._face.executor, name) if found is None else found

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._face.executor, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._face.executor, name)


def _awaited(name: str) -> Callable[..., Any]:
    def call(self: AwaitedExecutor, *arguments: Any, **named: Any) -> Any:
        coroutine = getattr(self._face, name)(*arguments, **named)
        return asyncio.run_coroutine_threadsafe(coroutine, running_loop()).result(60)

    return call


VERBS = [
    name
    for name, value in vars(AsyncModelExecutor).items()
    if inspect.iscoroutinefunction(value) and not name.startswith("_")
]
for _name in VERBS:
    setattr(AwaitedExecutor, _name, _awaited(_name))
AwaitedExecutor.supports_batch_size = lambda self, size: self._face.supports_batch_size(size)  # type: ignore[attr-defined]


@contextmanager
def awaited(make: Maker) -> Iterator[Maker]:
    """Yield a maker of the same executors behind the synchronous face, whose threads end with this context."""
    with ExitStack() as stack:

        def made(**options: int | None) -> Kit:
            kit = make(**options)
            executor = AwaitedExecutor(kit.executor)
            stack.callback(lambda: executor._face._thread.shutdown())
            return replace(kit, executor=executor)  # type: ignore[arg-type]

        yield made
