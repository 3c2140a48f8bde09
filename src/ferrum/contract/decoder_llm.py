"""`DecoderOnlyLLM`: a model below the executor, with sequences by name, tokens in and logits out.

A model with its own cache implements `DecoderOnlyLLM`. A model that runs steps of spans inherits `StepwiseLLM`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ferrum.contract.integer_lists import token_row
from ferrum.contract.sequences import SequenceStore, Undo, with_adapters
from ferrum.core.errors import Unsupported
from ferrum.core.json_record import JsonRecord
from ferrum.core.step import Array, Rows, Span, StepBatch, StepOutput, Want
from ferrum.core.values import shown, whole


class LogitsPolicy(StrEnum):
    """The rows whose logits an item returns."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


SPAN_WANTS: Final = {
    LogitsPolicy.NONE: (Want.NONE, Rows.LAST),
    LogitsPolicy.LAST: (Want.LOGITS, Rows.LAST),
    LogitsPolicy.ALL: (Want.LOGITS, Rows.ALL),
}
"""A logits policy as a span's `want` and `rows`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmRuntimeConfig(JsonRecord):
    """The sizes needed to run a model, without its architecture.

    Attributes:
        hidden_size: numbers of a token's hidden state.
        num_layers: number of layers.
        num_kv_heads: heads of keys and values.
        head_dim: the checkpoint's, which may differ from hidden_size / heads.
        vocab_size: upper limit of token ids.
        max_seq_len: maximum tokens of a sequence.

    Raises:
        RequestError: no integer, or less than 1 (heads and their size: 0, for a model without attention).
    """

    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_seq_len: int

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            whole(name, value, least=0 if name in ("num_kv_heads", "head_dim") else 1)


@dataclass(frozen=True, slots=True)
class UnifiedItem:
    """One sequence's part of a forward pass.

    Attributes:
        cache_id: the sequence; an unknown one begins.
        tokens: the tokens to process.
        pos: the position of the first, which must be the stored length.
        policy: the rows whose logits to return.
    """

    cache_id: str
    tokens: tuple[int, ...]
    pos: int
    policy: LogitsPolicy = LogitsPolicy.LAST


class DecoderOnlyLLM(ABC):
    """A decoder-only language model with a cache, keyed by names that the caller chooses.

    Every verb is all-or-none: an error leaves every sequence as it was. Logits are float32.
    """

    @property
    @abstractmethod
    def config(self) -> LlmRuntimeConfig:
        """The sizes needed to run it."""

    @abstractmethod
    def length(self, cache_id: str) -> int:
        """Return the stored tokens of the sequence; 0 for an unknown one."""

    @abstractmethod
    def unified_forward(self, items: Sequence[UnifiedItem]) -> list[Array | None]:
        """Process any mixture of chunks, decodes and verifications in one pass; an unknown name begins a sequence.

        Returns:
            Per item [1, V] or [tokens, V] as its policy asks; None for policy NONE.

        Raises:
            InvalidToken, ContextOverflow, KvExhausted, StepError: an item failed.
            RequestError: a position other than the stored length, or a sequence that appears twice.
        """

    @abstractmethod
    def truncate_kv(self, cache_id: str, length: int) -> None:
        """Forget the tokens from position `length` on. Raises UnknownSequence, RequestError, Unsupported."""

    @abstractmethod
    def fork(self, source: str, target: str) -> None:
        """Begin `target` as an independent continuation of `source`. Raises UnknownSequence, RequestError."""

    @abstractmethod
    def release(self, cache_id: str) -> None:
        """Forget the sequence; an unknown one is no error."""

    @abstractmethod
    def reset(self) -> None:
        """Forget every sequence."""

    @abstractmethod
    def kv_capacity(self) -> int | None:
        """Return the number of tokens that fit in the cache; None without a limit."""

    def set_lora_adapter(self, cache_id: str, name: str | None) -> None:
        """Use a loaded adapter for the next tokens of a sequence; None: the base model. A new name begins a sequence.

        Raises:
            Unsupported: the model takes none.
            RequestError: no adapter of that name is loaded, or the stored tokens do not allow it.
        """
        raise Unsupported("adapters", f"{shown(name)} for {shown(cache_id)}: {type(self).__name__} takes none")

    def prefill(self, cache_id: str, tokens: Sequence[int]) -> Array:
        """Process a prompt or its next chunk, and return logits [V] after the last token.

        Raises as `unified_forward`.
        """
        (logits,) = self.unified_forward([UnifiedItem(cache_id, token_row("tokens", tokens), self.length(cache_id))])
        assert logits is not None, "the policy is LAST"
        return logits[0]

    def decode(self, cache_id: str, token: int, pos: int) -> Array:
        """Process one more token at position `pos`, and return logits [V]. Raises as `unified_forward`."""
        return self.decode_batch([(cache_id, token, pos)])[0]

    def decode_batch(self, steps: Sequence[tuple[str, int, int]]) -> list[Array]:
        """Process one more token for each (name, token, position) in one pass, and return logits [V] in the same order.

        Raises: as `unified_forward`.
        """
        if not steps:
            return []
        outputs = self.unified_forward([UnifiedItem(cache_id, (token,), pos) for cache_id, token, pos in steps])
        return [logits[0] for logits in outputs if logits is not None]

    def forward_verify(self, cache_id: str, tokens: Sequence[int]) -> Array:
        """Process several tokens of one sequence, and return logits [N, V], a row after each.

        Raises as `unified_forward`.
        """
        item = UnifiedItem(cache_id, token_row("tokens", tokens), self.length(cache_id), LogitsPolicy.ALL)
        (logits,) = self.unified_forward([item])
        return logits


class StepwiseLLM(DecoderOnlyLLM):
    """The verbs of a model that runs steps of spans over a sequence store."""

    pages: SequenceStore

    @abstractmethod
    def run(self, batch: StepBatch) -> StepOutput:
        """Run a step: one result or error per span; a failed span leaves its sequence as it was."""

    def length(self, cache_id: str) -> int:
        return self.pages.length(cache_id) if cache_id in self.pages else 0

    def unified_forward(self, items: Sequence[UnifiedItem]) -> list[Array | None]:
        if not items:
            return []
        spans = [Span(item.cache_id, item.pos, item.tokens, *SPAN_WANTS[item.policy]) for item in items]
        spans = [with_adapters(span, self.pages) for span in spans]
        return [result.logits for result in Undo(self.pages).all_or_none(spans, self.run)]

    def truncate_kv(self, cache_id: str, length: int) -> None:
        self.pages.truncate(cache_id, length)

    def fork(self, source: str, target: str) -> None:
        self.pages.fork(source, target)

    def release(self, cache_id: str) -> None:
        self.pages.release(cache_id)

    def reset(self) -> None:
        self.pages.reset()

    def kv_capacity(self) -> int | None:
        return self.pages.capacity_tokens
