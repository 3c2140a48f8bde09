"""`AdaptedLLM`: a model of four methods as a `DecoderOnlyLLM`, by computing again what it cannot share or undo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from ferrum.contract.decoder_llm import DecoderOnlyLLM, LlmRuntimeConfig, UnifiedItem
from ferrum.contract.io_types import LogitsPolicy
from ferrum.core.errors import RequestError, UnknownSequence
from ferrum.core.span_checks import check_kind, check_tokens
from ferrum.core.values import kept_length, shown, whole
from ferrum.kernels.operations import F32

METHODS: Final = ("config", "prefill", "decode", "release")


class MinimalLLM(Protocol):
    """The least that a model must have. Logits are any kind of array of float32 numbers, [V]."""

    @property
    def config(self) -> LlmRuntimeConfig:
        """The sizes needed to run it."""

    def prefill(self, cache_id: str, tokens: Sequence[int]) -> Any:
        """Begin the sequence with these tokens, and return the logits after the last one."""

    def decode(self, cache_id: str, token: int, pos: int) -> Any:
        """Process one more token at position `pos`, and return the logits after it."""

    def release(self, cache_id: str) -> None:
        """Forget the sequence; an unknown one is no error."""


class AdaptedLLM(DecoderOnlyLLM):
    """A model of four methods with defaults for the others.

    It keeps the tokens of each sequence. A chunk and a verification decode token by token; a fork, a truncation and an
    error process the tokens again. A model that can do better implements `DecoderOnlyLLM`.

    Args:
        model: the model; it may also have `kv_capacity()`. Only this adapter may change its sequences from now on.

    Raises:
        RequestError: the model lacks one of the four, or its `config` is no `LlmRuntimeConfig`.
    """

    def __init__(self, model: MinimalLLM) -> None:
        if missing := [name for name in METHODS if isinstance(model, type) or not hasattr(model, name)]:
            reason = f"must be a DecoderOnlyLLM, or an object with {', '.join(METHODS)}: {shown(model)} lacks "
            raise RequestError(reason + ", ".join(missing), param="model")
        check_kind(model.config, LlmRuntimeConfig, param="config")
        self.model = model
        self._tokens: dict[str, tuple[int, ...]] = {}

    @property
    def config(self) -> LlmRuntimeConfig:
        return self.model.config

    def length(self, cache_id: str) -> int:
        return len(self._tokens.get(cache_id, ()))

    def unified_forward(self, items: Sequence[UnifiedItem]) -> list[F32 | None]:
        if len({item.cache_id for item in items}) < len(items):
            raise RequestError("a sequence appears twice", param="cache_id")
        for item in items:
            self._check(item)
        before = {item.cache_id: self._tokens.get(item.cache_id) for item in items}
        try:
            return [self._run(item) for item in items]
        except BaseException:
            for cache_id, tokens in before.items():
                self._set(cache_id, tokens)
            raise

    def _check(self, item: UnifiedItem) -> None:
        if item.cache_id not in self._tokens and item.pos:
            raise UnknownSequence(f"unknown sequence {shown(item.cache_id)}", param="cache_id")
        if whole("start", item.pos) != (stored := self.length(item.cache_id)):
            raise RequestError(f"must be the stored length {stored}, not {item.pos}", param="start")
        size, longest = self.config.vocab_size, self.config.max_seq_len
        check_tokens(item.tokens, stored, vocab_size=size, max_sequence_length=longest)

    def _run(self, item: UnifiedItem) -> F32 | None:
        cache_id, stored, every = item.cache_id, self.length(item.cache_id), item.policy is LogitsPolicy.ALL
        rows: list[Any] = []
        begun = 0 if stored else (1 if every else len(item.tokens))
        tokens = [int(token) for token in item.tokens]
        if begun:
            rows.append(self.model.prefill(cache_id, tokens[:begun]))
        for index, token in enumerate(tokens[begun:], begun):
            rows.append(self.model.decode(cache_id, token, stored + index))
        self._tokens[cache_id] = (*self._tokens.get(cache_id, ()), *tokens)
        if item.policy is LogitsPolicy.NONE:
            return None
        return np.stack([np.asarray(row, np.float32).reshape(-1) for row in (rows if every else rows[-1:])])

    def _set(self, cache_id: str, tokens: tuple[int, ...] | None) -> None:
        """Begin a sequence again with these tokens; None forgets it."""
        self.release(cache_id)
        if tokens:
            self.model.prefill(cache_id, list(tokens))
        if tokens is not None:
            self._tokens[cache_id] = tokens

    def _known(self, cache_id: str) -> tuple[int, ...]:
        if cache_id not in self._tokens:
            raise UnknownSequence(f"unknown sequence {shown(cache_id)}", param="cache_id")
        return self._tokens[cache_id]

    def truncate_kv(self, cache_id: str, length: int) -> None:
        tokens = self._known(cache_id)
        if (kept := kept_length("length", length, len(tokens))) < len(tokens):
            self._set(cache_id, tokens[:kept])

    def fork(self, source: str, target: str) -> None:
        tokens = self._known(source)
        if target in self._tokens:
            raise RequestError(f"{shown(target)} exists", param="cache_id")
        self._set(target, tokens)

    def release(self, cache_id: str) -> None:
        self.model.release(cache_id)
        self._tokens.pop(cache_id, None)

    def reset(self) -> None:
        for cache_id in tuple(self._tokens):
            self.release(cache_id)

    def kv_capacity(self) -> int | None:
        own = getattr(self.model, "kv_capacity", None)
        return None if own is None else own()
