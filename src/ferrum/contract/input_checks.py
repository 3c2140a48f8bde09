"""Checks of masks and positions of inputs against the stored tokens. Checks of handles are in `handles.py`."""

from __future__ import annotations

from ferrum.contract.io_types import DecodeInput, PrefillInput
from ferrum.core.errors import RequestError
from ferrum.core.span_checks import check_kind
from ferrum.core.values import listed


def as_prompt(value: object) -> PrefillInput:
    """Return a list or array of token ids as an input. Raises RequestError for anything else."""
    if not isinstance(listed(value), list | tuple):
        check_kind(value, PrefillInput, param="inputs")
    return PrefillInput(value)


def check_mask(inputs: PrefillInput, end: int) -> None:
    """Refuse an attention mask that hides a token. Raises RequestError.

    Args:
        inputs: the prompt or chunk.
        end: stored tokens after it.
    """
    count = inputs.sequence_length
    if inputs.attention_mask not in (None, ((1,) * count,), ((1,) * end,)):
        reason = f"must be all ones, [1, {count}] or [1, {end}]: remove the padding"
        raise RequestError(reason, param="attention_mask")


def check_positions(inputs: PrefillInput | DecodeInput, stored: range) -> None:
    """Refuse positions other than where the tokens will be stored. Raises RequestError."""
    if inputs.position_ids not in (None, (tuple(stored),)):
        reason = f"must be {stored.start} to {stored.stop - 1}, after the stored tokens"
        raise RequestError(reason, param="position_ids")
