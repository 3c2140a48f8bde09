"""Forward passes of a step: spans cut to fit the planned buffers, and rows of a pass given back to the spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ferrum.core.errors import NonFiniteLogits
from ferrum.core.step import Outcome, Span, StepBatch, block_around
from ferrum.kernels.interface import Collected, NetworkOutput, StepTables, StepTokens
from ferrum.runtime.span_results import SpanRows
from ferrum.runtime.step_tables import Piece, StepStates

# ---- `PreparedStep`: a step between its checks and its results ----


@dataclass(slots=True)
class PreparedStep:
    """A step whose spans are checked and have pages.

    Attributes:
        batch: the step.
        spans: those of its spans that can run.
        outcomes: of the others; of all spans once the step is computed.
        rows: collectors of the spans.
        passes: forward passes, each with its tables.
        decodes: tables of the only pass, if every span decodes as in the step before.
        drawn: the spans of such a step that do not simply take the most likely token, by index.
        states: what it does to the states of its sequences; None if no layer has one.
        sampled: its tokens, for the steps after it; None if nothing is prepared before it is settled.
        output: of the step, if it was submitted before the step before it was collected.
    """

    batch: StepBatch
    spans: Sequence[Span]
    outcomes: dict[str, Outcome]
    rows: dict[str, SpanRows]
    passes: list[tuple[list[Piece], StepTables]]
    states: StepStates | None
    decodes: StepTables | None = None
    drawn: Sequence[int] = ()
    sampled: StepTokens | None = None
    output: NetworkOutput | None = None


def cut_into_passes(rows: Sequence[SpanRows], max_rows: int, max_logit_rows: int) -> Iterator[list[Piece]]:
    """Cut spans into forward passes within limits of rows and of rows of logits; usually one."""
    pieces: list[Piece] = []
    used = logits = 0
    for collected in rows:
        done, count = 0, len(collected.span.tokens)
        while done < count:
            cut = _cut(collected, done, max_rows - used, max_logit_rows - logits)
            if cut is None:
                yield pieces
                pieces, used, logits = [], 0, 0
                continue
            piece, done = cut
            pieces.append(piece)
            used += len(piece.tokens)
            logits += len(piece.logit_rows)
    yield pieces


def _cut(collected: SpanRows, done: int, room: int, logit_room: int) -> tuple[Piece, int] | None:
    """Return the next piece of a span that fits and how many rows are done with it; None if not even one row fits.

    A block whose rows see each other is whole in each piece that has one of them. If a pass has no room for the logits
    of all its rows, the block is computed again for the rest of them.
    """
    span, wanted, hidden = collected.span, collected.logit_rows(), collected.hidden_rows()
    count = len(span.tokens)
    if not done and count <= room and len(wanted) <= logit_room:  # the usual case
        special = span.inputs, span.adapters, span.grids
        return Piece(span.cache_id, span.start, span.tokens, wanted, hidden, range(count), *special), count
    before = block_around(span.inputs, span.start + done)
    first = done if before is None else before.start - span.start
    end = min(count, first + room)
    if len(_shift(wanted, done, end, done)) > logit_room:
        end = max(done, wanted.start) + logit_room
    after, last = block_around(span.inputs, span.start + end), end
    if after is not None:
        last = after.stop - span.start
        if last - first > room:
            end = last = after.start - span.start
    if end <= done:
        return None
    tokens, own = span.tokens[first:last], range(done - first, end - first)
    rows = _shift(wanted, done, end, first), _shift(hidden, done, end, first)
    extras = span.inputs, span.adapters, span.grids
    return Piece(span.cache_id, span.start + first, tokens, rows[0], rows[1], own, *extras), end


def _shift(rows: range, begin: int, end: int, origin: int) -> range:
    """Return the part of `rows` in [begin, end), counted from `origin`."""
    first = max(rows.start, begin)
    return range(first - origin, max(first, min(rows.stop, end)) - origin)


def distribute(
    pieces: Sequence[Piece],
    output: NetworkOutput,
    rows: Mapping[str, SpanRows],
    collect: Callable[[NetworkOutput], Collected],
) -> dict[str, Outcome]:
    """Wait for a pass, give each piece's rows to its span, and return the spans that are not finite."""
    failed: dict[str, Outcome] = {}
    best, flags = collect(output)
    logit = hidden = 0
    for piece, finite in zip(pieces, flags, strict=True):
        logits = output.logits[logit : logit + len(piece.logit_rows)]
        tokens = best[logit : logit + len(logits)]
        states = output.hidden[hidden : hidden + len(piece.hidden_rows)] if piece.hidden_rows else None
        logit, hidden = logit + len(logits), hidden + len(piece.hidden_rows)
        collected = rows[piece.cache_id]
        try:
            if not finite:
                raise NonFiniteLogits(f"the hidden state of {piece.cache_id!r} is not finite")
            collected.take(piece.start - collected.span.start + piece.logit_rows.start, logits, tokens, states)
        except NonFiniteLogits as error:
            failed.setdefault(piece.cache_id, error)
    return failed
