"""The replies of this API: the response and the events of a stream, and the builder of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias

from pydantic import ConfigDict

from ferrum.client.diagnosis.prefix_explainer import Explanation
from ferrum.client.request_output import Delta
from ferrum.core.params import SamplingParams
from ferrum.core.values import readable_json
from ferrum.formats.output_parts import PartKind
from ferrum.server.chat.ask import Asked
from ferrum.server.chat.turn import Item, ReplyBuilder, ReplyHeader
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.http_guard import CLIENT_GONE
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.reply_store import StoredReply
from ferrum.server.responses.fields import ENCRYPTED, ResponsesRequest
from ferrum.server.responses.history import SEARCH, ClientTool, OfferedTools, sealed

IGNORED: Final = "x-ferrum-ignored"
"""Key of the metadata that names the tools that were left out."""

Status: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputDetails(Reply):
    """Details of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Reply):
    """Details of the generated tokens."""

    reasoning_tokens: int


class ResponseUsage(Reply):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Reply):
    """Why a response failed; `type` is the code of the server's other errors."""

    code: str
    message: str
    param: str | None
    type: str


class Incomplete(Reply):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class PromptCacheDiagnostics(Reply):
    """The comparison with an earlier prompt; fields besides the type are those of a `cache_miss`.

    Attributes:
        cache_missed_tokens: tokens of the prompt from the first differing one on.
        comparison_reusable_tokens: tokens before it.
        first_differing_token: its index in the prompt.
        place: path of what it stands in.
        cause: path of what changed.
    """

    type: Literal["cache_hit", "cache_miss", "comparison_response_not_found", "unavailable"]
    cache_missed_tokens: int = 0
    reason: str = ""
    comparison_reusable_tokens: int = 0
    first_differing_token: int = 0
    place: str | None = None
    cause: str | None = None


class ResponseReply(Reply):
    """The reply of /v1/responses; fields of the request are repeated."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    background: bool
    error: ResponseError | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    prompt_cache_diagnostics: PromptCacheDiagnostics | None = None


class ItemList(Reply):
    """A page of the items that a response was generated from, earlier turns included."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(Reply):
    """The reply of DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"]
    deleted: bool


class InputTokens(Reply):
    """The reply of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Event(Reply):
    """An event of a stream; its further fields depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int


def _class(name: str) -> type[Event]:
    class Named(Event):
        EVENT: ClassVar[str] = name

    return Named


EVENTS: Final[Mapping[str, type[Event]]] = {
    name: _class(name)
    for name in (
        *(f"response.{status}" for status in ("created", "queued", "in_progress", "completed", "incomplete", "failed")),
        *(f"response.{what}.{step}" for what in ("output_item", "content_part") for step in ("added", "done")),
        *(f"response.reasoning_summary_part.{step}" for step in ("added", "done")),
        *(
            f"response.{what}.{step}"
            for what in (
                *("output_text", "reasoning_text", "reasoning_summary_text"),
                *("function_call_arguments", "custom_tool_call_input"),
            )
            for step in ("delta", "done")
        ),
    )
}
"""The classes of events by type."""

# The builder

Keep: TypeAlias = Callable[[ResponseReply], None]
"""Stores a response at its end."""

_TEXT: Final = {"type": "output_text", "annotations": [], "logprobs": []}
_DELTAS: Final = {"function": "response.function_call_arguments", "custom": "response.custom_tool_call_input"}
_FIELDS: Final = {"function": "arguments", "custom": "input"}


class ResponsesBuilder(ReplyBuilder[Event]):
    """Builds the reply to one request.

    Args:
        offered: the tools of the request.
        stored: the response as it may be stored.
        keep: gets the whole response at its end, before a client does; None: it is not stored.
    """

    def __init__(
        self,
        header: ReplyHeader,
        body: ResponsesRequest,
        asked: Asked,
        offered: OfferedTools,
        stored: StoredReply,
        keep: Keep | None,
    ) -> None:
        super().__init__(header, asked)
        options = body.prompt_cache_options
        self._compared = None if options is None else options.comparison_response_id
        self.stored = stored
        self._keep = keep
        reasoning = body.reasoning
        summary = None if reasoning is None else reasoning.summary or reasoning.generate_summary
        self._sources = offered.sources
        self._summary = summary is not None
        self._encrypted = ENCRYPTED in (body.include or ())
        self._fields = _repeated(header, body, asked.requests[0].params, offered, summary)
        self._number = 0
        self._began = False
        self._accepted = False

    # Events

    def chunks(self, place: int, delta: Delta) -> Iterator[Event]:
        """Yield the events of a delta, before the first one those of the begin."""
        yield from self._begin()
        yield from self.pieces(place, delta)

    def end_chunks(self) -> Iterator[Event]:
        """Yield the event of the end."""
        status = self._status()
        yield self._event(f"response.{status}", response=self._whole(status))

    def failure(self, error: ApiError) -> Iterator[Event]:
        """Yield the events of a failure: it is the end. A background response can be cancelled."""
        yield from self._begin()
        cancelled = self._accepted and error.status_code == CLIENT_GONE
        whole = self._whole("cancelled") if cancelled else self._whole("failed", error)
        yield self._event("response.failed", response=whole)

    def accepted(self) -> Iterator[Event]:
        """Yield the events of a background response before its first delta."""
        self._accepted = True
        for name in ("created", "queued"):
            yield self._event(f"response.{name}", response=self.unfinished())

    def _begin(self) -> Iterator[Event]:
        if not self._began:
            self._began = True
            for name in ("in_progress",) if self._accepted else ("created", "in_progress"):
                yield self._event(f"response.{name}", response=self.unfinished())

    def begun(self, item: Item) -> Iterator[Event]:
        """Yield the begin of an item, which is empty."""
        yield self._event("response.output_item.added", output_index=item.place, item=self._item(item))
        if item.kind is PartKind.CALL:
            return
        at = self._at(item)
        yield self._event("response.content_part.added", **at, content_index=0, part=_part(item, ""))
        if item.kind is PartKind.REASONING and self._summary:
            part = {"type": "summary_text", "text": ""}
            yield self._event("response.reasoning_summary_part.added", **at, summary_index=0, part=part)

    def grown(self, item: Item, text: str) -> Iterator[Event]:
        """Yield new text."""
        at = self._at(item)
        if item.kind is PartKind.CONTENT:
            yield self._event("response.output_text.delta", **at, content_index=0, delta=text, logprobs=[])
        elif item.kind is PartKind.REASONING:
            yield self._event("response.reasoning_text.delta", **at, content_index=0, delta=text)
            if self._summary:
                yield self._event("response.reasoning_summary_text.delta", **at, summary_index=0, delta=text)
        elif (kind := self._tool(item).kind) in _DELTAS:
            yield self._event(f"{_DELTAS[kind]}.delta", **at, delta=text)

    def ended(self, item: Item) -> Iterator[Event]:
        """Yield the end of an item, with all of its text."""
        at, text = self._at(item), item.text
        if item.kind is PartKind.CONTENT:
            yield self._event("response.output_text.done", **at, content_index=0, text=text, logprobs=[])
        elif item.kind is PartKind.REASONING:
            yield self._event("response.reasoning_text.done", **at, content_index=0, text=text)
        elif (tool := self._tool(item)).kind in _DELTAS:
            field = _FIELDS[tool.kind]
            named = {"name": tool.name} if field == "arguments" else {}
            yield self._event(f"{_DELTAS[tool.kind]}.done", **at, **named, **{field: text})
        if item.kind is not PartKind.CALL:
            yield self._event("response.content_part.done", **at, content_index=0, part=_part(item, text))
        if item.kind is PartKind.REASONING and self._summary:
            part = {"type": "summary_text", "text": text}
            yield self._event("response.reasoning_summary_text.done", **at, summary_index=0, text=text)
            yield self._event("response.reasoning_summary_part.done", **at, summary_index=0, part=part)
        yield self._event("response.output_item.done", output_index=item.place, item=self._item(item))

    def _event(self, kind: str, /, **fields: Any) -> Event:
        made = EVENTS[kind](type=kind, sequence_number=self._number, **fields)
        self._number += 1
        return made

    # Items

    def _tool(self, item: Item) -> ClientTool:
        return self._sources.get(item.name, ClientTool("function", item.name))

    def _at(self, item: Item) -> dict[str, Any]:
        return {"item_id": self._head(item)["id"], "output_index": item.place}

    def _head(self, item: Item) -> dict[str, Any]:
        """Return the fields of an item that it begins with."""
        of_item = f"{self.id}_{item.place}"
        if item.kind is PartKind.CONTENT:
            return {"id": f"msg_{of_item}", "type": "message", "role": "assistant"}
        if item.kind is PartKind.REASONING:
            return {"id": f"rs_{of_item}", "type": "reasoning"}
        tool = self._tool(item)
        if tool.kind == SEARCH:
            return {"id": f"tsc_{of_item}", "type": "tool_search_call", "execution": "client", "call_id": item.id}
        prefix, kind = ("ctc", "custom_tool_call") if tool.kind == "custom" else ("fc", "function_call")
        named = {"namespace": tool.namespace} if tool.namespace else {}
        return {"id": f"{prefix}_{of_item}", "type": kind, "call_id": item.id, **named, "name": tool.name}

    def _item(self, item: Item, status: str | None = None) -> dict[str, Any]:
        """Return an item with all of its text."""
        made, text = {**self._head(item), "status": status or item.status}, item.text
        if item.kind is PartKind.CONTENT:
            return {**made, "content": [_part(item, text)] if text else []}
        if item.kind is PartKind.REASONING:
            summary = [{"type": "summary_text", "text": text}] if self._summary and text else []
            secret = {"encrypted_content": sealed(text)} if self._encrypted and text else {}
            return {**made, "summary": summary, "content": [_part(item, text)] if text else [], **secret}
        if made["type"] == "tool_search_call":
            return {**made, "arguments": _value(text)}
        return {**made, _FIELDS[self._tool(item).kind]: text}

    def items(self) -> list[dict[str, Any]]:
        """Return all items; one that has not ended is incomplete."""
        every = (item for turn in self.turns.values() for item in turn.items)
        return [self._item(each, "incomplete" if each.status == "in_progress" else None) for each in every]

    # The response

    def whole(self) -> ResponseReply:
        return self._whole(self._status())

    def unfinished(self) -> ResponseReply:
        """Return the response while it is queued or in progress."""
        return self._response("queued" if self._accepted and not self._began else "in_progress")

    def _status(self) -> Literal["incomplete", "completed"]:
        cut = any(turn.finish == "length" for turn in self.turns.values())
        return "incomplete" if cut else "completed"

    def _whole(self, status: Status, error: ApiError | None = None) -> ResponseReply:
        """Return the response at its end, which is stored first."""
        whole = self._response(status, error)
        keep, self._keep = self._keep, None  # it refers back to this builder
        if keep is not None:
            keep(whole)
        return whole

    def _response(self, status: Status, error: ApiError | None = None) -> ResponseReply:
        began = status in ("queued", "in_progress")
        incomplete = Incomplete(reason="max_output_tokens") if status == "incomplete" else None
        return ResponseReply(
            **self._fields,
            **({} if began else self._diagnostics()),
            status=status,
            error=None if error is None else _error(error),
            incomplete_details=incomplete,
            output=[] if began else self.items(),
            usage=None if began else self._usage(),
        )

    def _diagnostics(self) -> Mapping[str, Any]:
        """Return the field of a response whose client names one to compare with."""
        if self._compared is None:
            return {}
        return {
            "prompt_cache_diagnostics": cache_diagnostics(self.asked.explanation, self.usage.prompt, self.usage.cached)
        }

    def _usage(self) -> ResponseUsage:
        counts = self.usage
        return ResponseUsage(
            input_tokens=counts.prompt,
            input_tokens_details=InputDetails(cached_tokens=counts.cached, cache_write_tokens=counts.written),
            output_tokens=counts.completion,
            output_tokens_details=OutputDetails(reasoning_tokens=counts.reasoning),
            total_tokens=counts.prompt + counts.completion,
        )


def _part(item: Item, text: str) -> dict[str, Any]:
    """Return the part of content of an item."""
    return {**_TEXT, "text": text} if item.kind is PartKind.CONTENT else {"type": "reasoning_text", "text": text}


def _value(text: str) -> Any:
    """Return the value of JSON text; text that was cut off is its own value."""
    try:
        return json.loads(readable_json(text or "{}"))
    except (ValueError, RecursionError):
        return text


def _error(error: ApiError) -> ResponseError:
    """Return an error of a response. Clients send a request again unless it is an `invalid_prompt`."""
    code = "server_error" if error.status_code >= 500 else "invalid_prompt"
    return ResponseError(code=code, message=error.message, param=error.param, type=error.code)


def _repeated(
    header: ReplyHeader, body: ResponsesRequest, params: SamplingParams, offered: OfferedTools, summary: str | None
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
        "temperature": params.temperature,
        "text": {**options, "format": options.get("format") or {"type": "text"}},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
    }


_REASONS: Final = {
    "variable": "reasoning_effort_changed",
    "tool": "tools_changed",
    "message": "input_changed",
}


def cache_diagnostics(explanation: Explanation | None, prompt: int, cached: int | None) -> PromptCacheDiagnostics:
    """Return the comparison that a client asks for.

    Args:
        explanation: None without `--explain-prefixes`: the comparison is unavailable.
        prompt, cached: tokens of the prompt, and those from the prefix cache.
    """
    if explanation is None:
        return PromptCacheDiagnostics(type="unavailable")
    if not explanation.named or explanation.common is None:
        return PromptCacheDiagnostics(type="comparison_response_not_found")
    miss = explanation.miss
    if miss is None or miss.appended:
        return PromptCacheDiagnostics(type="unavailable" if explanation.evicted(cached) else "cache_hit")
    reason = None if miss.change is None else _REASONS.get(miss.change)
    where: dict[str, Any] = {"first_differing_token": explanation.common, "place": miss.place, "cause": miss.cause}
    if reason is None:
        return PromptCacheDiagnostics(type="unavailable", **where)
    return PromptCacheDiagnostics(
        type="cache_miss",
        cache_missed_tokens=prompt - explanation.common,
        reason=reason,
        comparison_reusable_tokens=explanation.common,
        **where,
    )
