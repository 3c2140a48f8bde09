"""`generate`: from a body to the response; `Generation`: runs its requests and sends their reply, whole or in events.

What a reply contains is up to a `ReplyBuilder`, what its events look like to a `Dialect`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fastapi import Request
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ferrum.client.async_engine import AsyncStream
from ferrum.client.request_output import Delta
from ferrum.core.errors import FerrumError
from ferrum.server.chat.turn import ReplyBuilder, ReplyHeader
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError, CancelledError, as_api_error
from ferrum.server.common.http_guard import CLIENT_GONE
from ferrum.server.common.json_bodies import GeneratingBody, Reply
from ferrum.server.common.json_routes import has_template, ignored
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service

STREAM_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Keep proxies from buffering events."""

MAX_LOOP_LOGPROBS: Final = 512
"""Log-probabilities that are written on the event loop, in about a millisecond; more are written in a thread."""

MAX_LOOP_BYTES: Final = 4096
"""Bodies up to this size are checked on the event loop; handing them to a thread would take longer."""

_MARK: Final = "\x01"
_MARK_JSON: Final = to_json(_MARK)


async def generate(
    service: Service,
    request: Request,
    body: GeneratingBody,
    kind: str,
    make: Callable[[ServedModel, Any, Caller, ReplyHeader], ReplyBuilder[Any]],
    respond: Callable[..., Response] | None = None,
    *,
    extra_bytes: int = 0,
) -> Response:
    """Check a body and return the response to it.

    Args:
        kind: prefix of the reply's id, one of the dialect's.
        make: checks the body and returns the builder of its reply.
        respond: makes the response; None: `Generation`.
        extra_bytes: of the prompt that are not in the body.
    """
    model, caller = service.begin(request, body.model)
    headers = ignored(service, body, model)
    name = uuid.uuid4().hex if body.request_id is None else body.request_id
    header = ReplyHeader(kind + name, int(time.time()), model.name, model.engine.info.numerics_id)
    work = partial(make, model, body, caller, header)
    size, template, images = len(await request.body()) + extra_bytes, has_template(body), body.has_images()
    # A long check would delay the streams of others.
    slow = template or images or size > MAX_LOOP_BYTES or model.explainer is not None or body.takes_long(model.client)
    run = partial(service.worker_pools.run, size, work, template=template, images=images)
    builder = await run() if slow else work()
    request.state.hold(sum(image.pixels.nbytes for each in builder.requests for image in each.images))
    dialect, streamed = request.state.dialect, body.streamed
    return (respond or Generation)(
        service, model, builder, dialect=dialect, stream=streamed, tenant=caller.tenant, headers=headers
    )


class EventWriter:
    """Writes the events of one reply in a dialect.

    Most chunks of a choice differ only in their text. The bytes around it are kept and reused.
    """

    def __init__(self, builder: ReplyBuilder[Any], dialect: Dialect) -> None:
        self._builder = builder
        self._dialect = dialect
        self._around: dict[tuple[int, int], tuple[bytes, bytes] | None] = {}  # None: the choice has begun

    def write(self, place: int, delta: Delta) -> bytes:
        """Return the events of a delta of the request at `place`. Raises the FerrumError that ended its choice."""
        self._builder.add(place, delta)
        choice = (place, delta.index)
        if not self._builder.uniform or choice not in self._around or not _is_text(delta):
            self._around.setdefault(choice, None)
            return self._events(self._builder.chunks(place, delta))
        around = self._around[choice]
        if around is None:
            marked = self._events(self._builder.chunks(place, replace(delta, text=_MARK, parts=None, token_ids=())))
            before, _, after = marked.rpartition(_MARK_JSON)  # the id before it may contain the client's text
            around = self._around[choice] = before, after
        return around[0] + to_json(delta.text) + around[1]

    def _events(self, chunks: Iterable[Reply]) -> bytes:
        form = self._dialect.event
        return b"".join([form % {b"name": chunk.EVENT.encode(), b"json": chunk.json_bytes()} for chunk in chunks])

    def event(self, name: str, json: bytes) -> bytes:
        """Return an event of the stream."""
        return self._dialect.event % {b"name": name.encode(), b"json": json}

    def end(self) -> bytes:
        """Return the events after the last delta, and the end of the stream."""
        return self._events(self._builder.end_chunks()) + self._dialect.end


class Generation(Response):
    """The response to a generating request. It is queued when the response begins.

    Nothing is sent before the first delta or keep-alive, so that an earlier failure can have its own status. When the
    client leaves, the request is aborted.

    Args:
        dialect: of the reply.
        stream: send events.
        tenant: the owner of the request.
        headers: of the response.
    """

    def __init__(
        self,
        service: Service,
        model: ServedModel,
        builder: ReplyBuilder[Any],
        *,
        dialect: Dialect,
        stream: bool,
        tenant: str,
        headers: Mapping[str, str],
    ) -> None:
        media_type = dialect.stream_type if stream else "application/json"
        super().__init__(None, 200, {**(STREAM_HEADERS if stream else {}), **headers}, media_type)
        del self.headers["content-length"]
        self._service = service
        self._model = model
        self._builder = builder
        self._dialect = dialect
        self._streamed = stream
        self._tenant = tenant
        self._gone = False
        self._first: Delta | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the requests and send their reply. Raises what fails before the first byte."""
        log = scope["state"]["log"]
        with self._service.run(self._model, self._builder.id, self._builder.requests, self._tenant) as stream:
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
        count = 0
        async for place, delta in stream:
            self._first = self._first or delta
            self._builder.fold(place, delta)
            count += _num_logprobs(delta)

        def body() -> bytes:
            return self._builder.whole().json_bytes()

        data = await asyncio.to_thread(body) if count > MAX_LOOP_LOGPROBS else body()
        self.headers["content-length"] = str(len(data))
        await send(self._start())
        await send({"type": "http.response.body", "body": data})

    async def _send_events(self, stream: AsyncStream, scope: Scope, send: Send) -> None:
        writer = EventWriter(self._builder, self._dialect)
        send_part: Send = scope["state"]["send"]
        started = False
        try:
            async with aclosing(stream.with_keep_alives(self._service.config.keep_alive_seconds)) as updates:
                async for update in updates:
                    if update is None:
                        data = self._dialect.keep_alive
                    elif _num_logprobs(update[1]) > MAX_LOOP_LOGPROBS:
                        data = await asyncio.to_thread(writer.write, *update)
                    else:
                        data = writer.write(*update)
                    if self._first is None and update is not None:
                        self._first = update[1]
                    if data and not started:
                        await send(self._start())
                        started = True
                    if data:
                        await send_part({"type": "http.response.body", "body": data, "more_body": True})
            if not started:  # an empty reply, whose only event may be its last one
                await send(self._start())
                started = True
            await send_part({"type": "http.response.body", "body": writer.end(), "more_body": True})
        except FerrumError as error:
            if not started or self._gone:
                raise
            # The status is already sent: report the error as an event, without the end of a complete stream.
            scope["state"]["log"]["error"] = type(error).__name__
            failure = as_api_error(error, scope["state"]["request_id"])
            failure.request_id = scope["state"]["request_id"]
            await send_part({"type": "http.response.body", "body": self.failure(writer, failure), "more_body": True})
        await send_part({"type": "http.response.body", "body": b""})

    def failure(self, writer: EventWriter, error: ApiError) -> bytes:
        """Return the events that report an error after the first event."""
        return writer.event("error", self._dialect.error(error))

    def _start(self) -> Message:
        self.headers.update(self._builder.headers(self._first))
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
    """Whether a delta changes nothing but the text that a client sees, which is content."""
    if not delta.text or delta.finish_reason is not None or delta.logprobs is not None:
        return False
    return delta.prompt_logprobs is None and (delta.parts is None or len(delta.parts) == 1)


def _num_logprobs(delta: Delta) -> int:
    if delta.logprobs is None and delta.prompt_logprobs is None:
        return 0
    return sum(len(each) for each in (*(delta.logprobs or ()), *(delta.prompt_logprobs or ())) if each is not None)
