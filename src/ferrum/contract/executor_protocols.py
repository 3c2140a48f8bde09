"""Protocols of executors: what registries, and clients of batches and of drafts, need."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, runtime_checkable

from ferrum.contract.capabilities import ExecutorCapabilities
from ferrum.contract.executor_state import ExecutorMetrics, ExecutorStatus
from ferrum.contract.io_types import (
    DecodeInput,
    DecodeOutput,
    KvCacheHandle,
    ModelInfo,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
)
from ferrum.core.errors import Unsupported
from ferrum.core.snapshots import CacheMetricsSnapshot, LoraMetricsSnapshot
from ferrum.core.values import kept_length

VERBS: Final = ("info", "prefill", "decode", "release_cache", "capabilities", "status", "metrics", "shutdown")
"""What `ExecutorRegistry` needs of an executor."""


@runtime_checkable
class AnyExecutor(Protocol):
    """An object with the verbs of an executor: a `ModelExecutor`, an `AsyncModelExecutor`, or one written by hand.

    An executor by hand inherits this class and implements `info`, `prefill`, `decode`, `capabilities` and `status`. The
    other verbs have defaults: one call after another, Unsupported, or nothing to do.
    """

    @property
    @abstractmethod
    def info(self) -> ModelInfo:
        """The model."""

    @abstractmethod
    def prefill(self, inputs: Any) -> Any:
        """Process a prompt or its next chunk."""

    def batch_prefill(self, inputs: Any) -> Any:
        """Process several prompts or chunks; by default one after another."""
        return [self.prefill(each) for each in inputs]

    @abstractmethod
    def decode(self, inputs: Any) -> Any:
        """Process one more token."""

    def batch_decode(self, inputs: Any) -> Any:
        """Process one more token of each of several sequences; by default one after another."""
        return [self.decode(each) for each in inputs]

    def forward_verify(self, inputs: Any) -> Any:
        """Process several tokens of one sequence; by default one after another."""
        outputs: list[DecodeOutput] = []
        for each in inputs:
            outputs.append(self.decode(each.with_kv_cache(outputs[-1].kv_cache) if outputs else each))
        return outputs

    def unified_decode(self, batch: Any) -> Any:  # noqa: ARG002
        """Process any mixture of chunks, decodes and verifications. Raises Unsupported by default."""
        raise Unsupported("unified_decode", f"{type(self).__name__} does not implement it")

    def forward(self, input_ids: Any) -> Any:  # noqa: ARG002
        """Return the logits of all positions. Raises Unsupported by default."""
        raise Unsupported("forward", f"{type(self).__name__} does not implement it")

    def truncate_kv(self, handle: Any, new_len: int) -> Any:
        """Forget the tokens from position `new_len` on, and return a handle; by default only the handle changes."""
        if not isinstance(handle, KvCacheHandle):
            return handle
        return replace(handle, sequence_length=kept_length("new_len", new_len, handle.sequence_length))

    def release_cache(self, cache_id: Any) -> Any:  # noqa: ARG002
        """Free a sequence; by default there is nothing to free."""
        return None

    def kv_capacity(self) -> int | None:
        """Return the number of tokens that fit; by default None: there is no limit."""
        return None

    @abstractmethod
    def capabilities(self) -> ExecutorCapabilities:
        """Return what it can do."""

    @abstractmethod
    def status(self) -> ExecutorStatus:
        """Return its status now."""

    def metrics(self) -> ExecutorMetrics:
        """Return counts and speeds. Raises Unsupported by default."""
        raise Unsupported("metrics", f"{type(self).__name__} does not implement it")

    def cache_metrics_snapshot(self) -> CacheMetricsSnapshot | None:
        """Return the counters of the KV cache; by default None: it has none."""
        return None

    def lora_metrics_snapshot(self) -> LoraMetricsSnapshot | None:
        """Return the counters of adapters; by default None: it has none."""
        return None

    def warmup(self) -> Any:
        """Prepare for the first step; by default there is nothing to do."""
        return None

    def shutdown(self) -> Any:
        """End; by default there is nothing to do."""
        return None


@runtime_checkable
class BatchModelExecutor(Protocol):
    """An executor that serves several sequences in one pass; see `ModelExecutor`."""

    @abstractmethod
    def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        """Process several prompts in one pass."""

    @abstractmethod
    def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Process one more token of each of several sequences in one pass."""

    @abstractmethod
    def optimal_batch_size(self) -> int:
        """Return the batch size of the highest throughput."""

    @abstractmethod
    def supports_batch_size(self, size: int) -> bool:
        """Whether a step can hold this many sequences."""


@runtime_checkable
class SpeculativeExecutor(Protocol):
    """An executor that verifies drafts; see `NamedVerbs`."""

    @abstractmethod
    def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Process N + 1 tokens of one sequence in one pass."""

    @abstractmethod
    def speculative_decode(
        self, inputs: DecodeInput, draft_tokens: Any, acceptance_threshold: float | None = None
    ) -> SpeculativeDecodeOutput:
        """Process a token and the draft tokens after it, and keep the accepted ones."""
