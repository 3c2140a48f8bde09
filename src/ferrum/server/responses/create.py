"""/v1/responses: its route, the check of its body, and the builder of its reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.core.params import over_recommended
from ferrum.core.types import Request as EngineRequest
from ferrum.engine.chat_prompt import ChatOptions, chat_prompt
from ferrum.engine.input_processor import FieldNames, RequestOptions
from ferrum.engine.request_output import Delta
from ferrum.formats.parts import Part, PartKind
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.generation import EventWriter, Generation, finish_of
from ferrum.server.common.json_routes import generate
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_builder import ReplyHeader
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.server.openai.openai_builder import UsageCounter
from ferrum.server.openai.routes import generated
from ferrum.server.responses.bodies import ENCRYPTED, ResponsesRequest
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


def add_responses_routes(router: APIRouter, service: Service) -> None:
    """Add the route."""

    @router.post("/v1/responses", responses=generated(ResponseReply))
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Generate the next items of a conversation: reasoning, a message, calls of tools."""
        return await generate(service, request, body, "resp", responses_builder, ResponsesGeneration)


def responses_builder(
    model: ServedModel, body: ResponsesRequest, caller: Caller, header: ReplyHeader
) -> ResponsesBuilder:
    """Check a body and return the builder of its reply.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name.
    """
    client, template = model.client, model.client.chat_template
    messages, offered, _ = body.conversation(late_system=template is not None and template.reads_late_system)
    tools = offered.checked()
    options = ChatOptions(
        choice=offered.choice(tools, body.tool_choice), parallel=body.parallel_tool_calls is not False
    )
    constraint = None if body.text is None else body.text.structured_outputs()
    names = FieldNames("input", "max_output_tokens", "text.format.schema")
    asked = {"max_tokens": body.max_output_tokens, "temperature": body.temperature, "top_p": body.top_p}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    params = over_recommended({"max_tokens": None, **client.recommended}, {**given, "structured_outputs": constraint})
    variables = None if body.reasoning is None else body.reasoning.variables(client)
    prompt = chat_prompt(client, messages, params, options, names=names, chat_template_kwargs=variables or None)
    about = RequestOptions(
        request_id=header.id,
        deadline=caller.deadline,
        tenant=caller.tenant,
        trace_id=caller.trace_id,
        add_special_tokens=False,
        context=model.context,
        required_output=body.max_output_tokens or 1,
        guidance=prompt.guidance,
        reading=prompt.reading,
        names=names,
    )
    return ResponsesBuilder(header, body, client.input_processor.process(prompt.text, params, about), offered)


class ResponsesBuilder:
    """Builds the reply to one request; see `ReplyBuilder`."""

    uniform = False  # events are numbered

    def __init__(
        self, header: ReplyHeader, body: ResponsesRequest, request: EngineRequest, offered: OfferedTools
    ) -> None:
        self.id = header.id
        self.requests: tuple[EngineRequest, ...] = (request,)
        self.usage = UsageCounter(self.requests, None)
        reasoning = body.reasoning
        summary = None if reasoning is None else reasoning.summary or reasoning.generate_summary
        encrypted = ENCRYPTED in (body.include or ())
        self._output = Output(header.id, offered.sources, summary=summary is not None, encrypted=encrypted)
        self._fields = _repeated(header, body, request, offered, summary)
        self._finish: str | None = None
        self._number = 0

    def add(self, place: int, delta: Delta) -> None:  # noqa: ARG002 - there is one request
        """Count a delta. Raises the FerrumError that ended the request."""
        finish_of(delta)
        self.usage.count(delta)

    def chunks(self, place: int, delta: Delta) -> Iterator[EventReply]:  # noqa: ARG002 - there is one request
        """Yield the events of a delta, before the first one those of the begin."""
        yield from self._begin()
        yield from map(self._event, self._grow(delta))

    def end_chunks(self) -> Iterator[EventReply]:
        """Yield the event of the end."""
        yield self._event((f"response.{self._status()}", {"response": self._response(self._status())}))

    def failure(self, error: ApiError) -> Iterator[EventReply]:
        """Yield the events of a failure: it is the end."""
        yield from self._begin()
        yield self._event(("response.failed", {"response": self._response("failed", error)}))

    def reply(self, choices: Mapping[tuple[int, int], Delta]) -> ResponseReply:
        """Return the whole reply."""
        [delta] = choices.values()
        for _ in self._grow(delta):
            pass
        return self._response(self._status())

    def _begin(self) -> Iterator[EventReply]:
        if not self._number:
            for name in ("created", "in_progress"):
                yield self._event((f"response.{name}", {"response": self._response("in_progress")}))

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
        began = status == "in_progress"
        incomplete = Incomplete(reason="max_output_tokens") if status == "incomplete" else None
        return ResponseReply(
            **self._fields,
            status=status,
            error=None if error is None else _error(error),
            incomplete_details=incomplete,
            output=[] if began else self._output.items(),
            usage=None if began else self._usage(),
        )

    def _usage(self) -> ResponseUsage:
        counts = self.usage
        return ResponseUsage(
            input_tokens=counts.prompt,
            input_tokens_details=InputDetails(cached_tokens=counts.cached, cache_write_tokens=0),
            output_tokens=counts.completion,
            output_tokens_details=OutputDetails(reasoning_tokens=counts.reasoning),
            total_tokens=counts.prompt + counts.completion,
        )


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
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": {**(body.metadata or {}), **({IGNORED: kinds} if kinds else {})},
        "model": header.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": summary},
        "store": False,
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
