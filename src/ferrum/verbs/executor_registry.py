"""Protocols of executors, with defaults for those written by hand, and `ExecutorRegistry`: executors by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, runtime_checkable

from ferrum.contract.model_info import ModelInfo
from ferrum.contract.step_executor import ExecutorState
from ferrum.core.errors import ExecutorInUse, FerrumError, ModelNotFound, RequestError, Unsupported
from ferrum.core.registry import Registry
from ferrum.core.snapshots import CacheMetricsSnapshot, LoraMetricsSnapshot
from ferrum.core.values import kept_length, shown
from ferrum.verbs.executor_reports import ExecutorCapabilities, ExecutorMetrics, ExecutorStatus
from ferrum.verbs.io_types import (
    DecodeInput,
    DecodeOutput,
    KvCacheHandle,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
)

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
    """An executor that verifies drafts; see `ModelExecutor`."""

    @abstractmethod
    def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Process N + 1 tokens of one sequence in one pass."""

    @abstractmethod
    def speculative_decode(
        self, inputs: DecodeInput, draft_tokens: Any, acceptance_threshold: float | None = None
    ) -> SpeculativeDecodeOutput:
        """Process a token and the draft tokens after it, and keep the accepted ones."""


class ExecutorRegistry:
    """The executors of a process, by name. It does not own them: after `remove` the caller shuts the executor down."""

    def __init__(self) -> None:
        self._executors: Registry[AnyExecutor] = Registry("executor", missing=_missing)

    def register(self, name: str, executor: AnyExecutor) -> None:
        """Add an executor.

        Raises:
            ConfigError: the name is taken.
            RequestError: `executor` lacks verbs; the message names them.
        """
        missing = [verb for verb in VERBS if isinstance(executor, type) or not hasattr(executor, verb)]
        if missing:
            reason = f"must have the verbs of an executor: {shown(executor)} lacks {', '.join(missing)}"
            raise RequestError(f"{reason} (inherit AnyExecutor for defaults)", param="executor")
        self._executors.add(name, executor)

    def get(self, name: str) -> AnyExecutor:
        """Return the executor of that name. Raises ModelNotFound, which lists the known names."""
        return self._executors.get(name)

    def remove(self, name: str) -> AnyExecutor:
        """Remove and return an executor.

        Raises:
            ModelNotFound: the name is unknown.
            ExecutorInUse: an engine holds its lease, or a step is running.
        """
        executor = self.get(name)
        if getattr(executor, "in_use", executor.status().state is ExecutorState.BUSY):
            raise ExecutorInUse(f"the executor {name!r} is in use: shut its engine down first")
        return self._executors.pop(name)

    def list_names(self) -> list[str]:
        """Return all names, sorted."""
        return list(self._executors)

    def get_metrics(self, name: str) -> ExecutorMetrics:
        """Return the counts and speeds of one executor. Raises ModelNotFound."""
        return self.get(name).metrics()


def _missing(what: str, reason: str) -> FerrumError:
    return ModelNotFound(f"{what} is not registered: {reason}", param="name")
