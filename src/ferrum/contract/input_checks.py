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


def real_tokens(inputs: PrefillInput, stored: int) -> slice:
    """Return where the tokens are that the attention mask selects: padding at either end is left out.

    Args:
        inputs: the prompt or chunk, of one sequence.
        stored: stored tokens before it.

    Raises:
        RequestError: a mask of another shape, one that hides a token between others, or one that selects none.
    """
    count = inputs.sequence_length
    if inputs.attention_mask is None:
        return slice(0, count)
    row, *others = inputs.attention_mask
    earlier, own = row[:-count], row[-count:]
    if others or len(own) < count or not {*row} <= {0, 1} or (earlier and (not stored or sum(earlier) != stored)):
        reason = f"must be zeros and ones, [1, {count}]"
        reason += f", or with {stored} ones for the stored tokens before them" if stored else ""
        raise RequestError(reason, param="attention_mask")
    if 1 not in own:
        raise RequestError("selects no token: at least one must be 1", param="attention_mask")
    first, last = own.index(1), count - own[::-1].index(1)
    if 0 in own[first:last]:
        hidden = first + own[first:last].index(0)
        reason = f"hides the token at position {hidden}: zeros may only pad the beginning or the end"
        raise RequestError(reason, param="attention_mask")
    return slice(first, last)


def check_positions(inputs: PrefillInput | DecodeInput, stored: range, real: slice = slice(None)) -> None:
    """Refuse positions other than where the tokens will be stored. Raises RequestError.

    Args:
        inputs: the tokens.
        stored: the positions of those that are no padding.
        real: where these are in the inputs.
    """
    if inputs.position_ids is None:
        return
    row, *others = inputs.position_ids
    if others or len(row) != inputs.sequence_length or row[real] != tuple(stored):
        reason = f"must be {stored.start} to {stored.stop - 1}, after the stored tokens"
        raise RequestError(reason, param="position_ids")
