"""/v1/completions: the checks of its body, and the chunks and replies.

What it shares with chats is in `openai.checks` and `openai_builder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ferrum.client.input_processor import FieldNames
from ferrum.client.model_client import ModelClient
from ferrum.client.request_output import Delta, Logprobs
from ferrum.core.params import ALL_TOKENS
from ferrum.core.types import Request
from ferrum.server.common.error_replies import invalid, unsupported
from ferrum.server.common.generation import finish_of
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_builder import ReplyHeader, part_id
from ferrum.server.common.served_model import ServedModel
from ferrum.server.openai.bodies import CompletionRequest
from ferrum.server.openai.checks import (
    CheckedRequest,
    Prompts,
    check_generation,
    check_reply_size,
    check_top_tokens,
    sampling_params,
    several,
)
from ferrum.server.openai.constraints import structured_outputs
from ferrum.server.openai.openai_builder import MINUS_INFINITY, OpenAIBuilder, finite, prompt_logprobs, top
from ferrum.server.openai.replies import CompletionChoice, CompletionLogprobs, CompletionReply
from ferrum.server.openai.text_offsets import Offsets, text_offsets
from ferrum.text.infill import infill_prompt
from ferrum.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS: Final = 16
"""Of completions; chats may fill the context."""

MAX_PROMPTS: Final = 256

MAX_PROMPT_LOGPROBS: Final = 1 << 18
"""Log-probabilities of prompt tokens in one reply of several choices; each choice repeats those of its prompt."""


def check_completion(model: ServedModel, body: CompletionRequest, caller: Caller, name: str) -> CheckedRequest:
    """Return the engine's requests for a completion, one per prompt.

    Args:
        name: the request's id; several prompts get a number each.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name; of several prompts, by index.
    """
    client = model.client
    check_generation(client, body, caller)
    texts = several("prompt", body.prompt, min(MAX_PROMPTS, caller.max_requests))
    n, generated = _choices(body)
    if body.logprobs is not None:
        check_top_tokens("logprobs", body.logprobs, caller.max_logprobs)
    special = body.add_special_tokens is not False
    if body.suffix is not None:
        texts = _infilled(client, body, texts, begin=special)
    constraint, constraint_name = structured_outputs(body)
    given = {
        "structured_outputs": constraint,
        "max_tokens": DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        "logprobs": body.logprobs if generated == n else _wider(body.logprobs, 0),
        "prompt_logprobs": _wider(body.prompt_logprobs, body.logprobs if body.echo else None),
    }
    params = sampling_params(body, client.recommended, given).but(n=generated)
    prompts = Prompts(model, body, caller, params, body.max_tokens, special)
    names = FieldNames(structured_outputs=constraint_name)
    requests = (
        tuple(
            prompts.request(text, part_id(name, place), replace(names, prompt=f"prompt[{place}]"))
            for place, text in enumerate(texts)
        )
        if len(texts) > 1
        else (prompts.request(texts[0], name, names),)
    )
    _check_prompt_logprobs(body, generated, requests, client.info.vocab_size)
    if body.logprobs is not None and not body.stream:
        check_reply_size(requests, model.context, body.logprobs, "max_tokens")
    prefixes = (prompts.text(*each) if body.echo else "" for each in zip(texts, requests, strict=True))
    return CheckedRequest(requests, n, tuple(prefixes))


def _choices(body: CompletionRequest) -> tuple[int, int]:
    """Return how many choices to return per prompt, and how many to generate."""
    n = 1 if body.n is None else body.n
    if not body.best_of:
        return n, n
    if body.best_of < n:
        raise invalid("best_of", f"{body.best_of} is less than n = {n}")
    if body.best_of > n and body.stream:
        raise invalid("best_of", "must not exceed n with stream = true")
    return n, body.best_of


def _infilled(
    client: ModelClient, body: CompletionRequest, prompts: Sequence[str | list[int]], *, begin: bool
) -> list[str | list[int]]:
    """Return the prompts as the model's fill-in-the-middle format has them, with the suffix."""
    if client.tokenizer is None:
        raise unsupported("suffix", "the model has no tokenizer")
    infilled: list[str | list[int]] = []
    for prompt in prompts:
        prefix = client.tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        ids = infill_prompt(client.tokenizer, prefix, body.suffix or "", begin=begin)
        if ids is None:
            raise unsupported("suffix", "the model's tokenizer has no fill-in-the-middle tokens")
        infilled.append(ids)
    return infilled


def _wider(first: int | None, second: int | None) -> int | None:
    """Return the number of top tokens that satisfies both wishes."""
    wishes = [each for each in (first, second) if each is not None]
    return ALL_TOKENS if ALL_TOKENS in wishes else max(wishes, default=None)


def _check_prompt_logprobs(
    body: CompletionRequest, generated: int, requests: Sequence[Request], vocab_size: int
) -> None:
    """Refuse several choices that repeat too many log-probabilities of their prompts."""
    wishes = {"prompt_logprobs": body.prompt_logprobs, "logprobs": body.logprobs if body.echo else None}
    per_token = {
        field: 1 + (vocab_size if wish == ALL_TOKENS else wish) for field, wish in wishes.items() if wish is not None
    }
    count = generated * sum(len(request.prompt) for request in requests) * sum(per_token.values())
    if generated * len(requests) > 1 and count > MAX_PROMPT_LOGPROBS:
        reason = f"the reply would have {count} log-probabilities of prompt tokens, at most {MAX_PROMPT_LOGPROBS}"
        raise invalid(max(per_token, key=per_token.__getitem__), f"{reason}; set n = 1 or send fewer prompts at a time")


def completion_builder(
    model: ServedModel, body: CompletionRequest, caller: Caller, header: ReplyHeader
) -> CompletionReplyBuilder:
    """Check a body and return the builder of its reply. Raises as `check_completion`."""
    return CompletionReplyBuilder(
        header, body, check_completion(model, body, caller, header.id), model.client.tokenizer
    )


class CompletionReplyBuilder(OpenAIBuilder):
    """Builds the reply to a completion of one or several prompts."""

    def __init__(
        self, header: ReplyHeader, body: CompletionRequest, checked: CheckedRequest, tokenizer: Tokenizer | None
    ) -> None:
        super().__init__(header, body, checked, tokenizer)
        self._body = body
        self._n = checked.n
        self._generated = checked.requests[0].params.n
        self._tokenizer = tokenizer
        self._offsets: dict[tuple[int, int], Offsets] = {}  # of the choices that have begun
        self._prompt_offsets: dict[int, list[int]] = {}  # of echoed prompts, for all their choices

    def chunks(self, place: int, delta: Delta) -> Iterator[CompletionReply]:
        """Yield one chunk, unless it would be empty."""
        choice = self._choice(place, delta, place * self._generated + delta.index)
        finished, new = delta.finish_reason is not None, choice.text or choice.logprobs is not None
        if finished or new or (delta.token_ids and choice.model_fields_set & {"token_ids", "prompt_token_ids"}):
            yield CompletionReply(**self._header, object="text_completion", choices=[choice], **self.usage.fields())

    def end_chunks(self) -> Iterator[CompletionReply]:
        """Yield a chunk with the usage, if the client wants it."""
        if self.usage.at_end:
            yield CompletionReply(**self._header, object="text_completion", choices=[], usage=self.usage.usage())

    def reply(self, choices: Mapping[tuple[int, int], Delta]) -> CompletionReply:
        parts: list[CompletionChoice] = []
        for place in range(len(self.requests)):
            generated = [choices[place, index] for index in range(self._generated)]
            if self._generated > self._n:  # the likeliest per token, ties to the first
                generated = sorted(generated, key=_mean_logprob, reverse=True)[: self._n]
            parts += [self._choice(place, delta, len(parts) + number) for number, delta in enumerate(generated)]
        return CompletionReply(**self._header, object="text_completion", choices=parts, usage=self.usage.usage())

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
