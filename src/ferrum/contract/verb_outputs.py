"""From the result of a span to the output of a verb. The other direction is in `verbs.py`."""

from __future__ import annotations

from collections.abc import Callable

from ferrum.contract.io_types import LAYERS, DecodeInput, DecodeOutput, KvCacheHandle, PrefillOutput
from ferrum.core.step import Array, SpanResult


def prefill_output(result: SpanResult, handle: KvCacheHandle) -> PrefillOutput:
    """Return the output of a prompt or chunk."""
    assert result.logits is not None, "the span wanted them"
    hidden = None if result.hidden is None else _by_layer(result.hidden, lambda states: states[None])
    return PrefillOutput(result.logits[None], handle, hidden, result.attention_weights)


def decode_output(result: SpanResult, handle: KvCacheHandle) -> DecodeOutput:
    """Return the output of one token."""
    hidden = None if result.hidden is None else _by_layer(result.hidden, lambda states: states)
    return DecodeOutput(result.logits, handle, hidden, result.attention_weights)


def verified_output(result: SpanResult, handle: KvCacheHandle, row: int, inputs: DecodeInput) -> DecodeOutput:
    """Return the output of row `row` of a verification, as if its token had been decoded alone."""
    weights, length = None, handle.sequence_length
    if inputs.return_attention_weights and result.attention_weights is not None:
        weights = tuple(layer[:, row : row + 1, :length] for layer in result.attention_weights)
    hidden = None
    if (states := result.hidden) is not None and inputs.return_hidden_states:
        if states.ndim == 3 and inputs.return_hidden_states != LAYERS:
            states = states[-1]  # another input of this verification asked for all layers
        hidden = _by_layer(states, lambda layer: row_of(layer, row))
    return DecodeOutput(row_of(result.logits, row), handle, hidden, weights)


def _by_layer(states: Array, change: Callable[[Array], Array]) -> Array | tuple[Array, ...]:
    """Return changed states: of [rows, H] one array, of [L + 1, rows, H] a tuple."""
    return tuple(map(change, states)) if states.ndim == 3 else change(states)


def row_of(array: Array, row: int) -> Array:
    """Return row `row` of [rows, N] as [1, N]."""
    return array[row : row + 1]
