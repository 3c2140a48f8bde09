"""Sends what a job becomes: a stream of server-sent events, or the one reply that they fold into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ferrum.core.errors import FerrumError
from ferrum.engine.async_stream import AsyncStream
from ferrum.engine.request_output import Delta
from ferrum.server.error_replies import CancelledError, as_api_error
from ferrum.server.http_guard import CLIENT_GONE
from ferrum.server.reply_bodies import Reply
from ferrum.server.reply_builder import ReplyBuilder
from ferrum.server.service import Service
from ferrum.server.stream_events import KEEP_ALIVE, EventWriter, event

STREAM_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""No proxy may hold events back."""

QUICK_SCORES: Final = 512
"""So few log-probabilities are told on the event loop, in a millisecond."""


class Generation(Response):
    """The response to a job. It is queued when the response begins, and ended when the client leaves.

    Nothing is sent before the first news of the engine, or the first keep-alive: what fails by then has its status.

    Args:
        stream: as events.
        tenant: whose request it is.
        headers: of the response.
    """

    def __init__(
        self, service: Service, job: ReplyBuilder, *, stream: bool, tenant: str, headers: Mapping[str, str]
    ) -> None:
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

    async def _whole(self, running: AsyncStream, send: Send) -> None:
        chunks: list[Reply] = []
        told = 0
        async for place, delta in running:
            count = _scored(delta)
            told += count
            if count > QUICK_SCORES:
                chunks += await asyncio.to_thread(self._chunks, place, delta)
            else:
                chunks += self._job.push(place, delta)
        # Millions of numbers may become text: that may not hold up the streams of others.
        body = await asyncio.to_thread(self._body, chunks) if told > QUICK_SCORES else self._body(chunks)
        self.headers["content-length"] = str(len(body))
        await send(self._start())
        await send({"type": "http.response.body", "body": body})

    def _chunks(self, place: int, delta: Delta) -> list[Reply]:
        return list(self._job.push(place, delta))

    def _body(self, chunks: Sequence[Reply]) -> bytes:
        return self._job.fold(chunks).json_bytes()

    async def _stream(self, running: AsyncStream, scope: Scope, send: Send) -> None:
        events = EventWriter(self._job)
        send_part: Send = scope["state"]["send"]
        started = False
        try:
            async with aclosing(running.beats(self._service.config.keep_alive_seconds)) as beats:
                async for news in beats:
                    if news is None:
                        data = KEEP_ALIVE
                    elif _scored(news[1]) > QUICK_SCORES:
                        data = await asyncio.to_thread(events.news, *news)
                    else:
                        data = events.news(*news)
                    if data and not started:
                        await send(self._start())
                        started = True
                    if data:
                        await send_part(_part(data))
            await send_part(_part(events.end()))
        except FerrumError as error:
            if not started or self._gone:
                raise
            # The status is sent; the error comes as an event, and no end that looks like a good one.
            scope["state"]["log"]["error"] = type(error).__name__
            await send_part(_part(event(as_api_error(error, scope["state"]["request_id"]).body())))
        await send_part({"type": "http.response.body", "body": b""})

    def _start(self) -> Message:
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}


@asynccontextmanager
async def watched(receive: Receive, gone: Callable[[], None], running: AsyncStream) -> AsyncGenerator[None, None]:
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


def _scored(delta: Delta) -> int:
    """How many log-probabilities a delta tells."""
    return sum(len(each) for each in (*(delta.logprobs or ()), *(delta.prompt_logprobs or ())) if each is not None)


def _part(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}
