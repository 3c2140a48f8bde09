"""From the spans of a step to the tables that kernels read. No other module makes such tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from ferrum.cache.page_table import PageTable
from ferrum.kernels.interface import F32, Int32, StepTables


class Piece(NamedTuple):
    """A run of one sequence's tokens in one forward pass.

    Attributes:
        cache_id: the sequence; pages for its tokens are reserved.
        start: position of the first token.
        tokens: ids.
        logit_rows, hidden_rows: rows of this piece whose logits or final hidden states are wanted.
    """

    cache_id: str
    start: int
    tokens: Sequence[int]
    logit_rows: range
    hidden_rows: range


def stage(pieces: Sequence[Piece], pages: PageTable, embeddings: F32 | None = None) -> StepTables:
    """Return the tables of one forward pass over the pieces, in order."""
    token_ids: list[int] = []
    positions: list[int] = []
    bounds = [0]
    logit_rows: list[int] = []
    hidden_rows: list[int] = []
    for piece in pieces:
        first = len(token_ids)
        token_ids += piece.tokens
        positions += range(piece.start, piece.start + len(piece.tokens))
        logit_rows += range(first + piece.logit_rows.start, first + piece.logit_rows.stop)
        hidden_rows += range(first + piece.hidden_rows.start, first + piece.hidden_rows.stop)
        bounds.append(len(token_ids))
    return StepTables(
        token_ids=_table(token_ids),
        positions=_table(positions),
        span_rows=_table(bounds),
        pages=tuple([_page_rows(pieces, pages, group.name) for group in pages.groups]),
        logit_rows=_table(logit_rows),
        hidden_rows=_table(hidden_rows),
        embeddings=embeddings,
    )


def _table(values: Sequence[int]) -> Int32:
    return np.fromiter(values, np.int32, len(values))


def _page_rows(pieces: Sequence[Piece], pages: PageTable, group: str) -> Int32:
    """Return [pieces, max pages of a sequence], padded with -1."""
    rows = [pages.row(piece.cache_id, group) for piece in pieces]
    lengths = list(map(len, rows))
    width = max(lengths, default=0)
    flat = np.fromiter(chain.from_iterable(rows), np.int32, sum(lengths))
    if len(flat) == width * len(rows):
        return flat.reshape(len(rows), width)
    # Building padded lists would be slow: next to one long sequence, nearly all of them is padding.
    table = np.full((len(rows), width), -1, np.int32)
    table[np.arange(width) < np.array(lengths)[:, None]] = flat
    return table
