"""Prometheus metrics under vLLM's names and buckets. Every definition is in docs/metrics.md.

The observer looks on at the engine's border, so that a client who reads slowly does not change what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ferrum.core.config import MAX_DRAFT
from ferrum.core.errors import NonFiniteLogits
from ferrum.core.snapshots import SpeculationCounts
from ferrum.core.types import FinishReason, Request
from ferrum.engine.messages import EngineInfo, EngineStats
from ferrum.engine.request_output import Delta
from ferrum.server.metrics.fast_counters import QuickCounter, QuickHistogram

LABELS: Final = ("model_name", "engine")
ENGINE: Final = "0"
"""There is one."""

SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")
SOURCES: Final = ("local_compute", "local_cache_hit", "external_kv_transfer")
"""Where the keys and values of a prompt's tokens came from."""

FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
CHOICE_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
STEP_BUCKETS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTION_BUCKETS: Final = (0, 1, 2, 5, 10, 20)

FINISHES: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.DEADLINE: "abort",
    FinishReason.ERROR: "error",
}
"""How they are counted; vLLM knows no deadlines."""


Labelled = TypeVar("Labelled", Counter, Gauge)
"""A metric with labels of its own."""


def token_buckets(context: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to the context."""
    return tuple(_one_two_five(context))


def _one_two_five(limit: int) -> Iterator[int]:
    decade = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * decade > limit:
                return
            yield mantissa * decade
        decade *= 10


@dataclass(slots=True)
class _Times:
    """What is known of a choice so far, in monotonic seconds."""

    first: float | None = None
    last: float | None = None
    tokens: int = 0


@dataclass(slots=True)
class _Seen:
    """What is known of a request so far.

    Attributes:
        begun: whether any choice has a token.
        longest: tokens of the longest choice that has ended.
    """

    choices: dict[int, _Times] = field(default_factory=dict)
    begun: bool = False
    longest: int = 0


class Metrics:
    """Observes an engine (see `Observer`).

    Args:
        registry: where the metrics are registered, all at zero.
        model: the model's name for clients.
        info: of the engine.
        context: most tokens of prompt and output together.
        clock: monotonic seconds, that of the requests' arrivals.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        model: str,
        info: EngineInfo,
        context: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._names = (model, ENGINE)
        self._clock = clock
        self._stats = EngineStats()
        self._seen: dict[str, _Seen] = {}
        self._add_gauges(info)
        self._add_counters()
        self._add_sizes(token_buckets(context))
        self._add_latencies()

    def _labels(self) -> dict[str, str]:
        return dict(zip(LABELS, self._names, strict=True))

    def _gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        gauge = Gauge(f"vllm:{name}", help, LABELS, registry=self._registry)
        gauge.labels(*self._names).set_function(read)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(f"vllm:{name}", help, LABELS, registry=self._registry).labels(*self._names)

    def _each(
        self, kind: Callable[..., Labelled], name: str, help: str, label: str, values: Iterable[str]
    ) -> dict[str, Labelled]:
        """One metric for each value of a label."""
        metric = kind(f"vllm:{name}", help, (*LABELS, label), registry=self._registry)
        return {value: metric.labels(*self._names, value) for value in values}

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", help, LABELS, buckets=buckets, registry=self._registry)
        return histogram.labels(*self._names)

    def _add_gauges(self, info: EngineInfo) -> None:
        self._gauge("num_requests_running", "Sequences that hold pages.", lambda: self._stats.running)
        self._gauge("num_requests_waiting", "Sequences that wait for pages.", lambda: self._stats.waiting)
        reasons = ("capacity", "deferred")
        waiting = self._each(
            Gauge, "num_requests_waiting_by_reason", "Sequences that wait, and why.", "reason", reasons
        )
        waiting["capacity"].set_function(lambda: self._stats.waiting)
        self._gauge("kv_cache_usage_perc", "Part of the KV pages in use, 0 to 1.", lambda: self._stats.kv_usage)
        states = self._each(Gauge, "engine_sleep_state", "1: the engine's state.", "sleep_state", SLEEP_STATES)
        states["awake"].set(1)
        labels = (*LABELS, "block_size", "num_gpu_blocks", "enable_prefix_caching")
        size = info.page_size or 1
        cache = Gauge("vllm:cache_config_info", "The KV pool.", labels, registry=self._registry)
        cache.labels(*self._names, str(size), str(info.kv_capacity // size), str(info.prefix_cache)).set(1)

    def _add_counters(self) -> None:
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that were begun.")
        self._cached_tokens = self._counter("prompt_tokens_cached", "Prompt tokens that came from a cache.")
        self._by_source = self._each(
            Counter, "prompt_tokens_by_source", "Prompt tokens by where they came from.", "source", SOURCES
        )
        self._queried = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found there.")
        for name in ("queries", "hits"):
            self._counter(f"mm_cache_{name}", "No images are served.")
        self._queried_outside = self._counter(
            "external_prefix_cache_queries", "Prompt tokens looked up in host buffers and on disk."
        )
        self._hits_outside = self._counter("external_prefix_cache_hits", "Prompt tokens found there.")
        self._drafts = self._counter("spec_decode_num_drafts", "Drafts that were verified.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Tokens of these drafts.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Those of them that were right.")
        self._accepted_at = self._each(
            Counter,
            "spec_decode_num_accepted_tokens_per_pos",
            "Right tokens by their place in the draft.",
            "position",
            map(str, range(MAX_DRAFT)),
        )
        self._generated = QuickCounter("vllm:generation_tokens", "Generated tokens.", self._labels(), self._registry)
        self._preemptions = self._counter("num_preemptions", "Sequences that lost their pages.")
        self._corrupted = self._counter("corrupted_requests", "Choices that ended because of a NaN.")
        reasons = ("stop", "length", "abort", "error", "repetition")
        self._success = self._each(Counter, "request_success", "Choices that ended.", "finished_reason", reasons)

    def _add_sizes(self, tokens: tuple[int, ...]) -> None:
        self._size_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a choice.", tokens)
        self._size_generated = self._histogram("request_generation_tokens", "Tokens of a choice.", tokens)
        self._size_longest = self._histogram(
            "request_max_num_generation_tokens", "Tokens of the longest choice of a request.", tokens
        )
        self._size_limit = self._histogram("request_params_max_tokens", "max_tokens of a request.", tokens)
        self._size_n = self._histogram("request_params_n", "n of a request.", CHOICE_BUCKETS)
        self._size_computed = self._histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens of a request that came from no cache.", tokens
        )
        self._size_step = self._histogram("iteration_tokens_total", "Tokens of a step.", STEP_BUCKETS)
        self._size_preemptions = self._histogram(
            "request_num_preemptions", "How often a choice lost its pages.", PREEMPTION_BUCKETS
        )

    def _add_latencies(self) -> None:
        self._to_first = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS
        )
        self._between = QuickHistogram(
            "vllm:inter_token_latency_seconds",
            "From token to token.",
            self._labels(),
            TOKEN_BUCKETS,
            self._registry,
        )
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time from token to token of a choice.", TOKEN_BUCKETS
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", REQUEST_BUCKETS)
        self._queued = self._histogram(
            "request_queue_time_seconds", "From arrival to the last time that it left the queue.", REQUEST_BUCKETS
        )
        self._inference = self._histogram(
            "request_inference_time_seconds", "From leaving the queue to the last token.", REQUEST_BUCKETS
        )
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "From leaving the queue to the first token.", REQUEST_BUCKETS
        )
        self._decode = self._histogram(
            "request_decode_time_seconds", "From the first token to the last one.", REQUEST_BUCKETS
        )

    def step(self, stats: EngineStats) -> None:
        """See `Observer`."""
        self._preemptions.inc(stats.preemptions - self._stats.preemptions)
        before, after = self._stats.prefixes, stats.prefixes
        self._queried.inc(after.query_tokens - before.query_tokens)
        self._hits.inc(after.hit_tokens - before.hit_tokens)
        self._queried_outside.inc(after.external_query_tokens - before.external_query_tokens)
        self._hits_outside.inc(after.external_hit_tokens - before.external_hit_tokens)
        self._count_drafts(self._stats.speculation, stats.speculation)
        self._stats = stats
        for tokens in stats.step_tokens:
            self._size_step.observe(tokens)

    def _count_drafts(self, before: SpeculationCounts, after: SpeculationCounts) -> None:
        self._drafts.inc(after.drafts - before.drafts)
        self._drafted.inc(after.draft_tokens - before.draft_tokens)
        self._accepted.inc(after.accepted_tokens - before.accepted_tokens)
        if after.accepted_tokens > before.accepted_tokens:
            places = zip_longest(after.accepted_per_position, before.accepted_per_position, fillvalue=0)
            for place, (count, earlier) in enumerate(places):
                self._accepted_at[str(place)].inc(count - earlier)

    def delta(self, request: Request, delta: Delta) -> None:
        """See `Observer`."""
        now = self._clock()
        seen = self._seen.get(request.request_id) or self._seen.setdefault(request.request_id, _Seen())
        times = seen.choices.get(delta.index) or seen.choices.setdefault(delta.index, _Times())
        if delta.token_ids:
            if not seen.begun:
                seen.begun = True
                self._prompt_tokens.inc(len(request.prompt))
            self._count_tokens(request, times, len(delta.token_ids), now)
        if delta.finish_reason is not None:
            self._count_choice(request, delta, times, now)
            seen.longest = max(seen.longest, times.tokens)
        if delta.usage is not None:
            del self._seen[request.request_id]
            self._count_request(request, seen, delta)

    def _count_tokens(self, request: Request, times: _Times, count: int, now: float) -> None:
        """Tokens of one step came at one moment; the time since the last one is shared among them."""
        self._generated.inc(count)
        if times.last is None:
            times.first = now
            self._to_first.observe(now - request.arrival)
            self._between.observe(0.0, count - 1)
        else:
            self._between.observe((now - times.last) / count, count)
        times.last = now
        times.tokens += count

    def _count_choice(self, request: Request, delta: Delta, times: _Times, now: float) -> None:
        assert delta.finish_reason is not None
        self._success[FINISHES[delta.finish_reason]].inc()
        if isinstance(delta.error, NonFiniteLogits):
            self._corrupted.inc()
        self._size_prompt.observe(len(request.prompt))
        self._size_generated.observe(times.tokens)
        self._size_preemptions.observe(delta.preemptions)
        self._whole.observe(now - request.arrival)
        if delta.scheduled is not None:
            self._queued.observe(delta.scheduled - request.arrival)
            if times.first is not None and times.last is not None:
                self._prefill.observe(times.first - delta.scheduled)
                self._inference.observe(times.last - delta.scheduled)
        if times.first is not None and times.last is not None:
            self._decode.observe(times.last - times.first)
            if times.tokens > 1:
                self._per_token.observe((times.last - times.first) / (times.tokens - 1))

    def _count_request(self, request: Request, seen: _Seen, end: Delta) -> None:
        assert end.usage is not None
        cached = end.usage.cached_tokens
        scored = request.params.max_tokens == 0 and end.finish_reason is FinishReason.LENGTH
        if scored:
            self._prompt_tokens.inc(len(request.prompt))
        if seen.begun or scored:
            self._by_source["local_cache_hit"].inc(cached)
            self._by_source["local_compute"].inc(len(request.prompt) - cached)
            self._cached_tokens.inc(cached)
        self._size_computed.observe(len(request.prompt) - cached)
        self._size_longest.observe(seen.longest)
        self._size_n.observe(request.params.n)
        if request.params.max_tokens is not None:
            self._size_limit.observe(request.params.max_tokens)
