"""`DecoderLM`: a network, its page table and its pool, keyed by cache id. Its one method for steps is `run`.

One result or error per span: a step that fails is run again span by span, so that only faulty spans fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ferrum.cache.page_table import PageCopy, PageTable
from ferrum.contract.decoder_llm import LlmRuntimeConfig, StepwiseLLM
from ferrum.core.errors import ContextOverflow, FerrumError, KvExhausted, NonFiniteLogits, StepError, Unsupported
from ferrum.core.span_checks import refuse_span
from ferrum.core.step import Outcome, Rows, Span, SpanResult, StepBatch, StepOutput, Want
from ferrum.kernels.cpu.program import prepare_replay
from ferrum.kernels.interface import F32, Kernels, Network, NetworkOutput, StepTables
from ferrum.kernels.interpreter import run_eager
from ferrum.kernels.program_recorder import Extent, record
from ferrum.runtime.backend import sampler_for
from ferrum.runtime.span_results import SpanRows
from ferrum.runtime.step_tables import Piece, stage
from ferrum.sampling.sampler import accept


class DecoderLM(StepwiseLLM):
    """A language model that runs steps as transactions: a failed span commits nothing and returns no tokens.

    Args:
        network: the decoder.
        kernels: with a pool allocated for `pages`.
        pages: the page table.
        config: sizes of the model, and the maximum tokens of a sequence.
        max_rows: maximum tokens of one forward pass; a larger step takes several, with the same bits.
        max_logit_rows: maximum rows of logits of one pass.
        replay: run the recorded program; False walks the network each time.

    Attributes:
        watch: if set, called with the last row of logits, f32 [V], of every span that has one.
    """

    def __init__(
        self,
        network: Network,
        kernels: Kernels,
        pages: PageTable,
        *,
        config: LlmRuntimeConfig,
        max_rows: int,
        max_logit_rows: int,
        replay: bool = True,
    ) -> None:
        self.network = network
        self.kernels = kernels
        self.sampler = sampler_for(kernels)
        self.pages: PageTable = pages
        self._config = config
        self.max_rows = max_rows
        self.max_logit_rows = min(max_logit_rows, max_rows)
        limits = {
            Extent.ROWS: max_rows,
            Extent.LOGITS: self.max_logit_rows,
            Extent.HIDDEN: max_rows,
            Extent.SPANS: max_rows,
        }
        self.watch: Callable[[Span, F32], None] | None = None
        self.replay = prepare_replay(record(network), kernels, limits) if replay else None
        self._copies: list[PageCopy] = []

    @property
    def config(self) -> LlmRuntimeConfig:
        return self._config

    def buffer_bytes(self, extent: Extent) -> int:
        """Return the bytes of the planned buffers of that extent; without a recorded program there are none."""
        return self.replay.nbytes(extent) if self.replay is not None else 0

    def run(self, batch: StepBatch) -> StepOutput:
        """Process every span: one result or error each."""
        new = {span.cache_id for span in batch.spans if span.cache_id not in self.pages}
        outcomes = run_isolated(batch.spans, self._admit, self._attempt)
        for span, outcome in zip(batch.spans, outcomes, strict=True):
            self._settle(span, outcome, is_new=span.cache_id in new)
        return StepOutput(outcomes)

    def _settle(self, span: Span, outcome: Outcome, *, is_new: bool) -> None:
        """Commit a result, or free what a failed span reserved."""
        if isinstance(outcome, SpanResult):
            self.pages.commit(span.cache_id, outcome.length)
        elif is_new:
            self.pages.release(span.cache_id)
        elif span.cache_id in self.pages:
            self.pages.trim(span.cache_id)

    def _admit(self, span: Span) -> FerrumError | None:
        """Check a span and reserve its pages; return an error, or None if it can run."""
        error = self._refusal(span)
        if error is None and not self.pages.reserve(span.cache_id, span.end):
            return self._no_room(span)
        return error

    def _no_room(self, span: Span) -> FerrumError:
        """Return why a span has no pages: the pool is too small for it, or others use the pool."""
        for group in self.pages.groups:
            if group.pages(span.end) - group.unseen(span.start) > group.num_pages:
                held = group.num_pages * group.page_size
                reason = f"{span.end} tokens exceed the {held} that the KV pool holds (raise kv_capacity)"
                if group.window is not None:
                    reason = f"{len(span.tokens)} tokens at once exceed the pool of a window: send shorter chunks"
                return ContextOverflow(reason, param="tokens")
        return KvExhausted(f"no free pages for {len(span.tokens)} more tokens of {span.cache_id!r}")

    def _refusal(self, span: Span) -> FerrumError | None:
        if span.attention_weights and not self.kernels.captures:
            return Unsupported("attention_weights", f"the {self.kernels.name} kernels do not keep them")
        stored = self.pages.length(span.cache_id) if span.cache_id in self.pages else None
        config = self._config
        return refuse_span(span, stored, vocab_size=config.vocab_size, max_sequence_length=config.max_seq_len)

    def _attempt(self, spans: Sequence[Span]) -> dict[str, Outcome]:
        """Return the uncommitted results of admitted spans."""
        rows = {span.cache_id: SpanRows(span, self.sampler) for span in spans}
        failed: dict[str, Outcome] = {}
        results: dict[str, Outcome] = {}
        capture = any(span.attention_weights for span in spans)
        for pieces in self._passes(list(rows.values())):
            self.kernels.captured = [] if capture else None
            output = self._forward(stage(pieces, self.pages))
            failed.update(_distribute(pieces, output, rows))
            complete = []
            for index, piece in enumerate(pieces):
                collected = rows[piece.cache_id]
                if capture:
                    collected.take_attention([layer[index] for layer in self.kernels.captured or ()])
                if piece.cache_id not in failed and piece.start + len(piece.tokens) == collected.span.end:
                    complete.append(collected)
            results.update(self._results(complete))
        return results | failed

    def _results(self, complete: Sequence[SpanRows]) -> dict[str, Outcome]:
        """Return the results of spans whose last rows are there; tokens are sampled for all of them at once."""
        verifications = [each.verification() for each in complete]
        chosen = iter(accept([each for each in verifications if each is not None], self.sampler))
        results: dict[str, Outcome] = {}
        for each, verification in zip(complete, verifications, strict=True):
            tokens = None if verification is None else next(chosen)
            results[each.span.cache_id] = tokens if isinstance(tokens, StepError) else each.result(tokens, self.watch)
        return results

    def _forward(self, tables: StepTables) -> NetworkOutput:
        self._copies += self.pages.take_copies()
        if self._copies:
            self.kernels.copy_pages(self._copies)
            self._copies.clear()
        if self.replay is not None:
            return self.replay(self.kernels, tables)
        return run_eager(self.network, self.kernels, tables)

    def _passes(self, rows: Sequence[SpanRows]) -> Iterator[list[Piece]]:
        """Cut spans into forward passes that fit the planned buffers; usually one."""
        pieces: list[Piece] = []
        used = logits = 0
        for collected in rows:
            done, count = 0, len(collected.span.tokens)
            while done < count:
                piece = _cut(collected, done, self.max_rows - used, self.max_logit_rows - logits)
                if piece is None:
                    yield pieces
                    pieces, used, logits = [], 0, 0
                    continue
                pieces.append(piece)
                done += len(piece.tokens)
                used += len(piece.tokens)
                logits += len(piece.logit_rows)
        yield pieces


def _cut(collected: SpanRows, done: int, room: int, logit_room: int) -> Piece | None:
    """Return the next piece of a span that fits, or None if not even one row does."""
    span, wanted = collected.span, collected.logit_rows()
    if not done and len(span.tokens) <= room and len(wanted) <= logit_room:  # the usual case
        return Piece(span.cache_id, span.start, span.tokens, wanted, collected.hidden_rows())
    end = min(len(span.tokens), done + room)
    if len(_shift(wanted, done, end)) > logit_room:
        end = max(done, wanted.start) + logit_room
    if end <= done:
        return None
    return Piece(
        span.cache_id,
        span.start + done,
        span.tokens[done:end],
        _shift(wanted, done, end),
        _shift(collected.hidden_rows(), done, end),
    )


def _shift(rows: range, begin: int, end: int) -> range:
    """Return the part of `rows` in [begin, end), counted from `begin`."""
    return range(max(rows.start, begin) - begin, max(max(rows.start, begin), min(rows.stop, end)) - begin)


def _distribute(pieces: Sequence[Piece], output: NetworkOutput, rows: dict[str, SpanRows]) -> dict[str, Outcome]:
    """Give each piece's rows to its span, and return the spans that are not finite."""
    failed: dict[str, Outcome] = {}
    best, flags = output.best.ravel().tolist(), output.finite.ravel().tolist()
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


Attempt = Callable[[Sequence[Span]], Mapping[str, Outcome]]
"""Runs spans together and returns the outcome of each sequence. If it raises, no sequence has changed."""


def run_isolated(
    spans: Sequence[Span], refuse: Callable[[Span], FerrumError | None], attempt: Attempt
) -> tuple[Outcome, ...]:
    """Run a step's spans together; if that raises, one by one, which gives the same bits.

    Draft tokens may cause a NaN: a span that wants a token is then run again without drafts, and fails only if it fails
    without. A span that wants logits needs its drafts and is not run again.

    Args:
        spans: of different sequences.
        refuse: returns why a span cannot run, or None; called for all spans before anything runs.
        attempt: runs the others.

    Returns: one outcome per span, in order.
    """
    outcomes: dict[str, Outcome] = {}
    ready: list[Span] = []
    for span in spans:
        error = refuse(span)
        if error is None:
            ready.append(span)
        else:
            outcomes[span.cache_id] = error
    if ready:
        outcomes.update(_run_with_fallback(ready, attempt))
    suspects = [span for span in ready if _may_be_draft_fault(span, outcomes[span.cache_id])]
    if suspects:
        outcomes.update(_run_with_fallback([_without_drafts(span) for span in suspects], attempt))
    return tuple(outcomes[span.cache_id] for span in spans)


def _run_with_fallback(spans: Sequence[Span], attempt: Attempt) -> Mapping[str, Outcome]:
    try:
        return attempt(spans)
    except Exception as error:  # noqa: BLE001 - any exception of a kernel or model fails its own sequence only
        if len(spans) == 1:
            return {spans[0].cache_id: failure(error)}
    return {name: outcome for span in spans for name, outcome in _run_with_fallback([span], attempt).items()}


def _may_be_draft_fault(span: Span, outcome: Outcome) -> bool:
    return span.drafts > 0 and span.want is Want.TOKEN and isinstance(outcome, NonFiniteLogits)


def _without_drafts(span: Span) -> Span:
    return replace(span, tokens=span.tokens[: -span.drafts], drafts=0, rows=Rows.LAST)


def failure(error: Exception) -> FerrumError:
    """Return the outcome of a span that ended with this exception."""
    return error if isinstance(error, FerrumError) else StepError(f"{type(error).__name__}: {error}")
