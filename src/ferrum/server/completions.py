"""Completions: from a body to a job, from the job's deltas to chunks, and from the chunks to one reply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.params import ALL_TOKENS
from ferrum.core.types import Request
from ferrum.engine.model_client import ModelClient
from ferrum.engine.request_output import Delta, Logprobs
from ferrum.server import reply_builder
from ferrum.server.error_replies import invalid, unsupported
from ferrum.server.reply_bodies import CompletionChoice, CompletionLogprobs, CompletionReply, Reply
from ferrum.server.reply_builder import ReplyHeader, TokenNamer, UsageCounter
from ferrum.server.request_bodies import MAX_BEST_OF, MAX_LOGPROBS, CompletionRequest
from ferrum.server.validation import (
    Caller,
    admit,
    check_common,
    check_told,
    check_top_tokens,
    one_or_several,
    renamed,
    sampling_params,
    wider,
)
from ferrum.text.detokenizer import Detokenizer
from ferrum.text.infill import infill_prompt
from ferrum.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS: Final = 16
MAX_PROMPTS: Final = 256

MAX_SCORES: Final = 1 << 18
"""Log-probabilities of prompts' tokens in a reply of several choices: each choice has those of its prompt."""

MAX_SWALLOWED: Final = 64
"""Characters of white space that are looked through for a token behind them."""


def completion_job(
    client: ModelClient, context: int, body: CompletionRequest, caller: Caller, head: ReplyHeader, name: str
) -> CompletionReplyBuilder:
    """All that completions need, checked.

    Raises:
        RequestError, ApiError: a field that cannot be served.
    """
    check_common(body, client, caller)
    prompts = one_or_several("prompt", body.prompt, min(MAX_PROMPTS, caller.together))
    n, generated = _choices(body)
    check_top_tokens("logprobs", body.logprobs, MAX_LOGPROBS, caller.max_logprobs)
    echoed = body.logprobs if body.echo else None
    given = {
        "n": generated,
        "max_tokens": DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        "logprobs": body.logprobs if generated == n else wider(body.logprobs, 0),
        "prompt_logprobs": wider(body.prompt_logprobs, echoed),
    }
    special = body.add_special_tokens is not False
    if body.suffix is not None:
        prompts = _infilled(client, body, prompts, begin=special)
    try:
        params = sampling_params(body, client.recommended, given)
        requests = admit(
            client,
            context,
            body,
            prompts,
            params,
            caller,
            name=name,
            limit=body.max_tokens,
            add_special_tokens=special,
        )
    except RequestError as error:
        raise renamed(error, {"n": "best_of"} if body.best_of is not None else {}) from None
    _check_scores(body, generated, requests, client.info.vocab_size)
    check_told(body, requests, context, body.logprobs)
    texts = [_text(client, body, prompt, request) for prompt, request in zip(prompts, requests, strict=True)]
    return CompletionReplyBuilder(head, body, requests, n, client, texts if body.echo else [""] * len(requests))


def _infilled(
    client: ModelClient, body: CompletionRequest, prompts: Sequence[str | list[int]], *, begin: bool
) -> list[str | list[int]]:
    """The prompts with what comes after the gap, and the marks around it."""
    if body.echo or body.truncate_prompt_tokens is not None:
        raise invalid("suffix", "not with echo or truncate_prompt_tokens")
    if client.tokenizer is None:
        raise unsupported("suffix", "the model has no tokenizer")
    infilled: list[str | list[int]] = []
    for prompt in prompts:
        prefix = client.tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        ids = infill_prompt(client.tokenizer, prefix, body.suffix or "", begin=begin)
        if ids is None:
            raise unsupported("suffix", "the model's tokenizer has no marks for filling in the middle")
        infilled.append(ids)
    return infilled


def _choices(body: CompletionRequest) -> tuple[int, int]:
    """How many choices to return, and to generate."""
    n = 1 if body.n is None else body.n
    if body.best_of is None:
        return n, n
    if not 1 <= body.best_of <= MAX_BEST_OF:
        raise invalid("best_of", f"must be 1 to {MAX_BEST_OF}, not {body.best_of}")
    if body.best_of < n:
        raise invalid("best_of", f"{body.best_of} is less than n = {n}")
    if body.best_of > n and body.stream:
        raise invalid("best_of", "not more than n with stream = true")
    return n, body.best_of


def _check_scores(body: CompletionRequest, generated: int, requests: Sequence[Request], vocabulary: int) -> None:
    """Refuse a reply that would be many times as large as a prompt's own log-probabilities."""
    wishes = {"prompt_logprobs": body.prompt_logprobs, "logprobs": body.logprobs if body.echo else None}
    of_token = {
        field: 1 + (vocabulary if count == ALL_TOKENS else count)
        for field, count in wishes.items()
        if count is not None
    }
    scores = generated * sum(len(request.prompt) for request in requests) * sum(of_token.values())
    if generated * len(requests) > 1 and scores > MAX_SCORES:
        raise invalid(
            max(of_token, key=lambda field: of_token[field]),
            f"{scores} log-probabilities of prompt tokens in one reply, at most {MAX_SCORES} for several choices or "
            f"prompts: ask for them with n = 1, and for fewer prompts at a time",
        )


def _text(client: ModelClient, body: CompletionRequest, prompt: str | list[int], request: Request) -> str:
    """The text of a prompt: as it was given, or that of its ids."""
    if isinstance(prompt, str) and body.truncate_prompt_tokens is None:
        return prompt
    if client.tokenizer is None:
        return ""
    return client.tokenizer.decode(request.prompt, skip_special_tokens=request.params.skip_special_tokens)


@dataclass(slots=True)
class _Choice:
    """One completion while it is written.

    Attributes:
        offsets: counts the characters of its new tokens, where log-probabilities are asked for.
        length: characters so far, those of an echoed prompt first.
        total, tokens: sum of its log-probabilities, and of how many.
    """

    offsets: Detokenizer | None
    length: int
    begun: bool = False
    total: float = 0.0
    tokens: int = 0

    @property
    def mean(self) -> float:
        """Log-probability per token; that of an empty completion is as good as can be."""
        return self.total / self.tokens if self.tokens else 0.0


class CompletionReplyBuilder:
    """Completions of one prompt or several. See `ReplyBuilder`.

    Args:
        head: of every chunk.
        body: as the client sent it.
        requests: for the engine, one per prompt.
        n: choices to return per prompt; the likeliest of those that the requests generate.
        client: names the tokens of log-probabilities.
        texts: what every choice begins with, per prompt.
    """

    def __init__(
        self,
        head: ReplyHeader,
        body: CompletionRequest,
        requests: Sequence[Request],
        n: int,
        client: ModelClient,
        texts: list[str],
    ) -> None:
        self.id = head.id
        self.requests = tuple(requests)
        self.tally = UsageCounter(self.requests, body.stream_options)
        self.uniform = not (body.return_token_ids or self.tally.in_each)
        self._head = head
        self._body = body
        self._n = n
        self._generated = requests[0].params.n
        self._namer = TokenNamer(client.tokenizer, by_id=bool(body.return_tokens_as_token_ids))
        self._tokenizer = client.tokenizer
        self._texts = texts
        self._choices: dict[int, _Choice] = {}
        self._prompt_offsets: dict[int, list[int]] = {}  # of echoed prompts, for all their choices

    def push(self, place: int, delta: Delta) -> Iterator[CompletionReply]:
        """One chunk, if there is anything to tell. See `ReplyBuilder`."""
        finish = reply_builder.finish_of(delta)
        self.tally.count(delta)
        index = place * self._generated + delta.index
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = self._begin(place)
        if delta.logprobs is not None:
            choice.total += sum(next(iter(each.values())).logprob for each in delta.logprobs)
            choice.tokens += len(delta.logprobs)
        text = delta.text or ""
        extra: dict[str, Any] = {}
        if self._body.return_token_ids:
            extra["token_ids"] = list(delta.token_ids)
        if finish is not None:
            extra["stop_reason"] = delta.stop_reason
        logprobs = self._logprobs(choice, place, delta)
        if not choice.begun:
            choice.begun = True
            text = self._texts[place] + text
            extra |= self._prompt_fields(place, delta)
        if text or finish is not None or logprobs is not None or (extra and delta.token_ids):
            yield self._chunk(
                CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=finish, **extra)
            )

    def _begin(self, place: int) -> _Choice:
        offsets = None
        if self._body.logprobs is not None and self._tokenizer is not None:
            skip = self.requests[place].params.skip_special_tokens
            offsets = Detokenizer(self._tokenizer, skip_special_tokens=skip)
        return _Choice(offsets, len(self._texts[place]))

    def _prompt_fields(self, place: int, delta: Delta) -> dict[str, Any]:
        """What the first chunk of a choice tells of its prompt."""
        fields: dict[str, Any] = {}
        if self._body.prompt_logprobs is not None and delta.prompt_logprobs is not None:
            fields["prompt_logprobs"] = reply_builder.prompt_logprobs(delta.prompt_logprobs, self._body.prompt_logprobs)
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = list(self.requests[place].prompt)
        return fields

    def _logprobs(self, choice: _Choice, place: int, delta: Delta) -> CompletionLogprobs | None:
        """The log-probabilities of a delta's tokens, after those of an echoed prompt in a choice's first delta."""
        if self._body.logprobs is None:
            return None
        written = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        if self._body.echo and not choice.begun and delta.prompt_logprobs is not None:
            prompt = self.requests[place].prompt
            offsets = self._prompt_offsets.get(place)
            if offsets is None:
                offsets = self._prompt_offsets[place] = text_offsets(self._tokenizer, self._texts[place], prompt)
            for offset, token, position in zip(offsets, prompt, delta.prompt_logprobs, strict=True):
                self._write(written, offset, token, position)
        for each in delta.logprobs or ():
            token = next(iter(each))
            piece = "" if choice.offsets is None else choice.offsets.push([token]).text
            self._write(written, choice.length + _overdue(self._tokenizer, token, piece), token, each)
            choice.length += len(piece)
        return written if written.tokens else None

    def _write(self, to: CompletionLogprobs, offset: int, token: int, position: Logprobs | None) -> None:
        name = self._namer.spelled(token)
        to.text_offset.append(offset)
        to.tokens.append(name)
        if position is None:
            to.token_logprobs.append(None)
            to.top_logprobs.append(None)
            return
        logprob = reply_builder.finite(position[token].logprob)
        to.token_logprobs.append(logprob)
        named = {name: logprob}
        for other, each in reply_builder.top(position, self._body.logprobs or 0):
            name = self._namer.spelled(other)  # two tokens may have one text: the likelier one is told of
            named[name] = max(reply_builder.finite(each.logprob), named.get(name, reply_builder.MINUS_INFINITY))
        to.top_logprobs.append(named)

    def _chunk(self, choice: CompletionChoice) -> CompletionReply:
        usage: dict[str, Any] = self.tally.of_chunk()
        return CompletionReply(**self._head.fields(), object="text_completion", choices=[choice], **usage)

    def end(self) -> Iterator[CompletionReply]:
        """The usage, where asked for. See `ReplyBuilder`."""
        if self.tally.at_end:
            yield CompletionReply(**self._head.fields(), object="text_completion", choices=[], usage=self.tally.usage())

    def fold(self, chunks: Sequence[Reply]) -> CompletionReply:
        """See `ReplyBuilder`."""
        parts: dict[int, list[CompletionChoice]] = {index: [] for index in self._choices}
        for chunk in chunks:
            assert isinstance(chunk, CompletionReply)
            for part in chunk.choices:
                parts[part.index].append(part)
        choices = [_joined(parts[index], place) for place, index in enumerate(self._best())]
        return CompletionReply(
            **self._head.fields(), object="text_completion", choices=choices, usage=self.tally.usage()
        )

    def _best(self) -> list[int]:
        """The choices to return: of every prompt's the likeliest per token, ties to the first."""
        best: list[int] = []
        for place in range(len(self.requests)):
            made = range(place * self._generated, (place + 1) * self._generated)
            best += made if self._generated == self._n else self._likeliest(made)
        return best

    def _likeliest(self, made: Sequence[int]) -> list[int]:
        return sorted(made, key=lambda index: -self._choices[index].mean)[: self._n]


def text_offsets(tokenizer: Tokenizer | None, text: str, tokens: Sequence[int]) -> list[int]:
    """Where each token of an echoed prompt begins in its text; without a tokenizer there is none.

    The text is the client's, or one without special tokens: not every token is in it, nor is the space that some
    tokenizers put before a first word, and white space that a token swallows is part of none.
    """
    if tokenizer is None:
        return [0] * len(tokens)
    offsets: list[int] = []
    characters = Detokenizer(tokenizer, skip_special_tokens=False)
    place, first = 0, True
    for token in tokens:
        special = tokenizer.is_special(token)
        piece = characters.push([token]).text
        start, found = place, piece
        if not text.startswith(found, start):
            swallowed = text[place : place + MAX_SWALLOWED]
            start, found = place + len(swallowed) - len(swallowed.lstrip()), piece.lstrip()
        if not text.startswith(found, start) or not found:
            # It is not there, or in other words, which are most likely as long.
            start, found = place, "" if special or (first and not piece.strip()) else piece
        offsets.append(start + _overdue(tokenizer, token, found))
        place, first = min(start + len(found), len(text)), special
    return offsets


def _overdue(tokenizer: Tokenizer | None, token: int, piece: str) -> int:
    """How many characters of what a token brought were its predecessors': those whose end never came."""
    if tokenizer is None or not piece.startswith("\ufffd"):
        return 0
    return max(0, len(piece) - len(Detokenizer(tokenizer, skip_special_tokens=False).push([token]).text))


def _joined(parts: Sequence[CompletionChoice], index: int) -> CompletionChoice:
    """The parts of one choice as one; an optional field is there if any part has it."""
    given: dict[str, Any] = {}
    for name in ("stop_reason", "prompt_logprobs", "prompt_token_ids"):
        for part in parts:
            if name in part.model_fields_set:
                given[name] = getattr(part, name)
    if any("token_ids" in part.model_fields_set for part in parts):
        given["token_ids"] = [token for part in parts for token in part.token_ids or ()]
    scored = [part.logprobs for part in parts if part.logprobs is not None]
    logprobs = None
    if scored:
        logprobs = CompletionLogprobs(
            text_offset=[each for part in scored for each in part.text_offset],
            token_logprobs=[each for part in scored for each in part.token_logprobs],
            tokens=[each for part in scored for each in part.tokens],
            top_logprobs=[each for part in scored for each in part.top_logprobs],
        )
    text = "".join(part.text for part in parts)
    finish = parts[-1].finish_reason
    return CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=finish, **given)
