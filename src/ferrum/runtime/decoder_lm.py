"""`DecoderLM`: a network, its page table and its pool, keyed by cache id.

A step is prepared (checks, pages, tables), computed (kernels, sampling) and settled (lengths advance). `run` does all
three. An executor that runs ahead prepares and settles steps in one thread, in order, and computes them in another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter

from ferrum.cache.page_table import PageCopy, PageTable
from ferrum.contract.decoder_llm import LlmRuntimeConfig, StepwiseLLM
from ferrum.core.config import MAX_DRAFT
from ferrum.core.errors import (
    ContextOverflow,
    EngineDead,
    FerrumError,
    KvExhausted,
    StepError,
    Unsupported,
    as_step_error,
)
from ferrum.core.span_checks import refuse_span
from ferrum.core.step import CARRY, AdapterUse, Hidden, Outcome, Span, SpanResult, StepBatch, StepOutput, is_plain
from ferrum.kernels.interface import Kernels, Network, NetworkOutput, RawPages, StepTables, StepTokens
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.operations import F32, Array
from ferrum.kernels.recorded_program import record, run_eager
from ferrum.runtime.adapters.adapted_network import AdaptedSteps
from ferrum.runtime.adapters.adapter_slots import AdapterSlots
from ferrum.runtime.fault_isolation import run_isolated, split_refused
from ferrum.runtime.flights import Flights, carries
from ferrum.runtime.sharded_replay import ShardedReplay
from ferrum.runtime.span_results import SpanRows
from ferrum.runtime.step_passes import PreparedStep, cut_into_passes, distribute
from ferrum.runtime.step_tables import (
    DecodeTables,
    KeptRows,
    PageRowLookup,
    Piece,
    Source,
    StepStates,
    refuse_inputs,
    stage,
)
from ferrum.sampling.backend_sampler import sampler_of
from ferrum.sampling.sampler import Verification, accept


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
        deep_features: first layers after which numbers are added to given rows, which have them after their own.
        rotates_by_grid: the network rotates tokens of images by rows and columns (`SpanExtras.grids`).
        given_token: see `stage`.

    Attributes:
        pool: the contents of all pages: those of the kernels, or of several ranks.
        runs_ahead: a step may be prepared before the last one is settled.
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
        deep_features: int = 0,
        rotates_by_grid: bool = False,
        given_token: int | None = None,
    ) -> None:
        self.network = network
        self.kernels = kernels
        self.pool: RawPages = kernels
        self.sampler = sampler_of(kernels)
        self.pages: PageTable = pages
        self._config = config
        self._deep_features, self._rotates_by_grid = deep_features, rotates_by_grid
        self._given_token = given_token
        self.max_rows = max_rows
        self.max_logit_rows = min(max_logit_rows, max_rows)
        limits = {
            Extent.ROWS: max_rows,
            Extent.LOGITS: self.max_logit_rows,
            Extent.HIDDEN: max_rows,
            Extent.SPANS: max_rows,
        }
        self.watch: Callable[[Span, F32], None] | None = None
        self.replay = kernels.prepare(record(network), limits) if replay else None
        self.adapted = AdaptedSteps(network, kernels, limits if replay else None)
        self.ranks: ShardedReplay | None = None
        self.on_loss: Callable[[Callable[[EngineDead], None]], None] | None = None
        self._copies: list[PageCopy] = []
        self._flights = Flights(pages)
        self._decodes: DecodeTables | None = None
        self._started: PreparedStep | None = None
        self.runs_ahead = False

    @property
    def config(self) -> LlmRuntimeConfig:
        return self._config

    @property
    def adapters(self) -> AdapterSlots:
        """The adapters."""
        return self.adapted.load()

    def set_lora_adapter(self, cache_id: str, name: str | None) -> None:
        self.pages.choose(cache_id, self.adapters_for(cache_id, name))

    def adapters_for(self, cache_id: str, name: str | None) -> tuple[AdapterUse, ...]:
        """Return what `set_lora_adapter` chooses, without a change. Raises as it does."""
        present = self.pages.adapters(cache_id) if cache_id in self.pages else ()
        return self.adapters.changed(present, name, self.length(cache_id)) if present or name is not None else ()

    def use_ranks(
        self, ranks: ShardedReplay, on_loss: Callable[[Callable[[EngineDead], None]], None] | None = None
    ) -> None:
        """Run steps on these ranks from now on, of which the first has this model's kernels. Call before any step.

        Args:
            on_loss: calls a function with the error when a rank is lost; None: none can be.
        """
        self.pool = self.replay = self.ranks = ranks
        self.adapted.others = ranks.on_others
        self.on_loss = on_loss

    def buffer_bytes(self, extent: Extent) -> int:
        """Return the bytes of the planned buffers of that extent; without a recorded program there are none."""
        return self.replay.nbytes(extent) if self.replay is not None else 0

    def run(self, batch: StepBatch) -> StepOutput:
        """Process every span: one result or error each."""
        step = self.prepare(batch)
        if self.runs_ahead:
            self.make_copies()
        self.compute(step)
        return self.settle(step)

    def forget(self) -> None:
        """Forget the steps in flight and the last tokens: all sequences are gone."""
        self._flights.clear()
        self._decodes = self._started = None

    # Prepare

    def prepare(self, batch: StepBatch) -> PreparedStep:
        """Check the spans, reserve their pages and make the tables of the step."""
        decodes, states = self._decodes, None if self.pages.states is None else StepStates(self.pages.states)
        tables = None if decodes is None else self._follow(decodes, batch.spans, states)
        sampled = StepTokens() if self.runs_ahead else None
        if decodes is not None and tables is not None:
            if sampled is not None:
                self._flights.issue(batch.spans, sampled)
                decodes.last = sampled
            return PreparedStep(batch, batch.spans, {}, {}, [], states, tables, decodes.drawn, sampled)
        self._decodes = None
        new = {span.cache_id for span in batch.spans if span.cache_id not in self.pages}
        spans, outcomes = split_refused(batch.spans, partial(self._admit, states))
        if outcomes:
            self._free_refused(outcomes, new)
        step = PreparedStep(batch, spans, outcomes, self._rows(spans), [], states, sampled=sampled)
        sources = {span.cache_id: self._flights.source(span) for span in spans if span.tokens[0] == CARRY}
        try:
            cut = cut_into_passes([*step.rows.values()], self.max_rows, self.max_logit_rows) if spans else ()
            step.passes += [(each, self._staged(each, self.pages, states, sources)) for each in cut]
        except Exception as error:  # noqa: BLE001 - no memory for the tables: others go on
            step.spans = ()
            outcomes.update((span.cache_id, as_step_error(error)) for span in spans)
            if states is not None:
                states.cancel()
            self._free_refused(outcomes, new)
        self._flights.issue(step.spans, sampled, new)
        if len(step.passes) == 1 and not outcomes and is_plain(batch.spans) and all(map(_start, batch.spans)):
            self._decodes = DecodeTables(batch.spans, step.passes[0][1], self.pages, sampled, self.adapted.slots)
        return step

    def _free_refused(self, refused: Iterable[str], new: Collection[str]) -> None:
        """Free what sequences of refused spans have reserved, unless steps in flight may need it."""
        for cache_id in refused:
            if cache_id in new:
                self.pages.release(cache_id)
            elif cache_id in self.pages and not self._flights.ahead(cache_id):
                self.pages.trim(cache_id)

    def _follow(self, decodes: DecodeTables, spans: Sequence[Span], states: StepStates | None) -> StepTables | None:
        """Return patched tables if a step goes on where the last one ended, with one token per sequence."""
        ahead = self._flights.ahead(decodes.cache_ids[0]) if self.runs_ahead else 0
        tables = decodes.follow(spans, ahead, self._config.vocab_size, self._config.max_seq_len)
        if tables is None or states is None:
            return tables
        if not all(map(states.begin, spans)):
            states.cancel()
            return None
        return tables._replace(states=states.tables(spans))

    def make_copies(self) -> None:
        """Copy pages now that no step is being computed; if that fails, the next step does it and reports the error."""
        self._copies += self.pages.take_copies()
        if self._copies:
            with suppress(Exception):
                self._copy_pages()

    def _copy_pages(self) -> None:
        self.pool.copy_pages(self._copies)
        self._copies.clear()

    def _admit(self, states: StepStates | None, span: Span) -> FerrumError | None:
        """Check a span, reserve its pages and begin its state; return an error, or None if it can run."""
        error = self._refusal(span)
        if error is None and not self.pages.reserve(span.cache_id, span.end):
            return self._no_room(span)
        if error is None and states is not None and not states.begin(span):
            return KvExhausted(f"no free slot for the state of {span.cache_id!r}: release others (max_batch_size)")
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
        """Return why a span is not valid or this model cannot run it, or None."""
        if carries(span):
            if (error := self._flights.refuse_carry(span)) is not None:
                return error
            span = replace(span, tokens=(0, *span.tokens[1:]))
        config, stored = self._config, self._flights.length(span.cache_id)
        error = refuse_span(span, stored, vocab_size=config.vocab_size, max_sequence_length=config.max_seq_len)
        if error is not None:
            return error
        if (span.attention_weights or span.hidden is Hidden.LAYERS) and not self.kernels.captures:
            reason = f'the {self.kernels.name} kernels do not keep them: load the model with kernels="reference"'
            return Unsupported("attention weights and states of layers", reason)
        if span.hidden is Hidden.LAYERS and self.pool is not self.kernels:
            return Unsupported("states of layers", "several ranks compute them: load the model on one")
        if span.drafts > MAX_DRAFT and self.pages.states is not None:
            return Unsupported("drafts", f"{span.drafts} in one span: recurrent layers keep the rows of {MAX_DRAFT}")
        if span.adapters and (error := self.adapted.refuse(span)) is not None:
            return error
        if (span.inputs or span.grids) and (error := self._refuse_images(span)) is not None:
            return error
        return None

    def _staged(
        self,
        pieces: Sequence[Piece],
        pages: PageRowLookup,
        states: StepStates | None,
        sources: Mapping[str, Source],
    ) -> StepTables:
        return stage(pieces, pages, states, sources, self.adapted.slots, self._deep_features, self._given_token)

    def _refuse_images(self, span: Span) -> FerrumError | None:
        """Return why the given rows or the images of a valid span do not fit the model, or None."""
        if span.grids and not self._rotates_by_grid:
            return Unsupported("grids", "this model rotates a token by one number: leave them out")
        if not self.kernels.takes_places and (span.grids or (span.inputs and self._deep_features)):
            reason = f"the {self.kernels.name} kernels do not rotate by rows and columns: load the model on the CPU"
            return Unsupported("images of this model", reason)
        if self.pages.states is not None and any(each.block is not None for each in span.inputs):
            return Unsupported("rows that see each other", "recurrent layers take rows one after another")
        return refuse_inputs(span, self._config.hidden_size * (1 + self._deep_features), self.max_rows)

    # Compute

    def starts(self, step: PreparedStep) -> bool:
        """Return whether a backend that defers may have a step before the results of the one before it."""
        return step.decodes is not None and not step.drawn and self.watch is None and self.pool is self.kernels

    def start(self, step: PreparedStep) -> None:
        """Submit a step that `starts`; `compute` collects it. Steps are started in order, each once."""
        assert step.decodes is not None and step.sampled is not None
        with suppress(Exception):  # then `compute` submits it again, and reports the error
            output = self._forward(step.decodes)
            step.sampled.tokens = output.best.copy()
            step.output = output
            self._started = step

    def _restart(self, step: PreparedStep) -> None:
        """Forget what was submitted of a step and of the one after it, which went on from its tokens and rows."""
        for each in (step, self._started):
            if each is not None:
                each.output = None

    def compute(self, step: PreparedStep) -> None:
        """Run a prepared step and set the outcome of each span; nothing advances. Steps are computed in order."""
        if step.decodes is None or not self._compute_decodes(step, step.decodes):
            if self._started is not None:
                self._restart(step)
            spans, errors = split_refused(step.spans, self._flights.refuse_issued)
            step.outcomes.update(errors)
            if spans:
                step.outcomes.update(run_isolated(spans, partial(self._attempt, step)))
        self._flights.record(step.spans, step.outcomes, step.sampled)

    def _compute_decodes(self, step: PreparedStep, tables: StepTables) -> bool:
        """Run a step of decodes; return False, with nothing changed, if a span may need to run without the others."""
        if self.watch is not None:
            return False
        if self.runs_ahead and not self._flights.all_succeeded(step.spans):
            return False
        try:
            if step.output is None and self._started is not None:
                self._restart(step)
            output = step.output or self._forward(tables)
            best, finite = self.kernels.collect(output)
            if -1 in best or False in finite:
                return False
            for span, token in zip(step.spans, best, strict=True):
                step.outcomes[span.cache_id] = SpanResult(span.start + 1, (token,))
            if step.drawn:
                self._draw(step, output.logits, best)
        except EngineDead:
            raise
        except Exception:  # noqa: BLE001 - the spans are run again one by one, and then report it
            return False
        return True

    def _draw(self, step: PreparedStep, logits: Array, best: Sequence[int]) -> None:
        """Set the outcomes of the sequences that do not simply take the most likely token."""
        spans = [step.spans[row] for row in step.drawn]
        rows = [self._verification(step.spans[row], logits[row : row + 1], best[row]) for row in step.drawn]
        for span, chosen in zip(spans, accept(rows, self.sampler), strict=True):
            if isinstance(chosen, StepError):
                step.outcomes[span.cache_id] = chosen
            else:
                step.outcomes[span.cache_id] = SpanResult(span.start + 1, chosen.tokens, chosen.logprobs)

    def _verification(self, span: Span, logits: Array, best: int) -> Verification:
        assert span.sampling is not None, "checked before the step"
        carried = (self._flights.token(span),) if span.tokens[0] == CARRY else ()
        return Verification(logits, (best,), (), span.sampling, start=span.start + 1, carried=carried)

    def _rows(self, spans: Sequence[Span]) -> dict[str, SpanRows]:
        """Return what collects the rows of each span."""
        return {span.cache_id: SpanRows(span, self.sampler, self.kernels.host) for span in spans}

    def _attempt(self, step: PreparedStep, spans: Sequence[Span]) -> dict[str, Outcome]:
        """Return the uncommitted results of spans: at first of the whole step, then of some of them alone."""
        if step.rows and len(spans) == len(step.spans):
            passes, rows, step.rows = step.passes, step.rows, {}
        else:
            rows = self._rows(spans)
            decodes = [] if step.decodes is None else [(step.spans, step.decodes)]
            kept = KeptRows(self.pages.groups, step.passes or decodes)
            tokens = {span.cache_id: self._flights.token(span) for span in spans}
            cut = cut_into_passes([*rows.values()], self.max_rows, self.max_logit_rows)
            passes = [(each, self._staged(each, kept, step.states, tokens)) for each in cut]
        for span in spans:
            if span.tokens[0] == CARRY:
                rows[span.cache_id].carried = (self._flights.token(span),)
        failed: dict[str, Outcome] = {}
        results: dict[str, Outcome] = {}
        weights = any(span.attention_weights for span in spans)
        layers = any(span.hidden is Hidden.LAYERS for span in spans)
        for pieces, tables in passes:
            captured: list[list[Array]] = []
            states: list[Array] | None = [] if layers else None
            self.kernels.captured = captured if weights else None
            try:
                failed.update(distribute(pieces, self._forward(tables, states), rows, self.kernels.collect))
            finally:
                self.kernels.captured = None
            complete = []
            for index, piece in enumerate(pieces):
                collected, own = rows[piece.cache_id], slice(piece.own.start, piece.own.stop)
                if weights:
                    collected.take_attention([layer[index][:, own] for layer in captured])
                if states:
                    begin, end = tables.span_rows[index : index + 2]
                    collected.take_layers([each[begin:end][own] for each in states])
                if piece.cache_id not in failed and piece.start + own.stop == collected.span.end:
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

    def _forward(self, tables: StepTables, states: list[Array] | None = None) -> NetworkOutput:
        if not self.runs_ahead and self.pages.needs_copies:
            self._copies += self.pages.take_copies()
        if self._copies:
            self._copy_pages()
        network, replay = self.network, self.replay
        if tables.adapters and self.ranks is None:
            network, replay = self.adapted.network, self.adapted.replay
        if replay is not None and states is None:
            return replay.submit(self.kernels, tables)
        return run_eager(network, self.kernels, tables, states)

    # Settle

    def settle(self, step: PreparedStep) -> StepOutput:
        """Advance the sequences of a computed step; a failed span leaves its sequence as it was."""
        results = tuple(map(step.outcomes.__getitem__, map(_cache_id, step.batch.spans)))
        if step.decodes is not None and not self.runs_ahead and set(map(type, results)) == {SpanResult}:
            self.pages.next_tokens.commit(list(step.outcomes), list(map(_length, results)))
        else:
            for span in step.spans:
                self._flights.settle(span, step.outcomes[span.cache_id])
        if step.decodes is None or step.decodes.adapters:
            for span in step.spans:
                if span.extras is not None and isinstance(step.outcomes[span.cache_id], SpanResult):
                    self._note_extras(span)
        return StepOutput(results)

    def _note_extras(self, span: Span) -> None:
        """Note what later steps and truncations of the sequence depend on."""
        if span.adapters:
            self.pages.choose(span.cache_id, span.adapters)
        if span.inputs and span.cache_id in self.pages:
            self.pages.add_blocks(span.cache_id, (each.block for each in span.inputs if each.block is not None))


# These run no Python code per span.
_cache_id, _start, _length = attrgetter("cache_id"), attrgetter("start"), attrgetter("length")
