"""Chat completions: from a body to a job, from the job's deltas to chunks, and from the chunks to one reply.

The conversation of a body, and the text that the model's chat template makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.engine.model_client import ModelClient
from ferrum.engine.request_output import Delta, Logprobs
from ferrum.server import reply_builder
from ferrum.server.error_replies import invalid, unsupported
from ferrum.server.reply_bodies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatReply,
    Finish,
    Reply,
    TokenLogprob,
    TopLogprob,
)
from ferrum.server.reply_builder import ReplyHeader, TokenNamer, UsageCounter
from ferrum.server.request_bodies import (
    MAX_TOP_LOGPROBS,
    ChatRequest,
    Message,
    Prediction,
    TemplateBody,
    TokenizeRequest,
)
from ferrum.server.validation import (
    Caller,
    admit,
    check_common,
    check_told,
    check_top_tokens,
    renamed,
    sampling_params,
)
from ferrum.text.chat_messages import for_template, joined


def chat_job(
    client: ModelClient, context: int, body: ChatRequest, caller: Caller, head: ReplyHeader, name: str
) -> ChatReplyBuilder:
    """All that a chat needs, checked.

    Raises:
        RequestError, ApiError: a field that cannot be served.
    """
    check_common(body, client, caller)
    _check(body, caller)
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    limit_name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if limit is not None and limit < 1:
        raise invalid(limit_name, f"must be at least 1, not {limit}")
    text = render(client, body)
    given: dict[str, Any] = {"logprobs": (body.top_logprobs or 0) if body.logprobs else None}
    if limit is not None:
        given["max_tokens"] = limit
    try:
        params = sampling_params(body, {"max_tokens": None, **client.recommended}, given)
        special = bool(body.add_special_tokens)
        [request] = admit(
            client,
            context,
            body,
            [text],
            params,
            caller,
            name=name,
            limit=limit,
            add_special_tokens=special,
            prediction="" if body.prediction is None else _text(body.prediction),
        )
        check_told(body, [request], context, params.logprobs)
    except RequestError as error:
        names = {"prompt": "messages", "max_tokens": limit_name, "logprobs": "top_logprobs"}
        raise renamed(error, names) from None
    prefix = ""
    if body.echo:
        prefix = _continued(body)
    return ChatReplyBuilder(
        head, body, request, TokenNamer(client.tokenizer, by_id=bool(body.return_tokens_as_token_ids)), prefix
    )


def _check(body: ChatRequest, caller: Caller) -> None:
    """Rules of chats alone."""
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "only with logprobs = true")
    check_top_tokens("top_logprobs", body.top_logprobs, MAX_TOP_LOGPROBS, caller.max_logprobs)
    if body.modalities is not None and body.modalities != ["text"]:
        raise unsupported("modalities", "text only")
    if body.include_reasoning is False:
        raise unsupported("include_reasoning", "reasoning is not told apart from text")


def _text(prediction: Prediction) -> str:
    return joined(prediction.model_dump()["content"], "prediction.content")


def _continued(body: ChatRequest) -> str:
    """The text of the assistant's message that the reply goes on with."""
    [last] = for_template(conversation(body.messages[-1:]))
    if last["role"] != "assistant" or "content" not in last:
        raise invalid("echo", "the last message is not the assistant's")
    return str(last["content"])


class ChatReplyBuilder:
    """One chat. See `ReplyBuilder`.

    Args:
        head: of every chunk.
        body: as the client sent it.
        request: for the engine.
        namer: names the tokens of log-probabilities.
        prefix: what every answer begins with.
    """

    def __init__(self, head: ReplyHeader, body: ChatRequest, request: Request, namer: TokenNamer, prefix: str) -> None:
        self.id = head.id
        self.requests = (request,)
        self.tally = UsageCounter(self.requests, body.stream_options)
        self.uniform = not (body.return_token_ids or self.tally.in_each)
        self._head = head
        self._namer = namer
        self._prefix = prefix
        self._params: SamplingParams = request.params
        self._ids = bool(body.return_token_ids)
        self._begun: set[int] = set()

    def push(self, place: int, delta: Delta) -> Iterator[ChatChunk]:
        """A first chunk with the role, the text, and the end: each on its own. See `ReplyBuilder`."""
        assert place == 0  # there is one prompt
        finish = reply_builder.finish_of(delta)
        self.tally.count(delta)
        if delta.index not in self._begun:
            yield self._begin(delta)
        if delta.token_ids or delta.text:
            logprobs = None
            if delta.logprobs is not None:
                logprobs = ChatLogprobs(content=[self._token(each) for each in delta.logprobs], refusal=None)
            ids: dict[str, Any] = {"token_ids": list(delta.token_ids)} if self._ids else {}
            if delta.text or logprobs is not None or ids:
                content = ChatDelta(content=delta.text or "")
                yield self._chunk(
                    ChatChunkChoice(index=delta.index, delta=content, logprobs=logprobs, finish_reason=None, **ids)
                )
        if finish is not None:
            yield self._chunk(
                ChatChunkChoice(
                    index=delta.index,
                    delta=ChatDelta(),
                    logprobs=None,
                    finish_reason=finish,
                    stop_reason=delta.stop_reason,
                )
            )

    def _begin(self, delta: Delta) -> ChatChunk:
        first = not self._begun
        self._begun.add(delta.index)
        extra: dict[str, Any] = {}
        if first and delta.prompt_logprobs is not None:
            count = self._params.prompt_logprobs or 0
            extra["prompt_logprobs"] = reply_builder.prompt_logprobs(delta.prompt_logprobs, count)
        if first and self._ids:
            extra["prompt_token_ids"] = list(self.requests[0].prompt)
        opening = ChatDelta(role="assistant", content=self._prefix)
        return self._chunk(
            ChatChunkChoice(index=delta.index, delta=opening, logprobs=None, finish_reason=None), **extra
        )

    def end(self) -> Iterator[ChatChunk]:
        """The usage, where asked for. See `ReplyBuilder`."""
        if self.tally.at_end:
            yield ChatChunk(**self._head.fields(), object="chat.completion.chunk", choices=[], usage=self.tally.usage())

    def _chunk(self, choice: ChatChunkChoice, **extra: Any) -> ChatChunk:
        extra |= self.tally.of_chunk()
        return ChatChunk(**self._head.fields(), object="chat.completion.chunk", choices=[choice], **extra)

    def _token(self, position: Logprobs) -> TokenLogprob:
        token, entry = next(iter(position.items()))
        count = self._params.logprobs or 0
        return TokenLogprob(
            token=self._namer.text(token, entry),
            logprob=reply_builder.finite(entry.logprob),
            bytes=self._namer.bytes(token),
            top_logprobs=[
                TopLogprob(
                    token=self._namer.text(other, each),
                    logprob=reply_builder.finite(each.logprob),
                    bytes=self._namer.bytes(other),
                )
                for other, each in reply_builder.top(position, count)
            ],
        )

    def fold(self, chunks: Sequence[Reply]) -> ChatReply:
        """See `ReplyBuilder`."""
        whole = _Whole()
        for chunk in chunks:
            assert isinstance(chunk, ChatChunk)
            whole.push(chunk)
        choices = [choice.reply(index, ids=self._ids) for index, choice in sorted(whole.choices.items())]
        return ChatReply(
            **self._head.fields(),
            **whole.extra,
            object="chat.completion",
            choices=choices,
            usage=self.tally.usage(),
        )


@dataclass(slots=True)
class _Choice:
    """One answer so far."""

    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish: Finish | None = None
    stop_reason: int | str | None = None

    def reply(self, index: int, *, ids: bool) -> ChatChoice:
        assert self.finish is not None
        return ChatChoice(
            index=index,
            message=ChatMessage(role="assistant", content="".join(self.text), refusal=None),
            logprobs=None if self.logprobs is None else ChatLogprobs(content=self.logprobs, refusal=None),
            finish_reason=self.finish,
            stop_reason=self.stop_reason,
            **({"token_ids": self.ids} if ids else {}),
        )


@dataclass(slots=True)
class _Whole:
    """A fold over chunks."""

    choices: dict[int, _Choice] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def push(self, chunk: ChatChunk) -> None:
        for name in ("prompt_logprobs", "prompt_token_ids"):
            if name in chunk.model_fields_set:
                self.extra[name] = getattr(chunk, name)
        for part in chunk.choices:
            choice = self.choices.setdefault(part.index, _Choice())
            choice.text.append(part.delta.content or "")
            choice.ids += part.token_ids or ()
            if part.logprobs is not None:
                if choice.logprobs is None:
                    choice.logprobs = []
                choice.logprobs += part.logprobs.content
            if part.finish_reason is not None:
                choice.finish = part.finish_reason
                choice.stop_reason = part.stop_reason


LETTERS_PER_TOKEN: Final = 64
"""A text of more characters for each token of the context is not what a template was meant to make."""


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for `ModelClient.render`.

    Raises:
        RequestError: a message that lacks what its role demands.
    """
    for place, message in enumerate(messages):
        _check_message(message, f"messages[{place}]")
    return [message.model_dump(exclude_none=True) for message in messages]


def _check_message(message: Message, where: str) -> None:
    calls = message.role == "assistant" and (message.tool_calls or message.function_call)
    if message.content is None and message.refusal is None and not calls:
        raise invalid(f"{where}.content", "must not be null, but of an assistant that calls tools")
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid(f"{where}.tool_call_id", "a tool's message must have one")
    if message.role == "function" and message.name is None:
        raise invalid(f"{where}.name", "a function's message must have one")


def render(client: ModelClient, body: TemplateBody | TokenizeRequest) -> str:
    """The text of a body's conversation.

    Raises:
        RequestError: what the template or the messages lack.
    """
    try:
        text = client.render(
            conversation(body.messages or ()),
            chat_template=body.chat_template,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=bool(body.continue_final_message),
            chat_template_kwargs=body.chat_template_kwargs,
            untrusted=True,
        )
    except RequestError as error:
        raise renamed(error, {"prompt": "messages"}) from None
    longest = LETTERS_PER_TOKEN * client.info.max_sequence_length
    if body.chat_template is not None and len(text) > longest:
        # A few letters of a template may make megabytes, which would then be encoded only to be refused.
        raise invalid("chat_template", f"it makes a text of {len(text)} characters, more than {longest}")
    return text
