"""An executor's reports: capabilities, best batch size, counts and speed of its last steps, status, and its pool.

Only the measurement of the best batch size runs steps; the others change nothing and take no lock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from ferrum.contract.model_info import DataType, Device, ExecutorTraits, ModelInfo
from ferrum.contract.sequences import SequenceStore
from ferrum.contract.step_executor import ExecutorState
from ferrum.core.errors import FerrumError, KvExhausted, UnknownSequence
from ferrum.core.json_record import JsonRecord
from ferrum.core.memory_plan import MemoryPlan, MemoryRequirements, memory_requirements
from ferrum.core.snapshots import CacheMetricsSnapshot, SpeculationCounts
from ferrum.core.step import Span, StepBatch, StepOutput, Want
from ferrum.verbs.handles import NamedSequences

WINDOW: Final = 1024
"""Steps in the window of latencies, throughput and utilisation."""

_PROBES: Final = 3
"""Measurements of a batch size, of which the fastest counts."""

# Capabilities


class AttentionType(StrEnum):
    """Kinds of attention: the first three are how heads are shared, the others how keys are stored and read."""

    MULTI_HEAD = "MultiHead"
    MULTI_QUERY = "MultiQuery"
    GROUPED_QUERY = "GroupedQuery"
    FLASH = "Flash"
    PAGED = "Paged"
    SLIDING_WINDOW = "SlidingWindow"
    LATENT = "Latent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorCapabilities(JsonRecord):
    """The capabilities of an executor.

    Attributes:
        max_batch_size: maximum sequences of one step, each of which needs a page of the pool.
        max_sequence_length: maximum tokens of a sequence: the context, but at most what the pool holds.
        attention_mechanisms: how heads are shared, and how keys are stored and read.
        supports_dynamic_batching: several sequences share a forward pass.
        supports_continuous_batching: sequences join and leave between any two steps.
        supports_speculative_decoding: a span may carry drafts.
        supports_tensor_parallelism, supports_pipeline_parallelism: several ranks share every matrix, or the layers.
        supported_dtypes, supported_devices: formats and devices that the model can be loaded in.
        memory_requirements: the formula of its memory.
    """

    max_batch_size: int
    max_sequence_length: int
    attention_mechanisms: frozenset[AttentionType]
    supports_dynamic_batching: bool
    supports_continuous_batching: bool
    supports_speculative_decoding: bool
    supports_tensor_parallelism: bool
    supports_pipeline_parallelism: bool
    supported_dtypes: frozenset[DataType]
    supported_devices: frozenset[Device]
    memory_requirements: MemoryRequirements


def capabilities(info: ModelInfo, traits: ExecutorTraits) -> ExecutorCapabilities:
    """Return the capabilities of an executor of this model with these traits."""
    return ExecutorCapabilities(
        max_batch_size=traits.largest_batch,
        max_sequence_length=traits.longest_sequence,
        attention_mechanisms=_mechanisms(info, traits),
        supports_dynamic_batching=traits.largest_batch > 1,
        # Any span may begin, end or pause its sequence; a draft is one more token of a span.
        supports_continuous_batching=True,
        supports_speculative_decoding=traits.longest_sequence > 1,
        supports_tensor_parallelism=traits.ranks > 1,
        supports_pipeline_parallelism=False,  # each rank has a part of all layers
        supported_dtypes=traits.dtypes | {info.dtype},
        supported_devices=frozenset({info.device}),
        memory_requirements=memory_requirements(
            traits.memory, info.kv_bytes_per_token(traits.kv_dtype), info.num_layers, traits.max_batch_size
        ),
    )


def head_sharing(num_heads: int, num_kv_heads: int) -> AttentionType:
    """Return how query heads share KV heads: one each, one for all (Shazeer 2019), or groups (Ainslie et al. 2023)."""
    if num_heads == num_kv_heads:
        return AttentionType.MULTI_HEAD
    return AttentionType.MULTI_QUERY if num_kv_heads == 1 else AttentionType.GROUPED_QUERY


def _mechanisms(info: ModelInfo, traits: ExecutorTraits) -> frozenset[AttentionType]:
    if not info.num_heads:
        return frozenset()
    found = {head_sharing(info.num_heads, info.num_kv_heads)}
    if traits.paged:
        found.add(AttentionType.PAGED)
    if traits.windows:
        found.add(AttentionType.SLIDING_WINDOW)
    if traits.latent:
        found.add(AttentionType.LATENT)
    if traits.flash:
        found.add(AttentionType.FLASH)
    return frozenset(found)


# The best batch size


def step_seconds(run: Callable[[StepBatch], StepOutput], sequences: NamedSequences, size: int) -> float:
    """Return the seconds of a step of `size` one-token sequences, the best of a few; infinite without room.

    Args:
        run: runs a step.
        sequences: of the executor; none is left behind.
        size: number of sequences.
    """
    names = [sequences.passing_id("probe") for _ in range(size)]
    spans = tuple(Span(name, 0, (0,), Want.LOGITS) for name in names)
    best = float("inf")
    for _ in range(_PROBES):
        output = run(StepBatch(spans))
        for name in names:
            sequences.pages.release(name)
        errors = [outcome for outcome in output.results if isinstance(outcome, FerrumError)]
        if any(isinstance(error, KvExhausted) for error in errors):
            break
        if errors:
            raise errors[0]
        best = min(best, output.seconds)
    return best


# Counts and speed


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorMetrics(JsonRecord):
    """An executor's counts since its start, and its speed over the last 1,024 steps.

    An operation is a served span. It is a decode if its sequence existed before and it processes one token besides
    drafts, else a prefill. A step is a prefill step if it has at least one prefill.

    Attributes:
        total_operations: prefill_operations + decode_operations.
        prefill_operations, decode_operations: served spans of that kind.
        avg_prefill_latency, avg_decode_latency: mean duration of the window's steps of that kind, in ms; 0 without one.
        p95_prefill_latency, p95_decode_latency: their 95th percentile by nearest rank: the value at the rank ceil(0.95
            x n), in ms.
        throughput_tps: tokens processed in the window's steps / sum of their durations in seconds.
        memory_efficiency: used / allocated bytes of the pages in use, in [0, 1]. A shared page counts once; tokens
            behind a sliding window are not stored.
        batch_utilization: mean sequences per step of the window / `max_batch_size`.
    """

    total_operations: int
    prefill_operations: int
    decode_operations: int
    avg_prefill_latency: float
    avg_decode_latency: float
    p95_prefill_latency: float
    p95_decode_latency: float
    throughput_tps: float
    memory_efficiency: float
    batch_utilization: float


class StepTime(NamedTuple):
    """A finished step: its served spans by kind, their tokens, and its duration."""

    prefills: int
    decodes: int
    tokens: int
    seconds: float


class StepRecorder:
    """A collector of finished steps. One thread at a time may record; any thread may read the metrics.

    It has no lock, since a forked process would wait forever for a lock that another thread held.
    """

    def __init__(self) -> None:
        self._operations = (0, 0)
        self._window: deque[StepTime] = deque(maxlen=WINDOW)

    def record(self, served: Sequence[Span], seconds: float) -> None:
        """Record a step: its spans with a result, and its duration."""
        decodes = tokens = 0
        for span in served:
            count = len(span.tokens)
            tokens += count
            decodes += span.start > 0 and count == 1 + (0 if span.extras is None else span.extras.drafts)
        prefills = len(served) - decodes
        if served:
            self._operations = (self._operations[0] + prefills, self._operations[1] + decodes)
            self._window.append(StepTime(prefills, decodes, tokens, seconds))

    def metrics(self, *, max_batch_size: int, memory_efficiency: float) -> ExecutorMetrics:
        """Return the metrics now."""
        steps = self._window.copy()  # atomic, unlike an iteration
        prefills, decodes = self._operations
        prefill_ms = sorted(1e3 * step.seconds for step in steps if step.prefills)
        decode_ms = sorted(1e3 * step.seconds for step in steps if not step.prefills)
        seconds = math.fsum(step.seconds for step in steps)
        return ExecutorMetrics(
            total_operations=prefills + decodes,
            prefill_operations=prefills,
            decode_operations=decodes,
            avg_prefill_latency=_mean(prefill_ms),
            avg_decode_latency=_mean(decode_ms),
            p95_prefill_latency=percentile(prefill_ms, 95),
            p95_decode_latency=percentile(decode_ms, 95),
            throughput_tps=sum(step.tokens for step in steps) / seconds if seconds else 0.0,
            memory_efficiency=memory_efficiency,
            batch_utilization=_mean([step.prefills + step.decodes for step in steps]) / max_batch_size,
        )


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values) if values else 0.0


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the nearest-rank percentile of ascending values, at rank ceil(percent / 100 x n); 0 without any."""
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else 0.0


# Status and memory


@dataclass(frozen=True, slots=True)
class ExecutorMemoryUsage(JsonRecord):
    """Memory of an executor, in bytes.

    Attributes:
        allocated_bytes: everything held: weights, KV pool, buffers, tables.
        used_bytes: the same without the free pages of the pool.
        peak_bytes: the maximum of used_bytes so far.
        utilization_percent: 100 x used_bytes / allocated_bytes.
    """

    allocated_bytes: int
    used_bytes: int
    peak_bytes: int
    utilization_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStatus(JsonRecord):
    """An executor's status at one moment. The JSON of the Rust engine has the fields up to `memory_usage`.

    Attributes:
        state: Initializing, Ready, Busy, Error or Shutdown.
        is_ready: whether it takes steps (Ready or Busy).
        current_batch_size: sequences of the running step, 0 between steps.
        prefill_operations, decode_operations: spans served since the start, as `ExecutorMetrics` counts them.
        avg_prefill_time_ms, avg_decode_time_ms: as in `ExecutorMetrics`.
        memory_usage: its memory; nothing is allocated after the shutdown.
        last_operation: seconds since the last step ended, None before the first.
        backend: the kernels in use.
        numerics_id: equal ids give equal bits.
        notes: warnings about how the executor was built.
    """

    state: ExecutorState
    is_ready: bool
    current_batch_size: int
    prefill_operations: int
    decode_operations: int
    avg_prefill_time_ms: float
    avg_decode_time_ms: float
    memory_usage: ExecutorMemoryUsage
    last_operation: float | None = None
    backend: str = ""
    numerics_id: str = ""
    notes: tuple[str, ...] = ()


class MemoryUse:
    """The bytes of an executor without the free pages and slots of its pool, and the most so far.

    Args:
        pages: its sequences.
        plan: its memory.
        token_bytes: bytes of a stored token, which a store without a limit allocates as it grows.
    """

    def __init__(self, pages: SequenceStore, plan: MemoryPlan, token_bytes: int) -> None:
        self._pages = pages
        self._token_bytes = token_bytes
        self._total = plan.total
        self._page_bytes = [(part.name, part.page_bytes) for part in plan.pool]
        self._slot_bytes = 0 if plan.states is None else plan.states.slot_bytes
        self._peak = 0
        self._changes = -1

    def observe(self) -> None:
        """Note the bytes in use after a step, if the pool has changed."""
        changes = self._pages.changes
        if changes != self._changes:
            self._changes, self._peak = changes, max(self._peak, self._used())

    def usage(self, *, freed: bool) -> ExecutorMemoryUsage:
        """Return a report; nothing is held once the executor's memory is `freed`."""
        grown = self._grown()
        held, used = (0, 0) if freed else (self._total + grown, self._used())
        return ExecutorMemoryUsage(held, used, max(self._peak, used), 100.0 * used / held if held else 0.0)

    def _used(self) -> int:
        slots = self._pages.free_slots * self._slot_bytes if self._slot_bytes else 0
        free = sum(self._pages.free(name) * each for name, each in self._page_bytes)
        return self._total + self._grown() - slots - free

    def _grown(self) -> int:
        """Return the bytes of tokens that are not planned for."""
        return stored_tokens(self._pages) * self._token_bytes if self._pages.capacity_tokens is None else 0


# The pool


def memory_efficiency(pages: SequenceStore, plan: MemoryPlan) -> float:
    """Return used / allocated bytes of the pages in use, in [0, 1]; 0 without any.

    A page that several sequences share counts once. Pages that left a sliding window are not stored.
    """
    used = held = 0.0
    for group, part in zip(pages.groups, plan.pool, strict=False):
        filled: dict[int, int] = {}
        for cache_id in pages.ids():
            with suppress(UnknownSequence):  # it may be released meanwhile
                length = pages.length(cache_id)
                for index, page in enumerate(pages.row(cache_id, group.name)):
                    tokens = min(group.page_size, length - index * group.page_size)
                    if page >= 0 and tokens > filled.get(page, 0):
                        filled[page] = tokens
        in_use = max(len(filled), group.num_pages - pages.free(group.name))
        used += part.page_bytes * sum(filled.values()) / group.page_size
        held += part.page_bytes * in_use
    return used / held if held else 0.0


def stored_tokens(pages: SequenceStore) -> int:
    """Return the tokens of all sequences."""
    tokens = 0
    for cache_id in pages.ids():
        with suppress(UnknownSequence):
            tokens += pages.length(cache_id)
    return tokens


def cache_snapshot(pages: SequenceStore, speculation: SpeculationCounts) -> CacheMetricsSnapshot:
    """Return the counters of the KV cache and of speculation."""
    prefix = pages.prefix_counts()
    return CacheMetricsSnapshot(
        total_pages=sum(group.num_pages for group in pages.groups),
        used_pages=pages.used,
        shared_pages=pages.shared,
        sequences=len(pages.ids()),
        stored_tokens=stored_tokens(pages),
        cached_pages=prefix.cached_pages,
        evicted_pages=prefix.evicted_pages,
        prefix_query_tokens=prefix.query_tokens,
        prefix_hit_tokens=prefix.hit_tokens,
        restored_pages=prefix.restored_pages,
        external_query_tokens=prefix.external_query_tokens,
        external_hit_tokens=prefix.external_hit_tokens,
        state_slots=prefix.state_slots,
        state_bytes=prefix.state_bytes,
        used_slots=prefix.used_slots,
        snapshots=prefix.snapshots,
        snapshot_hits=prefix.snapshot_hits,
        evicted_snapshots=prefix.evicted_snapshots,
        speculation=speculation,
    )
