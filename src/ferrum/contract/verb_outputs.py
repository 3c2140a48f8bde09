"""From the result of a span to the output of a verb. The other direction is in `verbs.py`."""

from __future__ import annotations

from ferrum.contract.io_types import DecodeInput, DecodeOutput, KvCacheHandle, PrefillOutput
from ferrum.core.step import Array, SpanResult


def prefill_output(result: SpanResult, handle: KvCacheHandle) -> PrefillOutput:
    """Return the output of a prompt or chunk."""
    assert result.logits is not None, "the span wanted them"
    hidden = None if result.hidden is None else result.hidden[None]
    return PrefillOutput(result.logits[None], handle, hidden, result.attention_weights)


def decode_output(result: SpanResult, handle: KvCacheHandle) -> DecodeOutput:
    """Return the output of one token."""
    return DecodeOutput(result.logits, handle, result.hidden, result.attention_weights)


def verified_output(result: SpanResult, handle: KvCacheHandle, row: int, inputs: DecodeInput) -> DecodeOutput:
    """Return the output of row `row` of a verification, as if its token had been decoded alone."""
    weights, length = None, handle.sequence_length
    if inputs.return_attention_weights and result.attention_weights is not None:
        weights = tuple(layer[:, row : row + 1, :length] for layer in result.attention_weights)
    hidden = row_of(result.hidden, row) if inputs.return_hidden_states else None
    return DecodeOutput(row_of(result.logits, row), handle, hidden, weights)


def row_of(array: Array, row: int) -> Array:
    """Return row `row` of [rows, N] as [1, N]."""
    return array[row : row + 1]
