"""Sends what a job becomes: a stream of server-sent events, or the one reply that they fold into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ferrum.core.errors import FerrumError
from ferrum.engine.outputs import Delta
from ferrum.engine.running import Running
from ferrum.server.errors import CancelledError, as_api_error
from ferrum.server.guard import CLIENT_GONE
from ferrum.server.replies import Reply
from ferrum.server.service import Service
from ferrum.server.writers import Job

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
STREAM_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""No proxy may hold events back."""


class Generation(Response):
    """The response to a job. It is queued when the response begins, and ended when the client leaves.

    Nothing is sent before the first news of the engine, or the first keep-alive: what fails by then has its status.

    Args:
        stream: as events.
        tenant: whose request it is.
        headers: of the response.
    """

    def __init__(self, service: Service, job: Job, *, stream: bool, tenant: str, headers: Mapping[str, str]) -> None:
        media_type = "text/event-stream; charset=utf-8" if stream else "application/json"
        super().__init__(None, 200, {**(STREAM_HEADERS if stream else {}), **headers}, media_type)
        del self.headers["content-length"]
        self._service = service
        self._job = job
        self._streamed = stream
        self._tenant = tenant
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the job and send what it becomes. Raises what fails before the first byte."""
        log = scope["state"]["log"]
        with self._service.run(self._job.id, self._job.requests, self._tenant) as running:
            async with watched(receive, self._leave, running):
                try:
                    await (self._stream(running, scope, send) if self._streamed else self._whole(running, send))
                except CancelledError:
                    if not self._gone:
                        raise
                    log["status"] = CLIENT_GONE
                finally:
                    log["prompt_tokens"] = self._job.tally.prompt
                    log["completion_tokens"] = self._job.tally.completion

    def _leave(self) -> None:
        self._gone = True

    async def _whole(self, running: Running, send: Send) -> None:
        chunks: list[Reply] = []
        async for place, delta in running:
            chunks += self._job.push(place, delta)
        body = self._job.fold(chunks).json_bytes()
        self.headers["content-length"] = str(len(body))
        await send(self._start())
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, running: Running, scope: Scope, send: Send) -> None:
        started = False
        try:
            async for news in self._beats(running):
                data = KEEP_ALIVE if news is None else b"".join(map(sse, self._job.push(*news)))
                if data:
                    if not started:
                        await send(self._start())
                        started = True
                    await send(_part(data))
            await send(_part(b"".join(map(sse, self._job.end())) + DONE))
        except FerrumError as error:
            if not started or self._gone:
                raise
            # The status is sent; the error comes as an event, and no end that looks like a good one.
            scope["state"]["log"]["error"] = type(error).__name__
            await send(_part(b"data: " + as_api_error(error, scope["state"]["request_id"]).body() + b"\n\n"))
        await send({"type": "http.response.body", "body": b""})

    async def _beats(self, running: Running) -> AsyncGenerator[tuple[int, Delta] | None, None]:
        """The news as they come, and None for every time of silence."""
        while True:
            try:
                async with asyncio.timeout(self._service.config.keep_alive_seconds):
                    news = await anext(running)
            except TimeoutError:
                yield None
            except StopAsyncIteration:
                return
            else:
                yield news

    def _start(self) -> Message:
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}


@asynccontextmanager
async def watched(receive: Receive, gone: Callable[[], None], running: Running) -> AsyncGenerator[None, None]:
    """Within the block, call `gone` when the client goes, and abort the requests."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()
        running.abort()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


def sse(reply: Reply) -> bytes:
    """A chunk as an event."""
    return b"data: " + reply.json_bytes() + b"\n\n"


def _part(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}
