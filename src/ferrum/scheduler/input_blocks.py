"""Blocks of given rows that see each other: no span ends or begins within one, see `Inputs.block`."""

from __future__ import annotations

from ferrum.core.errors import RequestError
from ferrum.core.step import block_around
from ferrum.core.types import Request
from ferrum.scheduler.sequence import Sequence


def check_blocks(request: Request, growth: int) -> None:
    """Refuse a block that no step holds.

    Args:
        request: the request.
        growth: largest number of tokens by which a sequence grows in one step.

    Raises:
        RequestError: a block is longer.
    """
    longest = max((len(each.block) for each in request.inputs if each.block is not None), default=0)
    if longest > growth:
        reason = f"an image of {longest} tokens, which see each other, is longer than a step of {growth} tokens"
        raise RequestError(f"{reason} (raise --max-tokens-per-step)", param="images")


def until_block(sequence: Sequence, count: int, room: int) -> int:
    """Return how many of the sequence's next tokens a span takes, so that it cuts no block.

    Args:
        sequence: the sequence.
        count: as many as the step has room for.
        room: largest number of tokens of a span that begins with a block.
    """
    start = sequence.computed + sequence.ahead
    block = block_around(sequence.request.inputs, start + count)
    if block is None:
        return count
    if block.start > start:
        return block.start - start
    return len(block) if len(block) <= room else 0


def next_block(sequence: Sequence) -> int:
    """Return the number of tokens of the block that comes next; 0 if something else does."""
    start = sequence.computed + sequence.ahead
    blocks = (each.block for each in sequence.request.inputs if each.block is not None)
    return next((len(block) for block in blocks if block.start == start), 0)


def pages_outside_blocks(sequence: Sequence, pages: int, page_size: int) -> int:
    """Return the most full pages, up to a number of them, that end outside a block."""
    while (block := block_around(sequence.request.inputs, pages * page_size)) is not None:
        pages = block.start // page_size
    return pages
