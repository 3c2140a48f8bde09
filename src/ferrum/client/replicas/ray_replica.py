"""`EngineReplica`: an engine as a replica of Ray Serve, which carries the messages of `engine/messages.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ray import serve

from ferrum.client.client_base import build
from ferrum.client.replicas.engine_sessions import EngineSessions
from ferrum.client.replicas.model_digests import digests_of
from ferrum.engine.messages import EngineInfo, Message, Report

if TYPE_CHECKING:
    from ferrum.sources.model_source import ModelSource


class EngineReplica:
    """An engine process and its sessions. Its methods are those of `EngineSessions`, which Ray Serve calls.

    Args:
        model: the model's name on this machine.
        options: of the model and the engine.
        stall_seconds: see `EngineSessions`.
    """

    async def __init__(  # type: ignore[misc] # Ray Serve awaits it
        self, model: str, options: Mapping[str, Any], stall_seconds: float
    ) -> None:
        parts = await asyncio.to_thread(build, model, **{**options, "host": "process"})
        self._host, source = parts.host, cast("ModelSource", parts.files)
        self._sessions = EngineSessions(serve.get_replica_context().replica_id.unique_id, self._host, stall_seconds)
        info, files = await asyncio.gather(
            asyncio.to_thread(self._host.start, self._sessions.deliver), asyncio.to_thread(digests_of, source)
        )
        self._sessions.info = replace(info, files=files)
        self._host.deliver_on(asyncio.get_running_loop())

    async def attach(self, *, replica: str, session: str) -> tuple[EngineInfo, float]:
        """Begin a session."""
        return await self._sessions.attach(replica=replica, session=session)

    async def take(self, messages: Sequence[Message], *, replica: str, session: str) -> None:
        """Take messages of a session."""
        await self._sessions.take(messages, replica=replica, session=session)

    async def reports(self, *, replica: str, session: str) -> AsyncGenerator[tuple[Report, ...], None]:
        """Yield the reports to a session."""
        async with aclosing(self._sessions.reports(replica=replica, session=session)) as found:
            async for reports in found:
                yield reports

    async def check_health(self) -> None:
        """Raise if the engine has ended or stalls. Ray Serve then replaces the replica."""
        await self._sessions.check_health()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what the number of replicas follows."""
        return await self._sessions.record_autoscaling_stats()

    async def __del__(self) -> None:
        if hasattr(self, "_sessions"):  # Ray Serve calls this after a failed start, too
            await asyncio.to_thread(self._host.close)
