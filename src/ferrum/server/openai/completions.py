"""`CompletionReplyBuilder`: chunks and replies of /v1/completions, and where tokens stand in an echoed text.

Bodies are checked in `openai.checks`; what the builders share is in `reply_builder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from ferrum.engine.model_client import ModelClient
from ferrum.engine.request_output import Delta, Logprobs
from ferrum.server.common.reply_builder import ReplyHeader, finish_of
from ferrum.server.common.service import Caller
from ferrum.server.openai.bodies import CompletionRequest
from ferrum.server.openai.builder import MINUS_INFINITY, OpenAIBuilder, finite, prompt_logprobs, top
from ferrum.server.openai.checks import CheckedRequest, check_completion
from ferrum.server.openai.replies import CompletionChoice, CompletionLogprobs, CompletionReply
from ferrum.text.detokenizer import Detokenizer
from ferrum.text.tokenizer import Tokenizer

MAX_ADDED: Final = 4
"""Special tokens that a tokenizer puts before a text."""

MAX_SWALLOWED: Final = 64
"""Characters of white space that are searched for the start of a token."""


def completion_builder(
    client: ModelClient, body: CompletionRequest, caller: Caller, header: ReplyHeader
) -> CompletionReplyBuilder:
    """Check a body and return the builder of its reply. Raises as `check_completion`."""
    return CompletionReplyBuilder(header, body, check_completion(client, body, caller, header.id), client.tokenizer)


class _Offsets:
    """Positions of new tokens in the text of one choice.

    Args:
        tokenizer: without one every token has the same position.
        start: characters of the choice before its first new token.
    """

    def __init__(self, tokenizer: Tokenizer | None, start: int, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._length = start
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)

    def next(self, token: int) -> int:
        """Return the position of the next token."""
        piece = "" if self._detokenizer is None else self._detokenizer.push([token]).text
        offset = self._length + _overdue(self._tokenizer, token, piece)
        self._length += len(piece)
        return offset


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
        self._offsets: dict[tuple[int, int], _Offsets] = {}  # of the choices that have begun
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
            self._offsets[key] = _Offsets(tokenizer, len(prefix), skip_special_tokens=skip)
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


def text_offsets(tokenizer: Tokenizer | None, text: str, tokens: Sequence[int]) -> list[int]:
    """Return where each token of an echoed prompt begins in its text; all 0 without a tokenizer.

    The text is the client's, or was decoded without special tokens. So not every token is in it, nor is the space that
    some tokenizers put before a first word. White space that a token swallows belongs to no token.
    """
    if tokenizer is None:
        return [0] * len(tokens)
    offsets: list[int] = []
    characters = Detokenizer(tokenizer, skip_special_tokens=False)
    place, first = 0, True
    added = _added_before(tokenizer, text, tokens)
    for token in tokens[added:]:
        special = tokenizer.is_special(token)
        piece = characters.push([token]).text
        start, found = place, piece
        if not text.startswith(found, start):
            swallowed = text[place : place + MAX_SWALLOWED]
            start, found = place + len(swallowed) - len(swallowed.lstrip()), piece.lstrip()
        if not text.startswith(found, start) or not found:
            # It is missing, or the text has a different spelling, probably of the same length.
            start, found = place, "" if special or (first and not piece.strip()) else piece
        offsets.append(start + _overdue(tokenizer, token, found))
        place, first = min(start + len(found), len(text)), special
    return [0] * added + offsets


def _added_before(tokenizer: Tokenizer, text: str, tokens: Sequence[int]) -> int:
    """Return how many special tokens the tokenizer put before a text that spells out special tokens itself."""
    spelled = [_characters_of(tokenizer, token) for token in takewhile(tokenizer.is_special, tokens)]
    most = min(len(spelled) - 1, MAX_ADDED)
    return next((added for added in range(most + 1) if text.startswith("".join(spelled[added:]))), 0)


def _overdue(tokenizer: Tokenizer | None, token: int, piece: str) -> int:
    """Return how many characters of a token's text replace an incomplete character of its predecessors."""
    if tokenizer is None or not piece.startswith("\ufffd"):
        return 0
    return max(0, len(piece) - len(_characters_of(tokenizer, token)))


def _characters_of(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token alone."""
    return Detokenizer(tokenizer, skip_special_tokens=False).push([token]).text
