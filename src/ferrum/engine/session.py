"""A session: a text that grows, branches and goes back, without computing any of it twice.

A session is its tokens. Their keys and values are found in the engine's prefix cache when the session generates, so a
fork or an edit costs a list, holds no pages while it rests, and can be thrown away. What goes on takes a copy of its
last page and computes what is new; or more, where pages had to make room. The bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Self

from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.values import kept_length
from ferrum.engine.input_processor import Prompt, check_params, token_ids
from ferrum.engine.request_output import CompletionOutput, RequestOutput
from ferrum.text.tokenizer import Tokenizer, encode_middle

Complete = Callable[[tuple[int, ...], SamplingParams | None], RequestOutput]
"""Completes a prompt of token ids."""


class GrowingText:
    """The tokens of a session, whoever completes them.

    Args:
        tokenizer: None takes token ids alone.
        tokens: what it begins with.
    """

    def __init__(self, tokenizer: Tokenizer | None, tokens: tuple[int, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens, given and generated."""
        return self._tokens

    @property
    def text(self) -> str:
        """The text of all tokens. Raises RequestError without a tokenizer."""
        if self._tokenizer is None:
            raise RequestError("the model has no tokenizer; there are token ids", param="text")
        return self._tokenizer.decode(self._tokens, skip_special_tokens=False)

    def append(self, more: Prompt) -> Self:
        """Add a text, or token ids, at the end. Only a text that begins a session gets special tokens of its own.

        What goes on gets no space that nobody wrote, which some tokenizers put before a text.

        Raises:
            RequestError: text without a tokenizer; InvalidToken for what is no id. Ids and length are checked by the
                next `generate`.
        """
        if not isinstance(more, str):
            self._tokens += token_ids(more)
        elif self._tokenizer is None:
            raise RequestError("the model has no tokenizer; give token ids", param="prompt")
        elif self._tokens:
            self._tokens += tuple(encode_middle(self._tokenizer, more))
        else:
            self._tokens = tuple(self._tokenizer.encode(more))
        return self

    def fork(self) -> Self:
        """Another one that goes on from here by itself."""
        return copy(self)

    def truncate(self, length: int) -> Self:
        """Go back to the first `length` tokens. Raises RequestError where there are not so many."""
        self._tokens = self._tokens[: kept_length("length", length, len(self._tokens))]
        return self


class Session(GrowingText):
    """A growing text that an engine continues. Not safe to use from several threads; forks are, each from its own.

    Args:
        complete: runs a request through the engine's queue.
        tokenizer, tokens: see `GrowingText`.
    """

    def __init__(self, complete: Complete, tokenizer: Tokenizer | None, tokens: tuple[int, ...] = ()) -> None:
        super().__init__(tokenizer, tokens)
        self._complete = complete

    def generate(self, sampling_params: SamplingParams | None = None) -> CompletionOutput:
        """Continue the text, and add what was generated to it: the tokens of a request with the whole as its prompt.

        Args:
            sampling_params: one choice (for several, fork); None: the model's recommended ones.

        Raises:
            FerrumError: as `LLM.generate`; here a failure after the start is raised too, and the session is as before.
            EngineDead: the engine is closed meanwhile; likewise.
        """
        if sampling_params is not None:
            check_params(sampling_params)
            if sampling_params.n != 1:
                raise RequestError("must be 1 in a session; fork it for several", param="n")
        (choice,) = self._complete(self._tokens, sampling_params).outputs
        choice.check_whole()
        self._tokens += tuple(choice.token_ids)
        return choice
