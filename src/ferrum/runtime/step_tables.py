"""From the spans of a step to the tables that kernels read. No other module makes such tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.state_slots import StateSlots, StateStep
from ferrum.core.errors import RequestError
from ferrum.core.step import CARRY, AdapterUse, Grid, Inputs, Span, Want, is_plain
from ferrum.kernels.interface import Carried, GivenRows, StateTables, StepTables, StepTokens
from ferrum.kernels.operations import F32, Int32
from ferrum.runtime.adapters.adapter_slots import AdapterSlots
from ferrum.sampling.sampler import is_plain_greedy

# ---- What a step does to the states of its sequences, from slots to the tables that kernels read ----


class Run(Protocol):
    """A run of one sequence's tokens: a span, or a piece of one."""

    @property
    def cache_id(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...


class StepStates:
    """The states that one step reads and writes.

    Args:
        slots: of the page table.
    """

    def __init__(self, slots: StateSlots) -> None:
        self._slots = slots
        self._steps: dict[str, StateStep] = {}

    def begin(self, span: Span) -> bool:
        """Take a slot for the state after a span; return False if there is none."""
        # A caller that gets the logits of drafts decides what counts, perhaps nothing.
        judged = span.drafts > 0 and span.want is Want.LOGITS
        step = self._slots.begin(span.cache_id, span.start, span.start if judged else span.end - span.drafts)
        if step is not None:
            self._steps[span.cache_id] = step
        return step is not None

    def cancel(self) -> None:
        """Give back all slots: the step will not run."""
        for cache_id in self._steps:
            self._slots.cancel(cache_id)
        self._steps.clear()

    def tables(self, runs: Sequence[Run]) -> StateTables:
        """Return what a pass over these runs does to states."""
        parts = [self._steps[run.cache_id].part(run.start, run.start + len(run.tokens)) for run in runs]
        return StateTables(*(np.array(column, np.int32) for column in zip(*parts, strict=True)))


SPARE_COLUMNS = 16
"""Columns by which a kept page table is wider than its longest row, so that most new pages fit."""


Source: TypeAlias = int | tuple[StepTokens, int]
"""What CARRY stands for: a token, or a span of a step in flight that samples it."""


class Piece(NamedTuple):
    """A run of one sequence's tokens in one forward pass.

    Attributes:
        cache_id: the sequence; pages for its tokens are reserved.
        start: position of the first token.
        tokens: ids.
        logit_rows, hidden_rows: rows of this piece whose logits or final hidden states are wanted.
        own: rows of this piece that are not those of another piece of its span, which computes them, too.
        inputs, adapters, grids: of its span.
    """

    cache_id: str
    start: int
    tokens: Sequence[int]
    logit_rows: range
    hidden_rows: range
    own: range
    inputs: tuple[Inputs, ...] = ()
    adapters: tuple[AdapterUse, ...] = ()
    grids: tuple[Grid, ...] = ()


class PageRowLookup(Protocol):
    """The part of a page table that tables are made from."""

    @property
    def groups(self) -> Sequence[PageGroup]:
        """The layer groups."""

    def row(self, cache_id: str, group: str) -> Sequence[int]:
        """Return the page numbers of a sequence."""


class KeptRows:
    """The page rows of earlier tables: a `PageRowLookup` that later changes of the page table do not reach.

    Args:
        groups: of the page table.
        passes: spans or pieces of them, and tables, of a step's passes.
    """

    def __init__(
        self, groups: Sequence[PageGroup], passes: Sequence[tuple[Sequence[Piece | Span], StepTables]]
    ) -> None:
        self.groups = groups
        self._rows: Mapping[str, dict[str, Sequence[int]]] = {
            piece.cache_id: {
                group.name: table[index].tolist() for group, table in zip(groups, tables.pages, strict=True)
            }
            for pieces, tables in passes
            for index, piece in enumerate(pieces)
        }

    def row(self, cache_id: str, group: str) -> Sequence[int]:
        """Return the page numbers of a sequence, padded with -1."""
        return self._rows[cache_id][group]


def stage(
    pieces: Sequence[Piece],
    pages: PageRowLookup,
    states: StepStates | None = None,
    sources: Mapping[str, Source] | None = None,
    adapters: AdapterSlots | None = None,
    deep_features: int = 0,
    given_token: int | None = None,
) -> StepTables:
    """Return the tables of one forward pass over the pieces, in order.

    Args:
        pieces: of the pass.
        pages: their page rows.
        states: what the step does to the states of its sequences.
        sources: of the sequences whose spans begin with CARRY.
        adapters: the loaded ones, if a piece uses some.
        deep_features: layers after which numbers are added to given rows, which have them after their own.
        given_token: the token that given rows have in tables of several rows per token; None: their own.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    bounds = [0]
    logit_rows: list[int] = []
    hidden_rows: list[int] = []
    carried: dict[StepTokens, list[tuple[int, int]]] = {}
    for piece in pieces:
        first = len(token_ids)
        token_ids += piece.tokens
        if sources and piece.tokens[0] == CARRY:
            match sources[piece.cache_id]:
                case (step, span):
                    carried.setdefault(step, []).append((first, span))
                case token:
                    token_ids[first] = token
        positions += range(piece.start, piece.start + len(piece.tokens))
        logit_rows += range(first + piece.logit_rows.start, first + piece.logit_rows.stop)
        hidden_rows += range(first + piece.hidden_rows.start, first + piece.hidden_rows.stop)
        bounds.append(len(token_ids))
    given, ids = _given(pieces, deep_features), _table(token_ids)
    if given is not None and given_token is not None:
        ids[given.rows] = given_token
    return StepTables(
        token_ids=ids,
        positions=_table(positions),
        span_rows=_table(bounds),
        pages=tuple([_page_rows(pieces, pages, group.name) for group in pages.groups]),
        logit_rows=_table(logit_rows),
        hidden_rows=_table(hidden_rows),
        given=given,
        states=None if states is None else states.tables(pieces),
        carried=tuple([_carried(pairs, step) for step, pairs in carried.items()]),
        adapters=() if adapters is None else adapters.rows(pieces),
        places=_places(pieces),
        last_seen=_last_seen(pieces),
    )


def frame_tables(rows: F32, positions: Int32, added: F32 | None = None, places: Int32 | None = None) -> StepTables:
    """Return the tables of one span without a sequence, whose rows [n, K] are all given.

    Args:
        added, places: of the rows, see `GivenRows` and `StepTables`.
    """
    none, count = _table(()), len(rows)
    given = GivenRows(np.arange(count, dtype=np.int32), np.ascontiguousarray(rows), added)
    bounds = _table((0, count))
    return StepTables(np.zeros(count, np.int32), positions, bounds, (), none, none, given, places=places)


def _carried(pairs: Sequence[tuple[int, int]], step: StepTokens) -> Carried:
    """Return the rows of a pass that spans of another step give their tokens, from pairs of both."""
    rows, spans = zip(*pairs, strict=True)
    return Carried(_table(rows), _table(spans), step)


def _given(pieces: Sequence[Piece], deep_features: int) -> GivenRows | None:
    """Return the given rows of the pieces and where they are in the pass; None if there are none."""
    rows, values, first = list[int](), list[F32](), 0
    for piece in pieces:
        for each in piece.inputs:
            for part in each.within(piece.start, piece.start + len(piece.tokens)):
                rows += [first + position - piece.start for position in part.positions]
                values.append(part.rows)
        first += len(piece.tokens)
    if not values:
        return None
    whole = np.concatenate(values)
    if not deep_features:
        return GivenRows(_table(rows), whole)
    own = whole.shape[1] // (1 + deep_features)
    return GivenRows(_table(rows), whole[:, :own].copy(), whole[:, own:].copy())


def _last_seen(pieces: Sequence[Piece]) -> Int32 | None:
    """Return the last position that each row of a pass sees; None if that is its own. Passes cut no block."""
    if all(each.block is None for piece in pieces for each in piece.inputs):
        return None
    seen = list[int]()
    for piece in pieces:
        end = piece.start + len(piece.tokens)
        last = list(range(piece.start, end))
        for block in (each.block for each in piece.inputs if each.block is not None):
            if piece.start <= block.start < end:
                first = block.start - piece.start
                last[first : first + len(block)] = [block.stop - 1] * len(block)
        seen += last
    return _table(seen)


def refuse_inputs(span: Span, numbers: int, max_rows: int) -> RequestError | None:
    """Return why the given rows of a valid span do not fit passes of a model that takes rows of that size, or None."""
    longest = max((len(each.block) for each in span.inputs if each.block is not None), default=0)
    if longest > max_rows:
        reason = f"have {longest} rows that see each other, more than a pass of {max_rows}: raise max_rows"
        return RequestError(reason, param="inputs")
    for each in span.inputs:
        if not isinstance(each.rows, np.ndarray) or each.rows.dtype != np.float32 or each.rows.shape[1] != numbers:
            return RequestError(f"must be float32 rows of {numbers} numbers, as this model's rows have", param="inputs")
    return None


# ---- Places of rows: what rotations of models with images of rows and columns are by ----


def _places(pieces: Sequence[Piece]) -> Int32 | None:
    """Return the place of each row of a pass, [R, 3]; None if no sequence of it has an image with rows and columns."""
    if not any(piece.grids for piece in pieces):
        return None
    return np.concatenate([places_of(piece.grids, piece.start, len(piece.tokens)) for piece in pieces])


def places_of(grids: Sequence[Grid], start: int, count: int) -> Int32:
    """Return time, row and column of some tokens of a sequence, int32 [count, 3].

    A token of text has three equal numbers (Wang et al. 2024, section 2.1).

    Args:
        grids: of the images of the sequence that begin before the last of these tokens.
        start, count: position of the first token, and how many there are.
    """
    places = np.repeat(np.arange(start, start + count, dtype=np.int32)[:, None], 3, axis=1)
    saved = 0
    for grid in grids:
        inside = slice(max(0, grid.start - start), max(0, grid.end - start))
        index = np.arange(start, start + count, dtype=np.int32)[inside] - grid.start
        places[inside] = grid.start - saved
        places[inside, 1] += index // grid.columns
        places[inside, 2] += index % grid.columns
        saved += grid.saved
        places[inside.stop :] -= grid.saved
    return places


def _table(values: Sequence[int]) -> Int32:
    return np.fromiter(values, np.int32, len(values))


def _page_rows(pieces: Sequence[Piece], pages: PageRowLookup, group: str) -> Int32:
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


class DecodeTables:
    """Tables of steps in which the same sequences decode: made once, then patched from step to step.

    The arrays of a step are never changed after it, because it may be in flight.

    Args:
        spans: of a step that consists of decodes; they are valid.
        tables: of its only pass.
        pages: the page table.
        last: see the attribute.
        adapters: the loaded ones, if some are.

    Attributes:
        cache_ids: the sequences.
        ends: their lengths after the last step.
        drawn: those that do not simply take the most likely token, by index.
        last: the tokens of the last step, if it is in flight.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        tables: StepTables,
        pages: PageTable,
        last: StepTokens | None = None,
        adapters: AdapterSlots | None = None,
    ) -> None:
        self.cache_ids = [span.cache_id for span in spans]
        self.ends = [span.end for span in spans]
        self.drawn = [row for row, span in enumerate(spans) if span.sampling and not is_plain_greedy(span.sampling)]
        self.last = last
        self._kept = [(span.sampling, span.extras) for span in spans]
        saved = [sum(grid.saved for grid in span.grids) for span in spans]
        self._saved = np.array(saved, np.int32) if any(span.grids for span in spans) else None
        self._adapters, self._changes_of_adapters = adapters, 0 if adapters is None else adapters.changes
        self._pages = pages
        self._tables = tables._replace(pages=tuple([_widened(table, 0) for table in tables.pages]))
        self._every = np.arange(len(spans), dtype=np.int32)
        self._changes = [-1] * len(self.cache_ids)

    def follow(self, spans: Sequence[Span], ahead: int, vocab_size: int, max_length: int) -> StepTables | None:
        """Return the tables of the next step of the same sequences; None if `spans` are anything else.

        Args:
            spans: of the step.
            ahead: number of these sequences' steps in flight.
            vocab_size, max_length: limits of token ids and of a sequence.
        """
        starts = self.ends
        if len(spans) != len(starts) or max(starts) >= max_length:
            return None
        if self._adapters is not None and self._adapters.changes != self._changes_of_adapters:
            return None
        tokens, ends = list[int](), list[int]()
        for span, cache_id, start, (sampling, extras) in zip(spans, self.cache_ids, starts, self._kept, strict=True):
            if span.cache_id != cache_id or span.start != start or span.sampling is not sampling:
                return None
            if span.extras is not extras and span.extras != extras:
                return None
            tokens += span.tokens
            ends.append(start + 1)
        if not is_plain(spans) or set(map(type, tokens)) != {int} or min(tokens) < CARRY or max(tokens) >= vocab_size:
            return None
        token_ids, carried = np.array(tokens, np.int32), tuple[Carried, ...]()
        if count := tokens.count(CARRY):
            if not ahead or self.last is None:
                return None
            rows = self._every if count == len(tokens) else self._every[token_ids == CARRY]
            carried = (Carried(rows, rows, self.last),)
        changed = self._pages.next_tokens.changed_rows(self.cache_ids, starts, ahead, self._changes)
        if changed is None:
            return None
        tables, positions = self._tables, np.array(starts, np.int32)
        self._tables = tables._replace(
            token_ids=token_ids,
            positions=positions,
            pages=self._patched(changed) if changed else tables.pages,
            carried=carried,
            places=None if self._saved is None else np.repeat((positions - self._saved)[:, None], 3, axis=1),
        )
        self.ends = ends
        return self._tables

    def _patched(self, changed: Sequence[int]) -> tuple[Int32, ...]:
        """Return the page tables with new rows for these sequences."""
        patched = []
        for group, table in zip(self._pages.groups, self._tables.pages, strict=True):
            rows = [self._pages.row(self.cache_ids[index], group.name) for index in changed]
            table = _widened(table, max(map(len, rows)))
            for index, row in zip(changed, rows, strict=True):
                table[index, : len(row)] = row
                table[index, len(row) :] = -1
            patched.append(table)
        return tuple(patched)


def _widened(table: Int32, width: int) -> Int32:
    """Return a copy with at least this many columns, and spare ones if it has to grow."""
    if table.shape[1] >= width > 0:
        return table.copy()
    wide = np.full((len(table), max(width, table.shape[1]) + SPARE_COLUMNS), -1, np.int32)
    wide[:, : table.shape[1]] = table
    return wide
