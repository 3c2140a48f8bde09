"""Protocols of executors: what clients of batches and of drafts need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ferrum.contract.io_types import DecodeInput, DecodeOutput, PrefillInput, PrefillOutput, SpeculativeDecodeOutput


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
