"""`Generation`: runs a client's requests and sends their reply, whole or as server-sent events.

What a reply contains is in `reply_builder`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Final

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ferrum.core.errors import FerrumError
from ferrum.engine.async_engine import AsyncStream
from ferrum.engine.request_output import Delta, join_all
from ferrum.server.common.error_replies import CancelledError, as_api_error
from ferrum.server.common.http_guard import CLIENT_GONE
from ferrum.server.common.service import Service
from ferrum.server.openai.reply_builder import ReplyBuilder

STREAM_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Keep proxies from buffering events."""

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"

MAX_LOOP_LOGPROBS: Final = 512
"""Log-probabilities that are written on the event loop, in about a millisecond; more are written in a thread."""

_MARK: Final = "\x01"
_MARK_JSON: Final = to_json(_MARK)


def event(data: bytes) -> bytes:
    """Return a line of JSON as an event."""
    return b"data: " + data + b"\n\n"


class EventWriter:
    """Writes the events of one reply.

    Most chunks of a choice differ only in their text. The bytes around it are kept and reused.
    """

    def __init__(self, builder: ReplyBuilder) -> None:
        self._builder = builder
        self._around: dict[tuple[int, int], tuple[bytes, bytes] | None] = {}  # None: the choice has begun

    def write(self, place: int, delta: Delta) -> bytes:
        """Return the events of a delta of the request at `place`. Raises the FerrumError that ended its choice."""
        self._builder.add(place, delta)
        choice = (place, delta.index)
        if not self._builder.uniform or choice not in self._around or not _is_text(delta):
            self._around.setdefault(choice, None)
            return self._events(place, delta)
        around = self._around[choice]
        if around is None:
            marked = self._events(place, replace(delta, text=_MARK, token_ids=()))
            before, _, after = marked.rpartition(_MARK_JSON)  # the id before it may contain the client's text
            around = self._around[choice] = before, after
        return around[0] + to_json(delta.text) + around[1]

    def _events(self, place: int, delta: Delta) -> bytes:
        return b"".join([event(chunk.json_bytes()) for chunk in self._builder.chunks(place, delta)])

    def end(self) -> bytes:
        """Return the events after the last delta."""
        return (event(self._builder.usage_chunk().json_bytes()) if self._builder.usage.at_end else b"") + DONE


class Generation(Response):
    """The response to a generating request. It is queued when the response begins.

    Nothing is sent before the first delta or keep-alive, so that an earlier failure can have its own status. When the
    client leaves, the request is aborted.

    Args:
        stream: send events.
        tenant: the owner of the request.
        headers: of the response.
    """

    def __init__(
        self, service: Service, builder: ReplyBuilder, *, stream: bool, tenant: str, headers: Mapping[str, str]
    ) -> None:
        media_type = "text/event-stream; charset=utf-8" if stream else "application/json"
        super().__init__(None, 200, {**(STREAM_HEADERS if stream else {}), **headers}, media_type)
        del self.headers["content-length"]
        self._service = service
        self._builder = builder
        self._streamed = stream
        self._tenant = tenant
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the requests and send their reply. Raises what fails before the first byte."""
        log = scope["state"]["log"]
        with self._service.run(self._builder.id, self._builder.requests, self._tenant) as stream:
            async with watched(receive, self._leave, stream):
                try:
                    await (self._send_events(stream, scope, send) if self._streamed else self._send_whole(stream, send))
                except CancelledError:
                    if not self._gone:
                        raise
                    log["status"] = CLIENT_GONE
                finally:
                    log["prompt_tokens"] = self._builder.usage.prompt
                    log["completion_tokens"] = self._builder.usage.completion

    def _leave(self) -> None:
        self._gone = True

    async def _send_whole(self, stream: AsyncStream, send: Send) -> None:
        choices: dict[tuple[int, int], list[Delta]] = {}
        count = 0
        async for place, delta in stream:
            self._builder.add(place, delta)
            choices.setdefault((place, delta.index), []).append(delta)
            count += _num_logprobs(delta)

        def body() -> bytes:
            return self._builder.reply({key: join_all(deltas) for key, deltas in choices.items()}).json_bytes()

        data = await asyncio.to_thread(body) if count > MAX_LOOP_LOGPROBS else body()
        self.headers["content-length"] = str(len(data))
        await send(self._start())
        await send({"type": "http.response.body", "body": data})

    async def _send_events(self, stream: AsyncStream, scope: Scope, send: Send) -> None:
        writer = EventWriter(self._builder)
        send_part: Send = scope["state"]["send"]
        started = False
        try:
            async with aclosing(stream.with_keep_alives(self._service.config.keep_alive_seconds)) as updates:
                async for update in updates:
                    if update is None:
                        data = KEEP_ALIVE
                    elif _num_logprobs(update[1]) > MAX_LOOP_LOGPROBS:
                        data = await asyncio.to_thread(writer.write, *update)
                    else:
                        data = writer.write(*update)
                    if data and not started:
                        await send(self._start())
                        started = True
                    if data:
                        await send_part(_part(data))
            await send_part(_part(writer.end()))
        except FerrumError as error:
            if not started or self._gone:
                raise
            # The status is already sent: report the error as an event, without the [DONE] of a complete stream.
            scope["state"]["log"]["error"] = type(error).__name__
            await send_part(_part(event(as_api_error(error, scope["state"]["request_id"]).body())))
        await send_part({"type": "http.response.body", "body": b""})

    def _start(self) -> Message:
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}


@asynccontextmanager
async def watched(receive: Receive, gone: Callable[[], None], stream: AsyncStream) -> AsyncGenerator[None, None]:
    """Within the block, call `gone` and abort the stream when the client disconnects."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()
        stream.abort()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


def _is_text(delta: Delta) -> bool:
    """Whether a delta changes nothing but the text that a client sees."""
    return bool(delta.text) and delta.finish_reason is None and delta.logprobs is None and delta.prompt_logprobs is None


def _num_logprobs(delta: Delta) -> int:
    if delta.logprobs is None and delta.prompt_logprobs is None:
        return 0
    return sum(len(each) for each in (*(delta.logprobs or ()), *(delta.prompt_logprobs or ())) if each is not None)


def _part(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}
