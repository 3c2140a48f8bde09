"""`ModelExecutor`: the named verbs of an executor and its reports, for users, tests and notebooks.

All verbs are views of `submit`, and all-or-none: every check comes before anything runs, and if a span fails, every
sequence of the call returns to its state before. Engines use `StepExecutor` alone.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, Final, TypeVar, cast

from ferrum.contract.decoder_llm import SPAN_WANTS, LogitsPolicy
from ferrum.contract.integer_lists import token_matrix, token_row
from ferrum.contract.model_info import ExecutorTraits, ModelInfo
from ferrum.contract.sequences import SequenceStore, with_adapters
from ferrum.contract.step_executor import ExecutorState, StepExecutor, logger
from ferrum.core.errors import FerrumError, RequestError, Unsupported
from ferrum.core.memory_plan import MemoryRequirements
from ferrum.core.snapshots import CacheMetricsSnapshot, LoraMetricsSnapshot, SpeculationCounts
from ferrum.core.span_checks import check_kind, check_tokens, inputs_of
from ferrum.core.step import AdapterUse, Array, Hidden, Rows, Span, SpanExtras, SpanResult, StepBatch, StepOutput, Want
from ferrum.core.values import kept_length, shown, whole
from ferrum.scheduler.step_plan import fastest_batch_size
from ferrum.verbs.executor_reports import (
    ExecutorCapabilities,
    ExecutorMetrics,
    ExecutorStatus,
    MemoryUse,
    StepRecorder,
    cache_snapshot,
    capabilities,
    memory_efficiency,
    step_seconds,
)
from ferrum.verbs.handles import NamedSequences, check_name
from ferrum.verbs.io_types import (
    LAYERS,
    DecodeInput,
    DecodeOutput,
    KvCacheHandle,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
    UnifiedBatch,
    UnifiedBatchItem,
    as_prompt,
    check_positions,
    real_tokens,
)

Input = TypeVar("Input", PrefillInput, DecodeInput)
Output = TypeVar("Output", PrefillOutput, DecodeOutput)

_HIDDEN: Final[dict[bool | str, Hidden]] = {False: Hidden.NONE, True: Hidden.ALL, LAYERS: Hidden.LAYERS}
"""A value of `return_hidden_states` as a span's `hidden`; each includes those before it."""


class ModelExecutor(StepExecutor):
    """An executor of a model's steps with named verbs, capabilities and reports. The first step warms it up.

    Calls may come from any thread; one step runs at a time. It is a context manager: leaving it shuts the executor
    down. No verb calls another one that a subclass may replace.

    Args:
        info: the model.
        traits: the executor's fixed properties.
        pages: its sequences.
        cache_prefix: new sequences are named `<prefix>-0`, `<prefix>-1`, ...; no name is used twice.

    Attributes:
        sequences: the sequences by name and by handle.
    """

    def __init__(
        self, info: ModelInfo, traits: ExecutorTraits, pages: SequenceStore, *, cache_prefix: str = "llm-cache"
    ) -> None:
        super().__init__(info, traits, pages)
        self.sequences = NamedSequences(info, traits.kv_dtype, pages, cache_prefix)
        self._recorder = StepRecorder()
        self._speculation = SpeculationCounts()
        self._memory = MemoryUse(pages, traits.memory, info.kv_bytes_per_token(traits.kv_dtype))
        self._fastest: int | None = None

    def _adapters_for(self, cache_id: str, name: str | None) -> tuple[AdapterUse, ...]:
        """Return what `set_lora_adapter` chooses for a sequence. Raises Unsupported, RequestError."""
        raise Unsupported("adapters", f"{shown(name)} for {shown(cache_id)}: {type(self).__name__} takes none")

    # Prompts

    def prefill(self, inputs: PrefillInput | Sequence[int]) -> PrefillOutput:
        """Process a prompt, given as an input or token ids, or its next chunk. Raises as `batch_prefill`."""
        prompt = inputs if isinstance(inputs, PrefillInput) else as_prompt(inputs)
        return self._run_all(PrefillInput, [prompt], self._prefill_span, prefill_output)[0]

    def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        """Process several prompts or chunks in one forward pass, bit for bit equal to one by one.

        Raises:
            RequestError: an input that cannot be honoured; `param` names the field. Its subclasses InvalidToken,
                InvalidHandle, UnknownSequence, StaleHandle, ContextOverflow say more.
            KvExhausted: no room in the pool.
            ExecutorInUse: an engine holds the lease.
        """
        return self._run_all(PrefillInput, inputs, self._prefill_span, prefill_output)

    def forward(self, input_ids: Any) -> Array:
        """Return the logits of all positions, float32 [B, S, V], of token ids [B, S].

        No sequence is kept. Raises as `prefill`.
        """
        with self._exclusive():
            spans = [
                Span(self.sequences.passing_id("forward"), 0, row, Want.LOGITS, Rows.ALL)
                for row in token_matrix("input_ids", input_ids)
            ]
            try:
                arrays: list[Any] = [result.logits for result in self._step(spans, "input_ids")]
                return arrays[0].__array_namespace__().stack(arrays)
            finally:
                for span in spans:
                    self.pages.release(span.cache_id)

    # One more token

    def decode(self, inputs: DecodeInput) -> DecodeOutput:
        """Process one more token, at the position of the handle's length. Raises as `batch_decode`."""
        return self._run_all(DecodeInput, [inputs], self._decode_span, decode_output)[0]

    def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Process one more token of each of several sequences in one forward pass; outputs in input order.

        Raises: as `batch_prefill`; also RequestError for a sequence that appears twice.
        """
        return self._run_all(DecodeInput, inputs, self._decode_span, decode_output)

    def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Process N + 1 tokens of one sequence in one pass; row i equals the output of the i-th of N + 1 decodes.

        Args:
            inputs: the last token and N draft tokens, all with the same handle.

        Raises: as `batch_decode`; also RequestError for inputs of different sequences or lengths.
        """
        if not (inputs := inputs_of(DecodeInput, inputs, param="inputs")):
            return []
        with self._exclusive():
            rows = [self._decode_span(each, ahead) for ahead, each in enumerate(inputs)]
            if len({(row.cache_id, row.start) for row in rows}) != 1:
                raise RequestError("all inputs must continue the same sequence at the same length", param="kv_cache")
            weights = [each.return_attention_weights for each in inputs]
            span = replace(
                rows[0],
                tokens=tuple(each.token for each in inputs),
                rows=Rows.ALL,
                hidden=max((row.hidden for row in rows), key=list(_HIDDEN.values()).index),
                extras=SpanExtras(len(inputs) - 1, attention_weights=any(weights)).or_none(),
            )
            (result,) = self._step([span], "input_ids")
            handles = [self.sequences.handle(span.cache_id, span.start + row + 1) for row in range(len(inputs))]
            pairs = zip(handles, inputs, strict=True)
            return [verified_output(result, handle, row, each) for row, (handle, each) in enumerate(pairs)]

    def speculative_decode(
        self, inputs: DecodeInput, draft_tokens: Any, acceptance_threshold: float | None = None
    ) -> SpeculativeDecodeOutput:
        """Process a token and the draft tokens after it, and keep the leading drafts that are accepted.

        Args:
            inputs: the next token.
            draft_tokens: [k] draft tokens after it; without any this is a plain decode.
            acceptance_threshold: None accepts a draft that equals the token of greedy decoding. A threshold t accepts
                it if p(draft) >= t x max p, which changes the text.

        Returns:
            The accepted drafts; the sequence's length is start + 1 + accepted.

        Raises: as `decode`; RequestError for an invalid threshold.
        """
        check_kind(inputs, DecodeInput, param="inputs")
        with self._exclusive():
            drafts = token_row("draft_tokens", draft_tokens)
            if inputs.return_hidden_states or inputs.return_attention_weights:
                raise Unsupported(
                    "speculative_decode with hidden states or attention weights", "it returns logits only"
                )
            check_threshold(acceptance_threshold)
            first = self._decode_span(inputs)
            self._check_tokens((inputs.token,), first.start, "input_ids")
            self._check_tokens(drafts, first.start + 1, "draft_tokens")
            span = replace(
                first, tokens=(inputs.token, *drafts), rows=Rows.ALL, extras=SpanExtras(len(drafts)).or_none()
            )
            with self.sequences.undo.guard([span], settled=not drafts):
                (result,) = self._step([span], "draft_tokens")
                accepted = count_accepted(result.logits, drafts, acceptance_threshold)
                self.pages.truncate(span.cache_id, span.start + 1 + accepted)
            if drafts:
                self._count_drafts(len(drafts), accepted)
            logits, handle = row_of(result.logits, accepted), self.sequences.newest(span.cache_id)
            return SpeculativeDecodeOutput(drafts[:accepted], logits, handle)

    # Any mixture

    def unified_decode(self, batch: UnifiedBatch) -> list[Array | None]:
        """Process any mixture of chunks, decodes and verifications in one pass.

        Returns:
            For each item float32 [1, V] or [S, V] as its policy asks; None for policy NONE or before the final chunk.

        Raises: as `batch_decode`.
        """
        check_kind(batch, UnifiedBatch, param="batch")
        if not (items := inputs_of(UnifiedBatchItem, batch.items, param="items")):
            return []
        with self._exclusive():
            results = self._step([self._unified_span(item) for item in items], "q_tokens")
            return [result.logits for result in results]

    # Sequences

    def handle(self, cache_id: str) -> KvCacheHandle:
        """Return a handle of the sequence as it is now. Raises UnknownSequence, or InvalidHandle for no name."""
        check_name(cache_id)
        return self.sequences.newest(cache_id)

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> KvCacheHandle:
        """Forget the tokens from position `new_len` on; takes any handle of the current generation.

        Raises:
            InvalidHandle, UnknownSequence, StaleHandle: an unusable handle.
            RequestError: `new_len` is no integer, negative or beyond the stored length.
            Unsupported: a sliding window has freed keys that would be needed.
        """
        with self._exclusive():
            self.sequences.check(handle, exact=False)
            return self._truncated(handle.cache_id, new_len)

    def truncate_kv_for_cache_id(self, cache_id: str, new_len: int) -> KvCacheHandle:
        """Truncate a sequence by name, as `truncate_kv`. Raises InvalidHandle for no name."""
        check_name(cache_id)
        with self._exclusive():
            return self._truncated(cache_id, new_len)

    def _truncated(self, cache_id: str, new_len: int) -> KvCacheHandle:
        self.pages.truncate(cache_id, kept_length("new_len", new_len, self.pages.length(cache_id)))
        return self.sequences.newest(cache_id)

    def fork(self, handle: KvCacheHandle) -> KvCacheHandle:
        """Begin an independent continuation, `<base>-clone-<n>`, that shares the stored pages.

        Raises:
            InvalidHandle, UnknownSequence, StaleHandle: an unusable handle.
        """
        with self._exclusive():
            self.sequences.check(handle, exact=True)
            clone = self.sequences.clone_id(handle.cache_id)
            self.pages.fork(handle.cache_id, clone)
            return self.sequences.newest(clone)

    def set_lora_adapter(self, cache_id: str | KvCacheHandle, name: str | None) -> KvCacheHandle:
        """Use a loaded adapter for the next tokens of a sequence; None: the base model. An unknown name begins one.

        Returns a handle of the sequence, with which an empty one is prefilled. Other handles of it stay valid.

        Raises:
            Unsupported: the executor takes no adapters.
            RequestError: no adapter of that name is loaded, or the stored tokens do not allow it. Its subclasses
                InvalidHandle, UnknownSequence say more.
        """
        cache_id = self.sequences.name_of(cache_id)
        with self._exclusive():
            self.sequences.check_new(cache_id, param="cache_id")
            self.pages.choose(cache_id, self._adapters_for(cache_id, name))
            return self.sequences.newest(cache_id)

    def release_cache(self, cache_id: str | KvCacheHandle) -> None:
        """Free a sequence by name or handle; an unknown one is no error. Raises InvalidHandle for anything else."""
        cache_id = self.sequences.name_of(cache_id)
        with self._exclusive(ended=True):
            logger.debug("release %s: %s", cache_id, "known" if cache_id in self.pages else "unknown")
            self.pages.release(cache_id)
            self.sequences.undo.forget(cache_id)

    # From inputs to spans

    def _run_all(
        self,
        kind: type[Input],
        inputs: Sequence[Input],
        to_span: Callable[[Input], Span],
        to_output: Callable[[SpanResult, KvCacheHandle], Output],
    ) -> list[Output]:
        if not (inputs := inputs_of(kind, inputs, param="inputs")):
            return []
        with self._exclusive():
            spans = [to_span(each) for each in inputs]
            results = self._step(spans, "input_ids")
            return [
                to_output(result, self.sequences.newest(span.cache_id))
                for span, result in zip(spans, results, strict=True)
            ]

    def _prefill_span(self, inputs: PrefillInput) -> Span:
        if inputs.batch_size != 1:
            reason = f"must hold one prompt, not {inputs.batch_size}: use batch_prefill with one input each"
            raise RequestError(reason, param="input_ids")
        start = 0
        if inputs.kv_cache is not None:
            self.sequences.check(inputs.kv_cache, exact=True)
            start = inputs.kv_cache.sequence_length
        real = real_tokens(inputs, start)
        tokens = inputs.input_ids[0][real]
        self._check_options(inputs, range(start, start + len(tokens)), real)
        want, rows = SPAN_WANTS[LogitsPolicy(inputs.logits)]
        return Span(
            inputs.kv_cache.cache_id if inputs.kv_cache else self.sequences.new_id(),
            start,
            tokens,
            want,
            rows,
            _HIDDEN[inputs.return_hidden_states],
            extras=SpanExtras(attention_weights=inputs.return_attention_weights).or_none(),
        )

    def _decode_span(self, inputs: DecodeInput, ahead: int = 0) -> Span:
        """Return the span of one token, `ahead` tokens after the handle's length."""
        self.sequences.check(inputs.kv_cache, exact=True)
        start = inputs.kv_cache.sequence_length
        self._check_options(inputs, range(start + ahead, start + ahead + 1))
        return Span(
            inputs.kv_cache.cache_id,
            start,
            (inputs.token,),
            Want.LOGITS,
            hidden=_HIDDEN[inputs.return_hidden_states],
            extras=SpanExtras(attention_weights=inputs.return_attention_weights).or_none(),
        )

    def _unified_span(self, item: UnifiedBatchItem) -> Span:
        if isinstance(item.seq_id, str):
            cache_id = item.seq_id
            self.sequences.check_new(cache_id, param="seq_id")
        else:
            self.sequences.check(item.seq_id, exact=True)
            cache_id = item.seq_id.cache_id
        stored = self.pages.length(cache_id) if cache_id in self.pages else 0
        if item.pos_offset != stored:
            raise RequestError(f"must be the stored length {stored}, not {item.pos_offset}", param="pos_offset")
        want, rows = SPAN_WANTS[item.policy]
        adapters = () if item.adapter is None else self._adapters_for(cache_id, item.adapter)
        return Span(cache_id, stored, tuple(item.q_tokens), want, rows, extras=SpanExtras(adapters=adapters).or_none())

    def _check_options(self, inputs: PrefillInput | DecodeInput, stored: range, real: slice = slice(None)) -> None:
        """Refuse positions other than where the tokens will be stored, and what the kernels do not keep."""
        check_positions(inputs, stored, real)
        reason = f'{self.traits.backend} does not keep them: load the model with kernels="reference"'
        if inputs.return_attention_weights and not self.traits.attention_weights:
            raise Unsupported("return_attention_weights", reason)
        if inputs.return_hidden_states == LAYERS and not self.traits.layer_states:
            raise Unsupported(f"return_hidden_states={LAYERS!r}", reason)

    def _step(self, spans: Sequence[Span], param: str) -> list[SpanResult]:
        """Run checked spans, all or none; `param` is the caller's name for their tokens."""
        if len(spans) > (most := self.traits.largest_batch):
            reason = f"{len(spans)} sequences exceed max_batch_size = {most}"
            raise RequestError(reason, param=param)
        if len({span.cache_id for span in spans}) < len(spans):
            raise RequestError("a sequence appears twice", param="kv_cache")
        for span in spans:
            self._check_tokens(span.tokens, span.start, param)
        spans = [with_adapters(span, self.pages) for span in spans]
        return self.sequences.undo.all_or_none(spans, lambda batch: self.submit(batch).result())

    def _check_tokens(self, tokens: Sequence[int], start: int, param: str) -> None:
        """Refuse unknown token ids, and tokens beyond the context, after `start` stored tokens."""
        longest = self.traits.longest_sequence
        check_tokens(tokens, start, vocab_size=self.info.vocab_size, max_sequence_length=longest, param=param)

    # Capabilities

    def capabilities(self) -> ExecutorCapabilities:
        """Return what this executor can do."""
        return capabilities(self.info, self.traits)

    @property
    def memory_requirements(self) -> MemoryRequirements:
        """The formula that bounds the memory for work of a given size."""
        return self.capabilities().memory_requirements

    def supports_batch_size(self, size: int) -> bool:
        """Whether a step can hold this many new sequences now, a free page for each. Raises RequestError."""
        return 1 <= whole("size", size) <= self._max_sequences()

    def optimal_batch_size(self) -> int:
        """Return the new sequences per step beyond which this machine's throughput no longer grows; 0 without room.

        It is at most what `supports_batch_size` allows now. The first call with room measures a few short decode steps.
        The result is kept unless too few pages were free to try larger batches. Raises ExecutorInUse if a measurement
        is needed.
        """
        if self._fastest is not None or not self._max_sequences():
            return min(self._fastest or 0, self._max_sequences())
        with self._exclusive():
            self.warmup()
            room = self._max_sequences()
            fastest = fastest_batch_size(partial(step_seconds, self._timed, self.sequences), room)
            if room == self.traits.largest_batch or 2 * fastest <= room:
                self._fastest = fastest
            return fastest

    def _max_sequences(self) -> int:
        return 0 if self._ended else min([self.traits.max_batch_size, *self._free_pages()])

    def _free_pages(self) -> list[int]:
        """Return the free pages of each group, and how many sequences the free slots of states suffice for."""
        states = self.memory_plan.states
        slots = [] if states is None else [self.pages.free_slots // states.per_sequence]
        return [*slots, *(self.pages.free(part.name) for part in self.memory_plan.pool)]

    # Reports

    def status(self) -> ExecutorStatus:
        """Return the executor's status now, without waiting for a step."""
        state, last, metrics = self._lifecycle.state, self._last, self.metrics()
        return ExecutorStatus(
            state=state,
            is_ready=state in (ExecutorState.READY, ExecutorState.BUSY),
            current_batch_size=self._batch_size,
            prefill_operations=metrics.prefill_operations,
            decode_operations=metrics.decode_operations,
            avg_prefill_time_ms=metrics.avg_prefill_latency,
            avg_decode_time_ms=metrics.avg_decode_latency,
            memory_usage=self._memory.usage(freed=self._ended),
            last_operation=None if last is None else time.monotonic() - last,
            backend=self.traits.backend,
            numerics_id=self.traits.numerics_id,
            notes=self.traits.notes,
        )

    def metrics(self) -> ExecutorMetrics:
        """Return counts and speeds."""
        efficiency = memory_efficiency(self.pages, self.memory_plan)
        return self._recorder.metrics(max_batch_size=self.traits.largest_batch, memory_efficiency=efficiency)

    def cache_metrics_snapshot(self) -> CacheMetricsSnapshot:
        """Return the counters of the KV cache and of speculation."""
        counted = cache_snapshot(self.pages, self._speculation)
        return replace(counted, total_pages=0) if self._ended else counted

    def lora_metrics_snapshot(self) -> LoraMetricsSnapshot:
        """Return the counters of adapters, by their keys."""
        return LoraMetricsSnapshot()

    def _count(self, batch: StepBatch, output: StepOutput) -> None:
        super()._count(batch, output)
        served = []
        for span, result in zip(batch.spans, output.results, strict=True):
            if isinstance(result, FerrumError):
                continue
            served.append(span)
            if span.extras is not None and span.drafts and span.want is Want.TOKEN:
                self._count_drafts(span.drafts, result.accepted)
        self._recorder.record(served, output.seconds)
        self._memory.observe()

    def _count_drafts(self, drafted: int, accepted: int) -> None:
        self._speculation = self._speculation.plus(drafted, accepted)


# From results to outputs


def prefill_output(result: SpanResult, handle: KvCacheHandle) -> PrefillOutput:
    """Return the output of a prompt or chunk."""
    assert result.logits is not None, "the span wanted them"
    hidden = None if result.hidden is None else _by_layer(result.hidden, lambda states: states[None])
    return PrefillOutput(result.logits[None], handle, hidden, result.attention_weights)


def decode_output(result: SpanResult, handle: KvCacheHandle) -> DecodeOutput:
    """Return the output of one token."""
    hidden = None if result.hidden is None else _by_layer(result.hidden, lambda states: states)
    return DecodeOutput(result.logits, handle, hidden, result.attention_weights)


def verified_output(result: SpanResult, handle: KvCacheHandle, row: int, inputs: DecodeInput) -> DecodeOutput:
    """Return the output of row `row` of a verification, as if its token had been decoded alone."""
    weights, length = None, handle.sequence_length
    if inputs.return_attention_weights and result.attention_weights is not None:
        weights = tuple(layer[:, row : row + 1, :length] for layer in result.attention_weights)
    hidden = None
    if (states := result.hidden) is not None and inputs.return_hidden_states:
        if states.ndim == 3 and inputs.return_hidden_states != LAYERS:
            states = states[-1]  # another input of this verification asked for all layers
        hidden = _by_layer(states, lambda layer: row_of(layer, row))
    return DecodeOutput(row_of(result.logits, row), handle, hidden, weights)


def _by_layer(states: Array, change: Callable[[Array], Array]) -> Array | tuple[Array, ...]:
    """Return changed states: of [rows, H] one array, of [L + 1, rows, H] a tuple."""
    return tuple(map(change, states)) if states.ndim == 3 else change(states)


def row_of(array: Array, row: int) -> Array:
    """Return row `row` of [rows, N] as [1, N]."""
    return array[row : row + 1]


# Accepted drafts


def check_threshold(threshold: object) -> None:
    """Raise RequestError for an invalid threshold of lossy verification; None is exact verification."""
    if threshold is None:
        return
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= cast(float, threshold) <= 1:
        raise RequestError(f"must be a number between 0 and 1, got {shown(threshold)}", param="acceptance_threshold")


def count_accepted(logits: Array, drafts: Sequence[int], threshold: float | None = None) -> int:
    """Return how many leading drafts are accepted.

    Args:
        logits: float32 [k + 1, V] or [k, V], finite.
        drafts: k draft tokens.
        threshold: None accepts a draft that equals the token of greedy decoding: the lowest id of the largest logit. A
            number t accepts it if p(draft) >= t x max p in float32: 0 every draft, 1 a most likely one.
    """
    accepted = 0
    while accepted < len(drafts) and _is_accepted(logits[accepted], drafts[accepted], threshold):
        accepted += 1
    return accepted


def _is_accepted(row: Array, draft: int, threshold: float | None) -> bool:
    if threshold is None:
        return int(row.argmax()) == draft
    return _float32(math.exp(float(row[draft]) - float(row.max()))) >= _float32(threshold)


def _float32(number: float) -> float:
    """Return the float32 that is nearest to a number."""
    rounded: float = struct.unpack("f", struct.pack("f", float(number)))[0]
    return rounded
