"""From the spans of a step to the tables that kernels read. The only place where such tables are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ferrum.cache.pages import PageTable
from ferrum.kernels.interface import F32, StepTables


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of one sequence's tokens in one forward pass.

    Attributes:
        cache_id: the sequence; pages for its tokens are reserved.
        start: position of the first token.
        tokens: ids.
        logit_rows, hidden_rows: rows of this piece whose logits, or final hidden states, are wanted.
    """

    cache_id: str
    start: int
    tokens: Sequence[int]
    logit_rows: range
    hidden_rows: range


def stage(pieces: Sequence[Piece], pages: PageTable, embeddings: F32 | None = None) -> StepTables:
    """Tables of one forward pass over the pieces, in order."""
    lengths = [len(piece.tokens) for piece in pieces]
    bounds = [0, *accumulate(lengths)]
    return StepTables(
        token_ids=_joined([piece.tokens for piece in pieces]),
        positions=_joined([range(p.start, p.start + n) for p, n in zip(pieces, lengths, strict=True)]),
        span_rows=np.array(bounds, np.int32),
        pages=tuple(_page_rows(pieces, pages, group.name) for group in pages.groups),
        logit_rows=_joined([_shifted(p.logit_rows, b) for p, b in zip(pieces, bounds[:-1], strict=True)]),
        hidden_rows=_joined([_shifted(p.hidden_rows, b) for p, b in zip(pieces, bounds[:-1], strict=True)]),
        embeddings=embeddings,
    )


def _shifted(rows: range, by: int) -> range:
    return range(rows.start + by, rows.stop + by)


def _joined(parts: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter((value for part in parts for value in part), np.int32, sum(map(len, parts)))


def _page_rows(pieces: Sequence[Piece], pages: PageTable, group: str) -> np.ndarray:
    """[pieces, most pages of a sequence], padded with -1."""
    rows = [pages.row(piece.cache_id, group) for piece in pieces]
    table = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int32)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table
