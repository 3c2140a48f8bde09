"""The builders of replies to chats and completions: chunks of a stream, and whole replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ferrum.client.request_output import Delta, Logprobs
from ferrum.core.output_format import ToolKind
from ferrum.formats.output_parts import PartKind
from ferrum.server.chat.ask import Asked
from ferrum.server.chat.turn import Counts, Item, Piece, ReplyBuilder, ReplyHeader, Turn, finish_of
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.top_tokens import MINUS_INFINITY, finite, top
from ferrum.server.openai.ask import ask_chat, ask_completion, choices, continued
from ferrum.server.openai.fields import ChatRequest, CompletionRequest, GenerationBody
from ferrum.server.openai.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatReply,
    CompletionChoice,
    CompletionDetails,
    CompletionLogprobs,
    CompletionReply,
    CustomCall,
    Finish,
    FunctionCall,
    PromptDetails,
    TokenLogprob,
    ToolCall,
    TopLogprob,
    Usage,
)
from ferrum.server.openai.reply_tokens import Offsets, TokenNamer, prompt_logprobs, text_offsets
from ferrum.text.tokenizer import Tokenizer


class OpenAIBuilder(ReplyBuilder[Piece]):
    """What the builders of chats and completions share.

    Args:
        header: of every chunk.
        body: as the client sent it.
        asked: the engine's requests for it.
        prefixes: the text that every choice begins with, per prompt.
        tokenizer: names tokens; None: they are named by id.

    Attributes:
        usage_at_end, usage_in_each: one more chunk at the end of a stream shows the tokens; every chunk does.
    """

    def __init__(
        self,
        header: ReplyHeader,
        body: GenerationBody,
        asked: Asked,
        prefixes: Sequence[str],
        tokenizer: Tokenizer | None,
    ) -> None:
        super().__init__(header, asked)
        options = body.stream_options
        continuous = bool(options and options.continuous_usage_stats)
        wanted = None if options is None else options.include_usage
        self.usage_at_end = continuous if wanted is None else bool(wanted)
        self.usage_in_each = continuous and self.usage_at_end
        self.uniform = not (body.return_token_ids or self.usage_in_each)
        self._header: dict[str, Any] = {
            "id": header.id,
            "created": header.created,
            "model": header.model,
            "system_fingerprint": header.fingerprint,
        }
        self._prefixes = prefixes
        self._token_ids = bool(body.return_token_ids)
        self._tokenizer = tokenizer
        self._by_id = bool(body.return_tokens_as_token_ids)

    @cached_property
    def _namer(self) -> TokenNamer:
        return TokenNamer(self._tokenizer, by_id=self._by_id)

    def _usage_field(self, unsent: int = 0) -> dict[str, Any]:
        """Return the field of a chunk: the usage so far, null before the end of the stream, or nothing.

        Details are left out, since they are known only at the end of a request.

        Args:
            unsent: tokens that a later chunk sends.
        """
        if self.usage_in_each:
            prompt, completion = self.usage.prompt, self.usage.completion - unsent
            usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
            return {"usage": usage}
        return {"usage": None} if self.usage_at_end else {}


def usage_of(counts: Counts) -> Usage:
    """Return the tokens of a reply at its end."""
    return Usage(
        prompt_tokens=counts.prompt,
        completion_tokens=counts.completion,
        total_tokens=counts.prompt + counts.completion,
        prompt_tokens_details=PromptDetails(cached_tokens=counts.cached),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=counts.reasoning,
            accepted_prediction_tokens=counts.accepted,
            rejected_prediction_tokens=counts.rejected,
        ),
    )


# Chats


def chat_builder(model: ServedModel, body: ChatRequest, caller: Caller, header: ReplyHeader) -> ChatReplyBuilder:
    """Check a body and return the builder of its reply. Raises as `ask_chat`."""
    asked = ask_chat(model, body, caller, header.id)
    return ChatReplyBuilder(header, body, asked, [continued(body) if body.echo else ""], model.client.tokenizer)


class ChatReplyBuilder(OpenAIBuilder[ChatDelta]):
    """Builds the reply to one chat."""

    def __init__(
        self,
        header: ReplyHeader,
        body: ChatRequest,
        asked: Asked,
        prefixes: Sequence[str],
        tokenizer: Tokenizer | None,
    ) -> None:
        super().__init__(header, body, asked, prefixes, tokenizer)
        reading = asked.requests[0].reading
        self._params = asked.requests[0].params
        self._custom = {tool.name for tool in (reading.tools if reading else ()) if tool.kind is ToolKind.CUSTOM}
        self._reasoning = body.include_reasoning is not False
        self._older = bool(body.functions)

    def begun(self, item: Item) -> Iterator[ChatDelta]:
        """Yield the begin of a call."""
        if item.kind is not PartKind.CALL:
            return
        if not self._older:
            yield ChatDelta(tool_calls=[self._call(item, "", index=item.number, id=item.id)])
        elif item.number == 0:  # the older form has one call
            yield ChatDelta(function_call=FunctionCall(name=item.name, arguments=""))

    def grown(self, item: Item, text: str) -> Iterator[ChatDelta]:
        """Yield new text."""
        if item.kind is PartKind.CONTENT:
            yield ChatDelta(content=text)
        elif item.kind is PartKind.REASONING:
            if self._reasoning:
                yield ChatDelta(reasoning=text, reasoning_content=text)
        elif not self._older:
            yield ChatDelta(tool_calls=[self._call(item, text, index=item.number)])
        elif item.number == 0:
            yield ChatDelta(function_call=FunctionCall(arguments=text))

    def _call(self, item: Item, text: str, **about: Any) -> ToolCall:
        """Return a call with some of its text, and with its kind and name if `about` has its id."""
        named = {"name": item.name} if "id" in about else {}
        kind = "custom" if item.name in self._custom else "function"
        head = {**about, "type": kind} if named else about
        if kind == "custom":
            return ToolCall(**head, custom=CustomCall(**named, input=text))
        return ToolCall(**head, function=FunctionCall(**named, arguments=text))

    def chunks(self, place: int, delta: Delta) -> Iterator[ChatChunk]:
        """Yield a first chunk with the role, one with the text or one for each part, and one with the end."""
        index = delta.index
        if (place, index) not in self.turns:
            asked = self._token_ids or delta.prompt_logprobs is not None
            extra = self._prompt_fields(delta) if asked and not self.turns else {}
            extra |= self._usage_field(unsent=len(delta.token_ids))
            content = self._prefixes[place] or ("" if delta.parts is None else None)
            yield self._chunk(index, ChatDelta(role="assistant", content=content), **extra)
        logprobs = None if delta.logprobs is None else self._logprobs(delta)
        about: dict[str, Any] = {} if logprobs is None else {"logprobs": logprobs}
        if self._token_ids and delta.token_ids:
            about["token_ids"] = list(delta.token_ids)
        for piece in self.pieces(place, delta):
            yield self._chunk(index, piece, about)
            about = {}  # the first chunk of a delta has what is known of all its tokens
        if about:
            yield self._chunk(index, ChatDelta(content="") if delta.parts is None else ChatDelta(), about)
        if delta.finish_reason is not None:
            finish = self._finish(self.turns[place, index])
            yield self._chunk(index, ChatDelta(), {"finish_reason": finish, "stop_reason": delta.stop_reason})

    def _finish(self, turn: Turn) -> Finish | None:
        """Return how a choice ended: a complete reply with calls by them."""
        if turn.finish == "stop" and turn.called:
            return "function_call" if self._older else "tool_calls"
        return turn.finish

    def _chunk(self, index: int, delta: ChatDelta, fields: Mapping[str, Any] | None = None, **extra: Any) -> ChatChunk:
        choice = ChatChunkChoice(
            index=index, delta=delta, **{"logprobs": None, "finish_reason": None, **(fields or {})}
        )
        fields_of_chunk = {**self._header, **self._usage_field(), **extra}
        return ChatChunk(object="chat.completion.chunk", choices=[choice], **fields_of_chunk)

    def end_chunks(self) -> Iterator[ChatChunk]:
        """Yield a chunk with the usage, if the client wants it."""
        if self.usage_at_end:
            yield ChatChunk(**self._header, object="chat.completion.chunk", choices=[], usage=usage_of(self.usage))

    def whole(self) -> ChatReply:
        turns = sorted(self.turns.items())
        return ChatReply(
            **self._header,
            **self._prompt_fields(turns[0][1].joined()),
            object="chat.completion",
            choices=[self._choice(index, turn) for (_, index), turn in turns],
            usage=usage_of(self.usage),
        )

    def _choice(self, index: int, turn: Turn) -> ChatChoice:
        finish, delta = self._finish(turn), turn.joined()
        assert finish is not None
        ids: dict[str, Any] = {"token_ids": list(delta.token_ids)} if self._token_ids else {}
        return ChatChoice(
            index=index,
            message=self._message(turn, read=delta.parts is not None),
            logprobs=self._logprobs(delta),
            finish_reason=finish,
            stop_reason=delta.stop_reason,
            **ids,
        )

    def _message(self, turn: Turn, *, read: bool) -> ChatMessage:
        """Return the whole message of a choice; content that was not read is there even if it is empty."""
        content, reasoning = turn.text(PartKind.CONTENT), turn.text(PartKind.REASONING)
        prefix = self._prefixes[0]
        absent = content is None and read and not prefix
        fields: dict[str, Any] = {"content": None if absent else prefix + (content or "")}
        if reasoning is not None and self._reasoning:
            fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if turn.calls and self._older:
            fields["function_call"] = FunctionCall(name=turn.calls[0].name, arguments=turn.calls[0].text)
        elif turn.calls:
            fields["tool_calls"] = [self._call(each, each.text, id=each.id) for each in turn.calls]
        return ChatMessage(role="assistant", refusal=None, **fields)

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


# Completions


def completion_builder(
    model: ServedModel, body: CompletionRequest, caller: Caller, header: ReplyHeader
) -> CompletionReplyBuilder:
    """Check a body and return the builder of its reply. Raises as `ask_completion`."""
    return CompletionReplyBuilder(header, body, *ask_completion(model, body, caller, header.id), model.client.tokenizer)


class CompletionReplyBuilder(OpenAIBuilder[CompletionReply]):
    """Builds the reply to a completion of one or several prompts."""

    def __init__(
        self,
        header: ReplyHeader,
        body: CompletionRequest,
        asked: Asked,
        prefixes: Sequence[str],
        tokenizer: Tokenizer | None,
    ) -> None:
        super().__init__(header, body, asked, prefixes, tokenizer)
        self._body = body
        self._n, self._generated = choices(body)
        self._offsets: dict[tuple[int, int], Offsets] = {}  # of the choices that have begun
        self._prompt_offsets: dict[int, list[int]] = {}  # of echoed prompts, for all their choices

    def chunks(self, place: int, delta: Delta) -> Iterator[CompletionReply]:
        """Yield one chunk, unless it would be empty."""
        choice = self._choice(place, delta, place * self._generated + delta.index)
        finished, new = delta.finish_reason is not None, choice.text or choice.logprobs is not None
        if finished or new or (delta.token_ids and choice.model_fields_set & {"token_ids", "prompt_token_ids"}):
            yield CompletionReply(**self._header, object="text_completion", choices=[choice], **self._usage_field())

    def end_chunks(self) -> Iterator[CompletionReply]:
        """Yield a chunk with the usage, if the client wants it."""
        if self.usage_at_end:
            yield CompletionReply(**self._header, object="text_completion", choices=[], usage=usage_of(self.usage))

    def whole(self) -> CompletionReply:
        parts: list[CompletionChoice] = []
        for place in range(len(self.requests)):
            generated = [self.turns[place, index].joined() for index in range(self._generated)]
            if self._generated > self._n:  # the likeliest per token, ties to the first
                generated = sorted(generated, key=_mean_logprob, reverse=True)[: self._n]
            parts += [self._choice(place, delta, len(parts) + number) for number, delta in enumerate(generated)]
        return CompletionReply(**self._header, object="text_completion", choices=parts, usage=usage_of(self.usage))

    def _choice(self, place: int, delta: Delta, index: int) -> CompletionChoice:
        """Return what is new in a choice; `index` is that in the reply."""
        fields: dict[str, Any] = {}
        key, text, first = (place, delta.index), delta.text or "", False
        if key not in self._offsets:
            first, prefix = True, self._prefixes[place]
            skip = self.requests[place].params.skip_special_tokens
            tokenizer = None if self._body.logprobs is None else self._tokenizer
            self._offsets[key] = Offsets(tokenizer, len(prefix), skip_special_tokens=skip)
            text = prefix + text
            if self._body.prompt_logprobs is not None and delta.prompt_logprobs is not None:
                fields["prompt_logprobs"] = prompt_logprobs(delta.prompt_logprobs, self._body.prompt_logprobs)
            if self._token_ids:
                fields["prompt_token_ids"] = list(self.requests[place].prompt)
        if self._token_ids:
            fields["token_ids"] = list(delta.token_ids)
        finish = finish_of(delta)
        if finish is not None:
            fields["stop_reason"] = delta.stop_reason
        logprobs = self._logprobs(place, delta, first=first)
        return CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=finish, **fields)

    def _logprobs(self, place: int, delta: Delta, *, first: bool) -> CompletionLogprobs | None:
        """Return the log-probabilities of a delta's tokens, after those of an echoed prompt in a first delta."""
        if self._body.logprobs is None:
            return None
        written = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        if self._body.echo and first and delta.prompt_logprobs is not None:
            prompt = self.requests[place].prompt
            if place not in self._prompt_offsets:
                self._prompt_offsets[place] = text_offsets(self._tokenizer, self._prefixes[place], prompt)
            for offset, token, each in zip(self._prompt_offsets[place], prompt, delta.prompt_logprobs, strict=True):
                self._write(written, offset, token, each)
        offsets = self._offsets[place, delta.index]
        for each in delta.logprobs or ():
            token = next(iter(each))
            self._write(written, offsets.next(token), token, each)
        return written if written.tokens else None

    def _write(self, to: CompletionLogprobs, offset: int, token: int, position: Logprobs | None) -> None:
        name = self._namer.spelled(token)
        to.text_offset.append(offset)
        to.tokens.append(name)
        if position is None:
            to.token_logprobs.append(None)
            to.top_logprobs.append(None)
            return
        logprob = finite(position[token].logprob)
        to.token_logprobs.append(logprob)
        named = {name: logprob}
        for other, each in top(position, self._body.logprobs or 0):
            name = self._namer.spelled(other)  # two tokens may have one text: keep the likelier one
            named[name] = max(finite(each.logprob), named.get(name, MINUS_INFINITY))
        to.top_logprobs.append(named)


def _mean_logprob(delta: Delta) -> float:
    """Return the mean log-probability per token; that of an empty completion is the best possible."""
    logprobs = [next(iter(each.values())).logprob for each in delta.logprobs or ()]
    return sum(logprobs) / len(logprobs) if logprobs else 0.0
