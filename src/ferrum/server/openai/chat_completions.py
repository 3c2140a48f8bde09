"""/v1/chat/completions: its route, the checks of its body, and the chunks and replies.

What it shares with completions is in `openai.checks` and `openai_builder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.client.diagnosis.prompt_history import PromptPaths
from ferrum.client.input_processor import FieldNames
from ferrum.client.request_output import Delta, Logprobs
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.generation import finish_of
from ferrum.server.common.json_routes import generate
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_builder import Finish, PromptNotes, ReplyHeader
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.server.openai.bodies import ChatRequest
from ferrum.server.openai.chat_replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatReply,
)
from ferrum.server.openai.checks import (
    CheckedRequest,
    Prompts,
    check_generation,
    check_reply_size,
    check_top_tokens,
    rendered_chat,
    sampling_params,
)
from ferrum.server.openai.constraints import structured_outputs
from ferrum.server.openai.message_parts import MessageParts
from ferrum.server.openai.openai_builder import OpenAIBuilder, finite, prompt_logprobs, top
from ferrum.server.openai.replies import TokenLogprob, TopLogprob
from ferrum.server.openai.tool_fields import chat_options
from ferrum.text.template_messages import for_template, joined
from ferrum.text.tokenizer import Tokenizer


def add_chat(router: APIRouter, service: Service, responses: Mapping[int | str, dict[str, Any]]) -> None:
    """Add the route; `responses` describes its replies for the OpenAPI document."""

    @router.post("/v1/chat/completions", responses=dict(responses))
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Generate the assistant's next message in a conversation."""
        return await generate(service, request, body, "chatcmpl-", chat_builder)


def check_chat(model: ServedModel, body: ChatRequest, caller: Caller, name: str) -> CheckedRequest:
    """Return the engine's request for a chat.

    Args:
        name: the request's id.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name.
    """
    client = model.client
    check_generation(client, body, caller)
    if body.top_logprobs is not None:
        check_top_tokens("top_logprobs", body.top_logprobs, caller.max_logprobs)
    limits = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
    if len(limits) > 1:
        reason = f"{body.max_completion_tokens} differs from max_tokens = {body.max_tokens}; send one of them"
        raise invalid("max_completion_tokens", reason)
    limit = min(limits, default=None)
    limited = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    constraint, constraint_name = structured_outputs(body)
    names = FieldNames("messages", limited, constraint_name)
    top_tokens = (body.top_logprobs or 0) if body.logprobs else None
    given: dict[str, Any] = {"logprobs": top_tokens, "structured_outputs": constraint}
    if limit is not None:
        given["max_tokens"] = limit
    params = sampling_params(body, {"max_tokens": None, **client.recommended}, given)
    prompt = rendered_chat(client, body, params, chat_options(body), names)
    predicted = None
    if body.prediction is not None:
        predicted = joined(body.prediction.model_dump()["content"], "prediction.content")
    prompts = Prompts(model, body, caller, params, limit, bool(body.add_special_tokens))
    requests = (prompts.request(prompt.text, name, names, predicted, prompt),)
    if params.logprobs is not None and not body.stream:
        check_reply_size(requests, model.context, params.logprobs, names.max_tokens)
    continued = _continued(body) if body.echo else ""
    explanation = None
    if model.explainer is not None and body.truncate_prompt_tokens is None:  # else the tokens are not those of the text
        explanation = model.explainer.explain(requests[0], prompt, _paths(body))
    return CheckedRequest(requests, params.n, (continued,), PromptNotes(prompt.free, explanation))


def _paths(body: ChatRequest) -> PromptPaths:
    """Return the paths of a prompt's parts."""
    tools = "functions" if body.functions else "tools"
    count = len(body.functions or body.tools or ())
    of_effort = {"reasoning_effort", "enable_thinking"} - (body.chat_template_kwargs or {}).keys()
    named = {} if body.reasoning_effort is None else dict.fromkeys(of_effort, "reasoning_effort")
    messages = [[(f"messages[{place}]", 0)] for place in range(len(body.messages or ()))]
    return PromptPaths(messages, [f"{tools}[{place}]" for place in range(count)], named)


def _continued(body: ChatRequest) -> str:
    """Return the text of the assistant's message that the reply continues."""
    [last] = for_template([body.messages[-1].model_dump(exclude_none=True)])
    if last["role"] != "assistant" or last["content"] is None:
        raise invalid("echo", "requires an assistant message at the end of messages")
    return str(last["content"])


def chat_builder(model: ServedModel, body: ChatRequest, caller: Caller, header: ReplyHeader) -> ChatReplyBuilder:
    """Check a body and return the builder of its reply. Raises as `check_chat`."""
    return ChatReplyBuilder(header, body, check_chat(model, body, caller, header.id), model.client.tokenizer)


class ChatReplyBuilder(OpenAIBuilder):
    """Builds the reply to one chat."""

    def __init__(
        self, header: ReplyHeader, body: ChatRequest, checked: CheckedRequest, tokenizer: Tokenizer | None
    ) -> None:
        super().__init__(header, body, checked, tokenizer)
        self._params = checked.requests[0].params
        self._begun: set[int] = set()
        reasoning, older = body.include_reasoning is not False, bool(body.functions)
        self._parts = MessageParts(checked.requests[0], header.id, reasoning=reasoning, older=older)
        self._older = older

    def chunks(self, place: int, delta: Delta) -> Iterator[ChatChunk]:
        """Yield a first chunk with the role, one with the text or one for each part, and one with the end."""
        index = delta.index
        if index not in self._begun:
            asked = self._token_ids or delta.prompt_logprobs is not None
            extra = self._prompt_fields(delta) if asked and not self._begun else {}
            self._begun.add(index)
            extra |= self.usage.fields(unsent=len(delta.token_ids))
            content = self._prefixes[place] or ("" if delta.parts is None else None)
            yield self._chunk(index, ChatDelta(role="assistant", content=content), **extra)
        logprobs = None if delta.logprobs is None else self._logprobs(delta)
        about: dict[str, Any] = {} if logprobs is None else {"logprobs": logprobs}
        if self._token_ids and delta.token_ids:
            about["token_ids"] = list(delta.token_ids)
        for fields in self._new_parts(delta, always=bool(about)):
            yield self._chunk(index, ChatDelta(**fields), about)
            about = {}  # the first chunk of a delta has what is known of all its tokens
        finish = self._finish(delta)
        if finish is not None:
            yield self._chunk(index, ChatDelta(), {"finish_reason": finish, "stop_reason": delta.stop_reason})

    def _new_parts(self, delta: Delta, *, always: bool) -> Iterable[dict[str, Any]]:
        """Return the fields of chunks for what is new; with `always` at least one."""
        if delta.parts is None:
            return [{"content": delta.text or ""}] if delta.text or always else []
        found = [fields for fields in self._parts.deltas(delta.index, delta.parts) if fields]
        return found or ([{}] if always else [])

    def _finish(self, delta: Delta) -> Finish | None:
        """Return how a choice ended: a complete reply with calls by them. Raises as `finish_of`."""
        finish = finish_of(delta)
        if finish == "stop" and self._parts.called(delta.index):
            return "function_call" if self._older else "tool_calls"
        return finish

    def _chunk(self, index: int, delta: ChatDelta, fields: Mapping[str, Any] | None = None, **extra: Any) -> ChatChunk:
        choice = ChatChunkChoice(
            index=index, delta=delta, **{"logprobs": None, "finish_reason": None, **(fields or {})}
        )
        fields_of_chunk = {**self._header, **self.usage.fields(), **extra}
        return ChatChunk(object="chat.completion.chunk", choices=[choice], **fields_of_chunk)

    def end_chunks(self) -> Iterator[ChatChunk]:
        """Yield a chunk with the usage, if the client wants it."""
        if self.usage.at_end:
            yield ChatChunk(**self._header, object="chat.completion.chunk", choices=[], usage=self.usage.usage())

    def reply(self, choices: Mapping[tuple[int, int], Delta]) -> ChatReply:
        return ChatReply(
            **self._header,
            **self._prompt_fields(next(iter(choices.values()))),
            object="chat.completion",
            choices=[self._choice(delta) for _, delta in sorted(choices.items())],
            usage=self.usage.usage(),
        )

    def _choice(self, delta: Delta) -> ChatChoice:
        if delta.parts is None:
            fields: dict[str, Any] = {"content": self._prefixes[0] + (delta.text or "")}
        else:
            fields = self._parts.message(delta.index, delta.parts, self._prefixes[0])
        message = ChatMessage(role="assistant", refusal=None, **fields)
        finish = self._finish(delta)
        assert finish is not None
        ids: dict[str, Any] = {"token_ids": list(delta.token_ids)} if self._token_ids else {}
        return ChatChoice(
            index=delta.index,
            message=message,
            logprobs=self._logprobs(delta),
            finish_reason=finish,
            stop_reason=delta.stop_reason,
            **ids,
        )

    def _prompt_fields(self, delta: Delta) -> dict[str, Any]:
        """Return the fields about the prompt, which stand once in a reply."""
        fields: dict[str, Any] = {}
        if delta.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(delta.prompt_logprobs, self._params.prompt_logprobs or 0)
        if self._token_ids:
            fields["prompt_token_ids"] = list(self.requests[0].prompt)
        return fields

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        if delta.logprobs is None or not (delta.token_ids or delta.text):
            return None
        return ChatLogprobs(content=[self._token(each) for each in delta.logprobs], refusal=None)

    def _token(self, position: Logprobs) -> TokenLogprob:
        token, entry = next(iter(position.items()))
        return TokenLogprob(
            token=self._namer.text(token, entry),
            logprob=finite(entry.logprob),
            bytes=self._namer.bytes(token),
            top_logprobs=[
                TopLogprob(
                    token=self._namer.text(other, each), logprob=finite(each.logprob), bytes=self._namer.bytes(other)
                )
                for other, each in top(position, self._params.logprobs or 0)
            ],
        )
