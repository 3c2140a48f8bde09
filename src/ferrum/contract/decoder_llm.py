"""What a model offers below the executor: sequences by name, tokens in, logits out. Nothing about how it is built.

An exotic model implements `DecoderOnlyLLM` by hand. One that runs steps of spans inherits `StepwiseLLM` and is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ferrum.contract.io_types import LogitsPolicy
from ferrum.contract.sequences import SequenceStore, Undo
from ferrum.contract.verbs import WISH
from ferrum.core.errors import Unsupported
from ferrum.core.json_record import JsonRecord
from ferrum.core.step import Array, Span, StepBatch, StepOutput
from ferrum.core.values import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmRuntimeConfig(JsonRecord):
    """All that is needed to run a model; deliberately nothing of its architecture.

    Attributes:
        head_dim: as the checkpoint says, which need not be hidden_size / heads.
        max_seq_len: most tokens of a sequence.
    """

    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_seq_len: int


@dataclass(frozen=True, slots=True)
class UnifiedItem:
    """One sequence's share of a forward pass: `tokens` from position `pos` on, which must be its stored length."""

    cache_id: str
    tokens: tuple[int, ...]
    pos: int
    policy: LogitsPolicy = LogitsPolicy.LAST


class DecoderOnlyLLM(ABC):
    """A decoder-only language model with a cache, keyed by names of the caller's choice.

    Every verb is all-or-none: an error leaves every sequence as it was. Logits are float32.
    """

    @property
    @abstractmethod
    def config(self) -> LlmRuntimeConfig:
        """What is needed to run it."""

    @abstractmethod
    def length(self, cache_id: str) -> int:
        """Stored tokens of the sequence; 0 for one that does not exist."""

    @abstractmethod
    def unified_forward(self, items: Sequence[UnifiedItem]) -> list[Array | None]:
        """Any mixture of chunks, decodes and verifications in one pass; an unknown name begins a sequence.

        Returns:
            Per item [1, V] or [tokens, V] as its policy asks; None without a wish.

        Raises:
            InvalidToken, ContextOverflow, KvExhausted, StepError: what went wrong with an item.
            RequestError: a position that is not the stored length, or a sequence that appears twice.
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
    def kv_capacity(self) -> int:
        """Tokens that fit in the cache."""

    def set_lora_adapter(self, cache_id: str, name: str) -> None:
        """Use an adapter for a sequence. Raises Unsupported for a model that takes none."""
        raise Unsupported("adapters", f"{shown(name)} for {shown(cache_id)}: no adapter can be loaded yet")

    def prefill(self, cache_id: str, tokens: Sequence[int]) -> Array:
        """Process a prompt, or its next chunk: logits [V] after the last token. Raises as `unified_forward`."""
        (logits,) = self.unified_forward([UnifiedItem(cache_id, tuple(tokens), self.length(cache_id))])
        assert logits is not None, "the item wanted them"
        return logits[0]

    def decode(self, cache_id: str, token: int, pos: int) -> Array:
        """Process one more token at position `pos`: logits [V]. Raises as `unified_forward`."""
        return self.decode_batch([(cache_id, token, pos)])[0]

    def decode_batch(self, steps: Sequence[tuple[str, int, int]]) -> list[Array]:
        """One more token for each (name, token, position), in one pass: logits [V] each, in the same order.

        Raises: as `unified_forward`.
        """
        if not steps:
            return []
        outputs = self.unified_forward([UnifiedItem(cache_id, (token,), pos) for cache_id, token, pos in steps])
        return [logits[0] for logits in outputs if logits is not None]

    def forward_verify(self, cache_id: str, tokens: Sequence[int]) -> Array:
        """Several tokens of one sequence: logits [N, V], a row after each. Raises as `unified_forward`."""
        item = UnifiedItem(cache_id, tuple(tokens), self.length(cache_id), LogitsPolicy.ALL)
        (logits,) = self.unified_forward([item])
        return logits


class StepwiseLLM(DecoderOnlyLLM):
    """The verbs for a model that runs steps of spans over a sequence store."""

    pages: SequenceStore

    @abstractmethod
    def run(self, batch: StepBatch) -> StepOutput:
        """Run a step: one result or error per span; a failed span leaves its sequence as it was."""

    def length(self, cache_id: str) -> int:
        """See `DecoderOnlyLLM`."""
        return self.pages.length(cache_id) if cache_id in self.pages else 0

    def unified_forward(self, items: Sequence[UnifiedItem]) -> list[Array | None]:
        """See `DecoderOnlyLLM`."""
        if not items:
            return []
        spans = [Span(item.cache_id, item.pos, item.tokens, *WISH[item.policy]) for item in items]
        return [result.logits for result in Undo(self.pages).all_or_none(spans, self.run)]

    def truncate_kv(self, cache_id: str, length: int) -> None:
        """See `DecoderOnlyLLM`."""
        self.pages.truncate(cache_id, length)

    def fork(self, source: str, target: str) -> None:
        """See `DecoderOnlyLLM`."""
        self.pages.fork(source, target)

    def release(self, cache_id: str) -> None:
        """See `DecoderOnlyLLM`."""
        self.pages.release(cache_id)

    def reset(self) -> None:
        """See `DecoderOnlyLLM`."""
        self.pages.reset()

    def kv_capacity(self) -> int:
        """See `DecoderOnlyLLM`."""
        return self.pages.capacity_tokens
