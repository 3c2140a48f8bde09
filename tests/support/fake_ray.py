"""Replicas and handles as Ray Serve has them, on one event loop of this process, for tests without Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from engine_fakes import FakeRecipe
from ferrum.client.replicas.engine_sessions import EngineSessions
from ferrum.client.replicas.replica_watchers import WATCHERS
from ferrum.engine.host import ThreadHost


class ActorDiedError(Exception):
    """As Ray's: the process of a replica has ended."""


@dataclass
class Answer:
    """The result of a call."""

    future: Future[Any]

    def result(self, *, timeout_s: float) -> Any:
        return self.future.result(timeout_s)


class Items:
    """The results of a streaming call."""

    def __init__(self, cluster: FakeCluster, name: str, items: AsyncGenerator[Any, None]) -> None:
        self._cluster, self._name, self._items = cluster, name, items
        self._next: Future[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._next = self._cluster.run(self._name, anext(self._items))
            try:
                yield self._next.result()
            except StopAsyncIteration:
                return

    def cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()


class Method:
    """A method of a handle."""

    def __init__(self, cluster: FakeCluster, name: str, *, streams: bool) -> None:
        self._cluster, self._name, self._streams = cluster, name, streams

    def remote(self, *arguments: Any, replica: str, session: str) -> Any:
        cluster = self._cluster
        target = replica if replica in cluster.replicas else next(iter(cluster.replicas), "")
        if target not in cluster.replicas:
            failed: Future[Any] = Future()
            failed.set_exception(TimeoutError("no replica"))
            return Answer(failed)
        call = getattr(cluster.replicas[target], self._name)(*arguments, replica=replica, session=session)
        return Items(cluster, target, call) if self._streams else Answer(cluster.run(target, call))


class FakeHandle:
    """A handle of the deployment `engines`."""

    app_name, deployment_name = "test", "engines"

    def __init__(self, cluster: FakeCluster, *, streams: bool = False) -> None:
        self._cluster, self._streams = cluster, streams

    def options(self, *, stream: bool) -> FakeHandle:
        return FakeHandle(self._cluster, streams=stream)

    def __getattr__(self, name: str) -> Method:
        return Method(self._cluster, name, streams=self._streams)


class FakeCluster:
    """Replicas that a test starts, stops and kills."""

    def __init__(self) -> None:
        self.replicas: dict[str, EngineSessions] = {}
        self._hosts: dict[str, ThreadHost] = {}
        self._calls: dict[str, set[asyncio.Task[Any]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    @property
    def handle(self) -> FakeHandle:
        return FakeHandle(self)

    def start(self, name: str, recipe: FakeRecipe, **changes: Any) -> None:
        """Start a replica whose engine is described with `changes`."""
        host = ThreadHost(recipe)
        sessions = EngineSessions(name, host, 60.0)
        sessions.info = replace(host.start(sessions.deliver), **changes)
        host.deliver_on(self._loop)
        self.replicas[name], self._hosts[name], self._calls[name] = sessions, host, set()
        self.report()

    def kill(self, name: str) -> None:
        """End a replica at once, with its calls."""
        del self.replicas[name]
        asyncio.run_coroutine_threadsafe(self._cancel(name), self._loop).result()
        self._hosts.pop(name).close()
        self.report()

    async def _cancel(self, name: str) -> None:
        calls = list(self._calls[name])
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def stop(self, name: str) -> None:
        """Report a replica as one that takes no more calls; it goes on with those that it has."""
        self.report(without=name)

    def report(self, without: str = "") -> None:
        WATCHERS.report("test", "engines", frozenset(self.replicas) - {without})

    def run(self, name: str, call: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a call of a replica on the loop; it fails as Ray's do if the replica is killed."""

        async def guarded() -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._calls[name].add(task)
            try:
                return await call
            except asyncio.CancelledError:
                if name in self.replicas:
                    raise
                raise ActorDiedError("The actor died unexpectedly before finishing this task.") from None
            finally:
                self._calls[name].discard(task)

        return asyncio.run_coroutine_threadsafe(guarded(), self._loop)

    def close(self) -> None:
        for name in list(self.replicas):
            self.kill(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
