"""Validation of a span before it runs, whichever verb or client it came from.

Validation of single values is in `core/values.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import isfinite
from operator import lt
from typing import Any, TypeVar, cast

from ferrum.core.errors import (
    ContextOverflow,
    FerrumError,
    InvalidToken,
    RequestError,
    UnknownSequence,
)
from ferrum.core.step import (
    NO_EXTRAS,
    AdapterUse,
    Grid,
    Inputs,
    PendingMasks,
    Rows,
    Sampling,
    Score,
    Span,
    SpanExtras,
    Want,
)
from ferrum.core.values import integer, listed, shown

Input = TypeVar("Input")


def check_kind(value: object, kind: type, *, param: str) -> None:
    """Refuse a value of another type. Raises RequestError."""
    if not isinstance(value, kind):
        raise RequestError(f"must be {kind.__name__}, not {type(value).__name__}", param=param)


def is_one_of(value: Any, choices: Iterable[object]) -> bool:
    """Whether a value is one of several of the same kind: 64.0 is not 64, and an array is none of them."""
    return isinstance(value, Hashable) and value in tuple(choices) and str(value) in map(str, choices)


def inputs_of(kind: type[Input], value: Any, *, param: str) -> list[Input]:
    """Return a verb's inputs as a list.

    Raises:
        RequestError: not a list of inputs of that kind; `param` names the argument.
    """
    value = listed(value)
    check_kind(value, Iterable, param=param)
    inputs = list(value)
    for each in inputs:
        check_kind(each, kind, param=param)
    return inputs


def check_ids(tokens: Sequence[int], vocab_size: int, *, param: str) -> None:
    """Refuse token ids that are not integers in [0, vocab_size). Raises InvalidToken with the position."""
    if set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size:
        return  # the usual case takes a third of the time: event loops wait for it, and prompts are long
    for position, token in enumerate(tokens):
        if not _is_integer(token):
            raise InvalidToken(f"{shown(token)} at position {position} is not a token id", param=param)
        if not 0 <= token < vocab_size:
            raise InvalidToken(
                f"token id {shown(token)} at position {position} is not in [0, {vocab_size})", param=param
            )


def _is_integer(value: object) -> bool:
    try:
        integer(value)
    except TypeError:
        return False
    return True


def check_tokens(
    tokens: Sequence[int], start: int, *, vocab_size: int, max_sequence_length: int, param: str = "tokens"
) -> None:
    """Refuse unknown token ids, and tokens beyond the model's context.

    Args:
        tokens: ids.
        start: stored tokens before them.
        vocab_size: upper limit of ids.
        max_sequence_length: maximum tokens of a sequence.
        param: the caller's name for `tokens`.

    Raises:
        InvalidToken: an id is no integer in [0, vocab_size).
        ContextOverflow: the sequence would be too long.
    """
    check_ids(tokens, vocab_size, param=param)
    if start + len(tokens) > max_sequence_length:
        length = start + len(tokens)
        raise ContextOverflow(f"{length} tokens exceed the context of {max_sequence_length}", param=param)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def wrong_type(span: Span) -> RequestError | None:
    """Return an error if a field of a span has the wrong type, else None; constructors take any type."""
    if not isinstance(span.cache_id, str):
        return RequestError(f"must be a string, not {shown(span.cache_id)}", param="cache_id")
    if type(span.tokens) is not tuple and not _is_list(span.tokens):
        return RequestError(f"must be a list of token ids, not {type(span.tokens).__name__}", param="tokens")
    if type(span.start) is not int and not _is_integer(span.start):
        return RequestError(f"must be an integer, not {shown(span.start)}", param="start")
    if span.sampling is not None and not isinstance(span.sampling, Sampling):
        return RequestError(f"must be Sampling, not {type(span.sampling).__name__}", param="sampling")
    return None if span.extras is None else _wrong_extras(span.extras)


def _wrong_extras(extras: SpanExtras) -> RequestError | None:
    """Return an error if there are no extras in the record, or if a field has the wrong type, else None."""
    if not isinstance(extras, SpanExtras):
        return RequestError(f"must be SpanExtras or None, not {type(extras).__name__}", param="extras")
    if type(extras.drafts) is not int and not _is_integer(extras.drafts):
        return RequestError(f"must be an integer, not {shown(extras.drafts)}", param="drafts")
    if not isinstance(extras.masks, PendingMasks) and not _is_masks(extras.masks):
        return RequestError(f"must be a list of bytes or None, not {shown(extras.masks)}", param="masks")
    if extras.score is not None and not isinstance(extras.score, Score):
        return RequestError(f"must be Score, not {type(extras.score).__name__}", param="score")
    if extras.score is not None and not _is_list(extras.score.targets):
        return RequestError(f"must have a list of targets, not {shown(extras.score.targets)}", param="score")
    if not _is_list(extras.adapters) or not all(map(_is_adapter, extras.adapters)):
        return RequestError(
            "must be a list of AdapterUse with a finite scale and a start of at least 0", param="adapters"
        )
    if not _is_list(extras.inputs) or not all(map(_is_inputs, extras.inputs)):
        reason = (
            "must be a list of Inputs with one row per ascending position, all of them in the block if there is one"
        )
        return RequestError(reason, param="inputs")
    if not _is_list(extras.grids) or not _are_grids(extras.grids):
        return RequestError("must be a list of Grid with rows and columns, one after another", param="grids")
    if type(extras.attention_weights) is not bool:
        return RequestError(f"must be true or false, not {shown(extras.attention_weights)}", param="attention_weights")
    if extras == NO_EXTRAS:
        return RequestError("must be None for a span without any extra, not SpanExtras()", param="extras")
    return None


def _is_masks(value: object) -> bool:
    return _is_list(value) and all(mask is None or isinstance(mask, bytes) for mask in cast(Sequence[Any], value))


def _is_inputs(value: object) -> bool:
    """Return whether a value is Inputs with a row for each of its positions, which are ascending."""
    if not isinstance(value, Inputs):
        return False
    positions, digest, shape = cast(Any, (value.positions, value.digest, getattr(value.rows, "shape", ())))
    return (
        isinstance(digest, bytes)
        and isinstance(positions, tuple)
        and len(positions) > 0
        and all(map(_is_integer, positions))
        and all(map(lt, positions, positions[1:]))
        and len(shape) == 2
        and shape[0] == len(positions)
        and (value.block is None or _is_block(value.block, positions))
    )


def _are_grids(values: Sequence[Any]) -> bool:
    """Return whether all are Grid with at least one token, none of which begins before the end of the last one."""
    end = 0
    for each in values:
        if not isinstance(each, Grid) or not all(map(_is_integer, (each.start, each.rows, each.columns))):
            return False
        if each.start < end or each.rows < 1 or each.columns < 1:
            return False
        end = each.end
    return True


def _is_block(block: object, positions: tuple[int, ...]) -> bool:
    """Return whether a value is a run of positions with all of these in it."""
    return isinstance(block, range) and block.step == 1 and block.start <= positions[0] and positions[-1] < block.stop


def _is_adapter(value: object) -> bool:
    if not isinstance(value, AdapterUse):
        return False
    key, scale, start = cast(Any, (value.key, value.scale, value.start))
    numbers = isinstance(scale, float | int) and isfinite(scale) and _is_integer(start)
    return isinstance(key, str) and numbers and start >= 0


def _misplaced(span: Span) -> RequestError | None:
    """Return an error if given inputs are outside the span or share a position, else None."""
    positions = [position for each in span.inputs for position in each.positions]
    wrong = [position for position in positions if not span.start <= position < span.end]
    if wrong:
        reason = f"have a row at position {wrong[0]}, outside the span from {span.start} to {span.end - 1}"
        return RequestError(reason, param="inputs")
    if len(set(positions)) < len(positions):
        return RequestError("have two rows at one position", param="inputs")
    return _cut_block(span)


def _cut_block(span: Span) -> RequestError | None:
    """Return an error if a block of given inputs is not whole in the span, or reaches into another, else None."""
    end, blocks = span.end - span.drafts, {each.block for each in span.inputs if each.block is not None}
    for block in sorted(blocks, key=lambda each: each.start):
        if block.start < span.start or block.stop > end:
            rows = f"have rows at positions {block.start} to {block.stop - 1} that see each other"
            return RequestError(f"{rows}: send all of them in one span, and no drafts among them", param="inputs")
        if any(other.start < block.stop and block.start < other.stop for other in blocks - {block}):
            return RequestError("have two blocks that overlap", param="inputs")
    return None


def refuse_span(span: Span, stored: int | None, *, vocab_size: int, max_sequence_length: int) -> FerrumError | None:
    """Return why a span cannot run, or None.

    Args:
        span: the span.
        stored: stored tokens of its sequence; None for an unknown sequence.
        vocab_size, max_sequence_length: limits of the model.
    """
    if (error := wrong_type(span)) is not None:
        return error
    if stored is None and span.start:
        return UnknownSequence(f"unknown sequence {shown(span.cache_id)}", param="cache_id")
    if span.start != (stored or 0):
        return RequestError(f"must be the stored length {stored or 0}, not {shown(span.start)}", param="start")
    if not span.tokens:
        return RequestError("must hold at least one token", param="tokens")
    extras = span.extras or NO_EXTRAS
    if span.want is Want.TOKEN and span.sampling is None:
        return RequestError("is required to sample a token", param="sampling")
    if extras.inputs and (error := _misplaced(span)) is not None:
        return error
    if extras.drafts and not (0 < extras.drafts < len(span.tokens) and span.rows is Rows.ALL):
        return RequestError("need rows=ALL and a token before the drafts", param="drafts")
    if extras.score is not None and len(extras.score.targets) > len(span.tokens):
        return RequestError(f"has {len(extras.score.targets)} targets for {len(span.tokens)} tokens", param="score")
    try:
        check_tokens(span.tokens, span.start, vocab_size=vocab_size, max_sequence_length=max_sequence_length)
        if extras.score is not None:
            check_ids(extras.score.targets, vocab_size, param="score")
    except RequestError as error:
        return error
    return None
