"""Protocols of executors: what registries, and clients of batches and of drafts, need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

from ferrum.contract.capabilities import ExecutorCapabilities
from ferrum.contract.executor_state import ExecutorMetrics, ExecutorStatus
from ferrum.contract.io_types import (
    DecodeInput,
    DecodeOutput,
    ModelInfo,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
)

VERBS: Final = ("info", "prefill", "decode", "release_cache", "capabilities", "status", "metrics", "shutdown")
"""What `AnyExecutor` has."""


class AnyExecutor(Protocol):
    """An object with the verbs of an executor: a `ModelExecutor`, an `AsyncModelExecutor`, or one written by hand."""

    @property
    def info(self) -> ModelInfo:
        """The model."""

    def prefill(self, inputs: Any) -> Any:
        """Process a prompt or its next chunk."""

    def decode(self, inputs: Any) -> Any:
        """Process one more token."""

    def release_cache(self, cache_id: Any) -> Any:
        """Free a sequence."""

    def capabilities(self) -> ExecutorCapabilities:
        """Return what it can do."""

    def status(self) -> ExecutorStatus:
        """Return its status now."""

    def metrics(self) -> ExecutorMetrics:
        """Return counts and speeds."""

    def shutdown(self) -> Any:
        """End."""


@runtime_checkable
class BatchModelExecutor(Protocol):
    """An executor that serves several sequences in one pass; see `ModelExecutor`."""

    def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        """Process several prompts in one pass."""

    def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Process one more token of each of several sequences in one pass."""

    def optimal_batch_size(self) -> int:
        """Return the batch size of the highest throughput."""

    def supports_batch_size(self, size: int) -> bool:
        """Whether a step can hold this many sequences."""


@runtime_checkable
class SpeculativeExecutor(Protocol):
    """An executor that verifies drafts; see `NamedVerbs`."""

    def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Process N + 1 tokens of one sequence in one pass."""

    def speculative_decode(
        self, inputs: DecodeInput, draft_tokens: Any, acceptance_threshold: float | None = None
    ) -> SpeculativeDecodeOutput:
        """Process a token and the draft tokens after it, and keep the accepted ones."""
