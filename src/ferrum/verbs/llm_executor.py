"""`LlmExecutor`: any `DecoderOnlyLLM` as a `ModelExecutor`, for models that know nothing of spans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

from ferrum.contract.decoder_llm import DecoderOnlyLLM, LlmRuntimeConfig, LogitsPolicy, UnifiedItem
from ferrum.contract.model_info import DataType, ExecutorTraits, ModelInfo
from ferrum.contract.sequences import StoreGroup
from ferrum.core import config as limits
from ferrum.core.errors import ConfigError, FerrumError, UnknownSequence, Unsupported, as_step_error
from ferrum.core.memory_plan import MemoryPlan, PoolPart
from ferrum.core.option_fields import check_number
from ferrum.core.snapshots import PrefixCounts
from ferrum.core.span_checks import check_kind, refuse_span
from ferrum.core.step import AdapterUse, Array, Hidden, Outcome, Span, StepBatch, StepOutput
from ferrum.core.values import shown, whole
from ferrum.kernels.reference.reference_math import best_tokens
from ferrum.runtime.fault_isolation import run_isolated, split_refused
from ferrum.runtime.span_results import SpanRows, result_alone
from ferrum.verbs.adapted_llm import AdaptedLLM, MinimalLLM
from ferrum.verbs.model_executor import ModelExecutor

MAX_BATCH_SIZE: Final = 32

_CACHE: Final = "cache"


class LlmExecutor(ModelExecutor):
    """An executor that runs steps through a model's `unified_forward`. A failed step is run again span by span.

    Args:
        model: the model, with all methods or the four of `MinimalLLM`; an `AdaptedLLM` around it adds the others. Only
            this executor may change its sequences from now on.
        info: its description.
        max_batch_size: maximum sequences of one step.
        cache_prefix: see `ModelExecutor`.

    Raises:
        RequestError: an argument of the wrong type or out of bounds; `param` names it.
        ConfigError: `info` differs from the model's `config`.
    """

    def __init__(
        self,
        model: DecoderOnlyLLM | MinimalLLM,
        info: ModelInfo,
        *,
        max_batch_size: int = MAX_BATCH_SIZE,
        cache_prefix: str = "llm-cache",
    ) -> None:
        check_kind(info, ModelInfo, param="info")
        check_number("max_batch_size", max_batch_size, 1, limits.MAX_BATCH_SIZE)
        self._model = AdaptedLLM(model)
        self._sequences = LlmSequences(self._model)
        traits = llm_traits(self._model.config, info, max_batch_size, type(model), self._sequences.capacity_tokens)
        super().__init__(info, traits, self._sequences, cache_prefix=cache_prefix)
        self.warmup()

    def _run(self, batch: StepBatch) -> StepOutput:
        ready, outcomes = split_refused(batch.spans, self._refusal)
        if ready:
            outcomes.update(run_isolated(ready, self._attempt))
        return StepOutput(tuple(outcomes[span.cache_id] for span in batch.spans))

    def _adapters_for(self, cache_id: str, name: str | None) -> tuple[AdapterUse, ...]:
        if name is None:
            raise Unsupported("adapters", f"None for {shown(cache_id)}: a model behind LlmExecutor only takes names")
        return (AdapterUse(name),)

    def _refusal(self, span: Span) -> FerrumError | None:
        """Return why a span cannot run, or None."""
        stored = self._model.length(span.cache_id) if span.cache_id in self._sequences else None
        config = self._model.config
        error = refuse_span(span, stored, vocab_size=config.vocab_size, max_sequence_length=config.max_seq_len)
        if error is None and (span.hidden is not Hidden.NONE or span.attention_weights):
            return Unsupported("hidden states and attention weights", "a model behind LlmExecutor only returns logits")
        if error is None and span.adapters:
            return Unsupported("adapters", "a model behind LlmExecutor takes them by set_lora_adapter")
        if error is None and (span.inputs or span.grids):
            return Unsupported("given inputs", "a model behind LlmExecutor only takes tokens")
        return error

    def _attempt(self, spans: Sequence[Span]) -> dict[str, Outcome]:
        rows = [SpanRows(span) for span in spans]
        items = [UnifiedItem(each.span.cache_id, each.span.tokens, each.span.start, _policy(each)) for each in rows]
        outputs = self._model.unified_forward(items)
        return {each.span.cache_id: self._settle(each, logits) for each, logits in zip(rows, outputs, strict=True)}

    def _settle(self, rows: SpanRows, logits: Array | None) -> Outcome:
        """Return the span's result; rejected drafts are rolled back, and a failed span as a whole."""
        span = rows.span
        try:
            if logits is not None:
                rows.take(len(span.tokens) - len(logits), logits, best_tokens(logits).tolist())
            result = result_alone(rows)
            if result.length < span.end:
                self._model.truncate_kv(span.cache_id, result.length)
        except Exception as error:  # noqa: BLE001 - the others have advanced: any fault fails its own sequence only
            self._take_back(span)
            return as_step_error(error)
        self._sequences.advance(span.cache_id)
        return result

    def _take_back(self, span: Span) -> None:
        """Roll a failed span back, without a new generation: none has counted its tokens yet."""
        if span.cache_id not in self._sequences:
            self._model.release(span.cache_id)
            return
        with suppress(Exception):  # the span's own error is raised; the model has lost the sequence
            self._model.truncate_kv(span.cache_id, span.start)


def _policy(rows: SpanRows) -> LogitsPolicy:
    wanted = rows.logit_rows()
    if not wanted:
        return LogitsPolicy.NONE
    return LogitsPolicy.LAST if wanted.start == len(rows.span.tokens) - 1 else LogitsPolicy.ALL


class LlmSequences:
    """A sequence store over a model with its own cache: names, lengths and generations, but no pages.

    Args:
        model: the model. A sequence that it has lost is unknown here too.
    """

    groups: tuple[StoreGroup, ...] = ()
    used = shared = free_slots = 0

    def __init__(self, model: AdaptedLLM) -> None:
        self._model = model
        self._generations: dict[str, int] = {}
        self._clock = 0

    @property
    def changes(self) -> int:
        """A number that increases with every change: tokens take memory, pages do not exist."""
        return self._clock

    @property
    def capacity_tokens(self) -> int | None:
        """Tokens that the model's cache holds; None without a limit. Raises RequestError for a wrong one."""
        capacity = self._model.kv_capacity()
        return None if capacity is None else whole("kv_capacity", capacity, least=1)

    def __contains__(self, cache_id: str) -> bool:
        return cache_id in self._generations and cache_id in self._model

    def ids(self) -> tuple[str, ...]:
        """Return a copy of the ids: a step may change them while a report counts."""
        return tuple(filter(self._model.__contains__, tuple(self._generations)))

    def advance(self, cache_id: str) -> None:
        """Record that a sequence began or changed."""
        self._clock += 1
        self._generations[cache_id] = self._clock

    def length(self, cache_id: str) -> int:
        """Return the stored tokens. Raises UnknownSequence."""
        self.generation(cache_id)
        return self._model.length(cache_id)

    def generation(self, cache_id: str) -> int:
        """Return a number that every change raises. Raises UnknownSequence."""
        if cache_id not in self:
            raise UnknownSequence(f"unknown sequence {cache_id!r}", param="cache_id")
        return self._generations[cache_id]

    def row(self, cache_id: str, group: str) -> Sequence[int]:
        """Raise Unsupported: there are no pages."""
        raise Unsupported("pages", f"the model has its own cache for {cache_id!r}, without a group {group!r}")

    def adapters(self, cache_id: str) -> tuple[AdapterUse, ...]:
        """Return nothing: the model itself adds what it has chosen. Raises UnknownSequence."""
        self.generation(cache_id)
        return ()

    def choose(self, cache_id: str, adapters: tuple[AdapterUse, ...]) -> None:
        """Let the model use an adapter for a sequence. Raises Unsupported, RequestError."""
        for use in adapters:
            self._model.set_lora_adapter(cache_id, use.key)
        if cache_id not in self:
            self.advance(cache_id)

    def free(self, group: str) -> int:
        """Return the tokens that still fit, without regard to sharing by forks."""
        assert group == _CACHE, "the only part of the plan"
        capacity = self.capacity_tokens
        assert capacity is not None, "a plan without a limit has no part"
        return max(0, capacity - sum(map(self._model.length, self.ids())))

    def truncate(self, cache_id: str, length: int) -> None:
        """Forget the tokens from `length` on. Raises UnknownSequence, RequestError, Unsupported."""
        if length != self.length(cache_id):
            self._model.truncate_kv(cache_id, length)
            self.advance(cache_id)

    def holding(self, cache_ids: Collection[str]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Hold nothing: the model can be truncated to any length."""
        return nullcontext()

    def fork(self, source: str, target: str) -> None:
        """Begin `target` as a copy of `source`. Raises UnknownSequence."""
        self.generation(source)
        self._model.fork(source, target)
        self.advance(target)

    def release(self, cache_id: str) -> None:
        """Forget a sequence; an unknown one is no error."""
        self._model.release(cache_id)
        self._generations.pop(cache_id, None)

    def reset(self) -> None:
        """Forget every sequence."""
        self._model.reset()
        self._generations.clear()

    def prefix_counts(self) -> PrefixCounts:
        """Return zeros: the model keeps no prefixes."""
        return PrefixCounts()


def llm_traits(
    config: LlmRuntimeConfig, info: ModelInfo, max_batch_size: int, kind: type, capacity: int | None
) -> ExecutorTraits:
    """Return the traits of a model of some class and capacity: its memory is estimated from its dtype.

    Without a capacity nothing is planned for tokens: `status` counts the stored ones.
    """
    for name in ("hidden_size", "num_layers", "num_kv_heads", "head_dim", "vocab_size"):
        if (found := getattr(info, name)) != (expected := getattr(config, name)):
            raise ConfigError(f"{name} is {found}, but the model's config has {expected}", param="info")
    pool: tuple[PoolPart, ...] = ()
    if capacity is not None:
        pool = (PoolPart(name=_CACHE, num_pages=capacity, page_size=1, page_bytes=info.kv_bytes_per_token(info.dtype)),)
    weights = info.num_parameters * info.dtype.bits // 8
    return ExecutorTraits(
        backend=kind.__name__,
        numerics_id=f"{kind.__module__}.{kind.__qualname__}",
        kv_dtype=DataType(info.dtype),
        max_batch_size=max_batch_size,
        max_sequence_length=config.max_seq_len,
        memory=MemoryPlan(weights=weights, activations=0, activation_row=0, tables=0, pool=pool),
        paged=False,
        notes=("memory is estimated from the model's configuration",),
    )
