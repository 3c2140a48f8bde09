"""`ResponsesBuilder`: the events of a response and its whole reply; how it is sent is in `common.generation`.

What a body means for the engine is in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from ferrum.client.request_output import Delta
from ferrum.core.types import Request as EngineRequest
from ferrum.formats.output_parts import Part, PartKind
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.generation import EventWriter, Generation, finish_of
from ferrum.server.common.http_guard import CLIENT_GONE
from ferrum.server.common.reply_builder import PromptNotes, ReplyHeader, cache_writes
from ferrum.server.common.reply_store import StoredReply
from ferrum.server.openai.openai_builder import UsageCounter
from ferrum.server.responses.bodies import ENCRYPTED, ResponsesRequest
from ferrum.server.responses.diagnostics import cache_diagnostics
from ferrum.server.responses.offered_tools import OfferedTools
from ferrum.server.responses.output import Event, Output
from ferrum.server.responses.replies import (
    EVENTS,
    Incomplete,
    InputDetails,
    OutputDetails,
    ResponseError,
    ResponseReply,
    ResponseUsage,
    Status,
)
from ferrum.server.responses.replies import Event as EventReply

IGNORED = "x-ferrum-ignored"
"""Key of the metadata that names the tools that were left out."""

Keep = Callable[[ResponseReply], None]
"""Stores a response at its end."""


class ResponsesBuilder:
    """Builds the reply to one request; see `ReplyBuilder`.

    Args:
        stored: the response as it may be stored.
        keep: gets the whole response at its end, before a client does; None: it is not stored.
        cache_page: see `ServedModel`.
        notes: on the prompt.
    """

    uniform = False  # events are numbered

    def __init__(
        self,
        header: ReplyHeader,
        body: ResponsesRequest,
        request: EngineRequest,
        offered: OfferedTools,
        stored: StoredReply,
        keep: Keep | None,
        cache_page: int | None,
        notes: PromptNotes,
    ) -> None:
        self.id = header.id
        self._cache_page = cache_page
        self._cached: int | None = None
        self._notes = notes
        self._compared = comparison_id(body)
        self.stored = stored
        self._keep = keep
        self.requests: tuple[EngineRequest, ...] = (request,)
        self.usage = UsageCounter(self.requests, None)
        reasoning = body.reasoning
        summary = None if reasoning is None else reasoning.summary or reasoning.generate_summary
        encrypted = ENCRYPTED in (body.include or ())
        self._output = Output(header.id, offered.sources, summary=summary is not None, encrypted=encrypted)
        self._fields = _repeated(header, body, request, offered, summary)
        self._finish: str | None = None
        self._number = 0
        self._began = False
        self._accepted = False

    def headers(self, first: Delta | None) -> Mapping[str, str]:
        return self._notes.headers(first)

    def add(self, place: int, delta: Delta) -> None:  # noqa: ARG002 - there is one request
        """Count a delta. Raises the FerrumError that ended the request."""
        finish_of(delta)
        if self._cached is None:
            self._cached = delta.cached_tokens
        self.usage.count(delta)

    def chunks(self, place: int, delta: Delta) -> Iterator[EventReply]:  # noqa: ARG002 - there is one request
        """Yield the events of a delta, before the first one those of the begin."""
        yield from self._begin()
        yield from map(self._event, self._grow(delta))

    def end_chunks(self) -> Iterator[EventReply]:
        """Yield the event of the end."""
        yield self._event((f"response.{self._status()}", {"response": self._whole(self._status())}))

    def failure(self, error: ApiError) -> Iterator[EventReply]:
        """Yield the events of a failure: it is the end. A background response can be cancelled."""
        yield from self._begin()
        cancelled = self._accepted and error.status_code == CLIENT_GONE
        whole = self._whole("cancelled") if cancelled else self._whole("failed", error)
        yield self._event(("response.failed", {"response": whole}))

    def reply(self, choices: Mapping[tuple[int, int], Delta]) -> ResponseReply:
        """Return the whole reply."""
        [delta] = choices.values()
        for _ in self._grow(delta):
            pass
        return self._whole(self._status())

    def accepted(self) -> Iterator[EventReply]:
        """Yield the events of a background response before its first delta."""
        self._accepted = True
        for name in ("created", "queued"):
            yield self._event((f"response.{name}", {"response": self.unfinished()}))

    def unfinished(self) -> ResponseReply:
        """Return the response while it is queued or in progress."""
        return self._response("queued" if self._accepted and not self._began else "in_progress")

    def _begin(self) -> Iterator[EventReply]:
        if not self._began:
            self._began = True
            for name in ("in_progress",) if self._accepted else ("created", "in_progress"):
                yield self._event((f"response.{name}", {"response": self.unfinished()}))

    def _whole(self, status: Status, error: ApiError | None = None) -> ResponseReply:
        """Return the response at its end, which is stored first."""
        whole = self._response(status, error)
        keep, self._keep = self._keep, None  # it refers back to this builder
        if keep is not None:
            keep(whole)
        return whole

    def _grow(self, delta: Delta) -> Iterator[Event]:
        """Yield the events of the items for a delta."""
        parts: Iterable[Part] = delta.parts or ()
        if delta.parts is None:
            parts = [Part(PartKind.CONTENT, delta.text or "")]
        yield from self._output.add(parts)
        self._finish = finish_of(delta)
        if self._finish is not None:
            yield from self._output.close(self._status())

    def _status(self) -> Literal["incomplete", "completed"]:
        return "incomplete" if self._finish == "length" else "completed"

    def _event(self, event: Event) -> EventReply:
        name, fields = event
        made = EVENTS[name](type=name, sequence_number=self._number, **fields)
        self._number += 1
        return made

    def _response(self, status: Status, error: ApiError | None = None) -> ResponseReply:
        began = status in ("queued", "in_progress")
        incomplete = Incomplete(reason="max_output_tokens") if status == "incomplete" else None
        return ResponseReply(
            **self._fields,
            **({} if began else self._diagnostics()),
            status=status,
            error=None if error is None else _error(error),
            incomplete_details=incomplete,
            output=[] if began else self._output.items(),
            usage=None if began else self._usage(),
        )

    def _diagnostics(self) -> Mapping[str, Any]:
        """Return the field of a response whose client names one to compare with."""
        if self._compared is None:
            return {}
        return {"prompt_cache_diagnostics": cache_diagnostics(self._notes.explanation, self.usage.prompt, self._cached)}

    def _usage(self) -> ResponseUsage:
        counts = self.usage
        written = cache_writes(self._cache_page, counts.prompt, self._cached)
        return ResponseUsage(
            input_tokens=counts.prompt,
            input_tokens_details=InputDetails(cached_tokens=counts.cached, cache_write_tokens=written),
            output_tokens=counts.completion,
            output_tokens_details=OutputDetails(reasoning_tokens=counts.reasoning),
            total_tokens=counts.prompt + counts.completion,
        )


def comparison_id(body: ResponsesRequest) -> str | None:
    """Return the id of the response whose prompt the client wants compared."""
    return None if body.prompt_cache_options is None else body.prompt_cache_options.comparison_response_id


def _error(error: ApiError) -> ResponseError:
    """Return an error of a response. Clients send a request again unless it is an `invalid_prompt`."""
    code = "server_error" if error.status_code >= 500 else "invalid_prompt"
    return ResponseError(code=code, message=error.message, param=error.param, type=error.code)


def _repeated(
    header: ReplyHeader, body: ResponsesRequest, request: EngineRequest, offered: OfferedTools, summary: str | None
) -> dict[str, Any]:
    """Return the fields of a response that stay the same, most of them the client's own."""
    kinds = ", ".join(dict.fromkeys(kind for _, kind in offered.dropped))[:512]
    options = {} if body.text is None else body.text.model_dump(exclude_unset=True)
    return {
        "id": header.id,
        "object": "response",
        "created_at": header.created,
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {**(body.metadata or {}), **({IGNORED: kinds} if kinds else {})},
        "model": header.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": summary},
        "store": body.store is not False,
        "temperature": request.params.temperature,
        "text": {**options, "format": options.get("format") or {"type": "text"}},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_p": request.params.top_p,
        "truncation": body.truncation or "disabled",
    }


class ResponsesGeneration(Generation):
    """The response to a request; a failure after the first event ends the stream as `response.failed`."""

    def failure(self, writer: EventWriter, error: ApiError) -> bytes:
        builder = self._builder
        assert isinstance(builder, ResponsesBuilder)
        return b"".join(writer.event(each.EVENT, each.json_bytes()) for each in builder.failure(error))
