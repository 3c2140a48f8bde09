"""Sessions: texts that grow, fork and are truncated, while the prefix cache avoids computing anything twice.

A session holds tokens only, no KV pages. If pages were evicted, the engine recomputes them, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Self

from ferrum.client.input_processor import Prompt, check_params, token_ids
from ferrum.client.request_output import CompletionOutput, RequestOutput
from ferrum.core.errors import RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.values import kept_length
from ferrum.text.tokenizer import Tokenizer, encode_middle

Complete = Callable[[tuple[int, ...], SamplingParams | None], RequestOutput]
"""Completes a prompt of token ids."""


class GrowingText:
    """The tokens of a session, without an engine.

    Args:
        tokenizer: None accepts token ids only.
        tokens: initial tokens.
    """

    def __init__(self, tokenizer: Tokenizer | None, tokens: tuple[int, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens, appended and generated."""
        return self._tokens

    @property
    def text(self) -> str:
        """The decoded tokens. Raises RequestError without a tokenizer."""
        if self._tokenizer is None:
            raise RequestError("the model has no tokenizer: use token_ids", param="text")
        return self._tokenizer.decode(self._tokens, skip_special_tokens=False)

    def append(self, more: Prompt) -> Self:
        """Append a text or token ids. Only the first text of a session gets special tokens.

        Later texts do not get the leading space that some tokenizers add.

        Raises:
            RequestError: text without a tokenizer.
            InvalidToken: a value that is no token id. The next `generate` checks range and length.
        """
        if not isinstance(more, str):
            self._tokens += token_ids(more)
        elif self._tokenizer is None:
            raise RequestError("the model has no tokenizer: pass token ids", param="prompt")
        elif self._tokens:
            self._tokens += tuple(encode_middle(self._tokenizer, more))
        else:
            self._tokens = tuple(self._tokenizer.encode(more))
        return self

    def fork(self) -> Self:
        """Return an independent copy."""
        return copy(self)

    def truncate(self, length: int) -> Self:
        """Keep the first `length` tokens. Raises RequestError if there are fewer."""
        self._tokens = self._tokens[: kept_length("length", length, len(self._tokens))]
        return self


class Session(GrowingText):
    """A growing text that an engine continues. Not thread-safe, but each fork may have its own thread.

    Args:
        complete: runs a request through the engine's queue.
        tokenizer, tokens: see `GrowingText`.
    """

    def __init__(self, complete: Complete, tokenizer: Tokenizer | None, tokens: tuple[int, ...] = ()) -> None:
        super().__init__(tokenizer, tokens)
        self._complete = complete

    def generate(self, sampling_params: SamplingParams | None = None) -> CompletionOutput:
        """Generate a continuation and append it. The whole text is the prompt of the request.

        Args:
            sampling_params: with one choice (fork for several); None: the model's recommended parameters.

        Raises:
            FerrumError: as `LLM.generate`, and also a failure after the start. The session is unchanged.
            EngineDead: the engine was closed meanwhile. The session is unchanged.
        """
        if sampling_params is not None:
            check_params(sampling_params)
            if sampling_params.n != 1:
                raise RequestError("must be 1 in a session: fork it for several", param="n")
        (choice,) = self._complete(self._tokens, sampling_params).outputs
        choice.check_whole()
        self._tokens += tuple(choice.token_ids)
        return choice
