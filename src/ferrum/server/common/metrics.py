"""Prometheus metrics: the engine's under vLLM's names and buckets, and those of HTTP traffic.

docs/metrics.md defines each.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, zip_longest
from operator import attrgetter
from typing import Any, Final, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    Summary,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ferrum.client.request_output import Delta
from ferrum.core.config import MAX_DRAFT
from ferrum.core.errors import NonFiniteLogits
from ferrum.core.types import FinishReason, Request
from ferrum.engine.messages import AdapterCounts, EngineInfo, EngineStats

# Names, help texts, labels and buckets of the engine's metrics


LABELS: Final = ("model_name", "engine")
ENGINE: Final = "0"
"""There is one engine."""

SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")
SOURCES: Final = ("local_compute", "local_cache_hit", "external_kv_transfer")
"""Origins of the keys and values of prompt tokens."""

ENDS: Final = ("stop", "length", "abort", "error", "repetition")
FINISHES: Final = {reason: reason.value for reason in FinishReason} | {FinishReason.DEADLINE: "abort"}
"""The label of each finish reason; vLLM has no deadlines."""

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

GAUGES: Final[dict[str, tuple[str, str]]] = {
    "vllm:num_requests_running": ("Sequences that hold pages.", "running"),
    "vllm:num_requests_waiting": ("Sequences that wait for pages.", "waiting"),
    "vllm:kv_cache_usage_perc": ("Part of the KV pages in use, 0 to 1.", "kv_usage"),
    "ferrum:prefix_cache_pages": ("Pages in the prefix cache.", "prefixes.cached_pages"),
    "ferrum:lora_adapters": ("Adapters in memory.", "adapters.loaded"),
    "ferrum:lora_bytes": ("Bytes of the adapters in memory.", "adapters.nbytes"),
    "ferrum:image_rows_bytes": ("Bytes of the rows of images in memory.", "images.nbytes"),
    "ferrum:shared_pages": ("Pages held by several sequences.", "prefixes.shared_pages"),
    "ferrum:state_slots": ("Slots of states of recurrent layers.", "prefixes.state_slots"),
    "ferrum:state_bytes": ("Bytes of these slots.", "prefixes.state_bytes"),
    "ferrum:state_slots_used": ("Slots that sequences hold.", "prefixes.used_slots"),
    "ferrum:state_snapshots": ("Slots with which other sequences can begin.", "prefixes.snapshots"),
}
"""Help and attribute of `EngineStats`."""

TOTALS: Final[dict[str, tuple[str, str]]] = {
    "vllm:num_preemptions": ("Preempted sequences.", "preemptions"),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", "prefixes.query_tokens"),
    "vllm:prefix_cache_hits": ("Prompt tokens found there.", "prefixes.hit_tokens"),
    "vllm:external_prefix_cache_queries": (
        "Prompt tokens looked up in host memory and on disk.",
        "prefixes.external_query_tokens",
    ),
    "vllm:external_prefix_cache_hits": ("Prompt tokens found there.", "prefixes.external_hit_tokens"),
    "vllm:spec_decode_num_drafts": ("Verified drafts.", "speculation.drafts"),
    "vllm:spec_decode_num_draft_tokens": ("Tokens of these drafts.", "speculation.draft_tokens"),
    "vllm:spec_decode_num_accepted_tokens": ("Accepted draft tokens.", "speculation.accepted_tokens"),
    "vllm:mm_cache_queries": ("Images of requests.", "images.queries"),
    "vllm:mm_cache_hits": ("Images whose rows were in memory.", "images.hits"),
    "ferrum:images_restored": ("Images whose rows were read from disk.", "images.restored"),
    "ferrum:images_computed": ("Images whose rows were computed.", "images.computed"),
    "ferrum:lora_loads": ("Adapters that were read into memory.", "adapters.loads"),
    "ferrum:lora_evictions": ("Adapters that made room for others.", "adapters.evictions"),
    "ferrum:prefix_cache_evicted_pages": ("Evicted pages.", "prefixes.evicted_pages"),
    "ferrum:state_snapshot_hits": ("Sequences that began with a snapshot.", "prefixes.snapshot_hits"),
    "ferrum:state_snapshots_evicted": ("Evicted snapshots.", "prefixes.evicted_snapshots"),
    "ferrum:prefix_cache_restored_pages": ("Pages restored from host memory or disk.", "prefixes.restored_pages"),
}
"""Counters of totals in the engine's reports: help and attribute of `EngineStats`."""

COUNTERS: Final = {
    "vllm:prompt_tokens": "Prompt tokens of requests that were begun.",
    "vllm:prompt_tokens_cached": "Prompt tokens that came from a cache.",
    "vllm:corrupted_requests": "Choices that ended because of a NaN.",
}

SIZES: Final = {
    "vllm:request_prompt_tokens": "Prompt tokens of a choice.",
    "vllm:request_generation_tokens": "Generated tokens of a choice.",
    "vllm:request_max_num_generation_tokens": "Generated tokens of the longest choice of a request.",
    "vllm:request_params_max_tokens": "max_tokens of a request.",
    "vllm:request_prefill_kv_computed_tokens": "Prompt tokens of a request that were not cached.",
}
"""Histograms of tokens, whose buckets depend on the model's context."""

HISTOGRAMS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "vllm:request_params_n": ("n of a request.", CHOICE_BUCKETS),
    "vllm:iteration_tokens_total": ("Tokens of a step.", STEP_BUCKETS),
    "vllm:request_num_preemptions": ("Preemptions of a choice.", PREEMPTION_BUCKETS),
    "vllm:time_to_first_token_seconds": ("From arrival to the first token.", FIRST_TOKEN_BUCKETS),
    "vllm:request_time_per_output_token_seconds": ("Mean time between tokens of a choice.", TOKEN_BUCKETS),
    "vllm:e2e_request_latency_seconds": ("From arrival to the end.", REQUEST_BUCKETS),
    "vllm:request_queue_time_seconds": ("From arrival to leaving the queue for the last time.", REQUEST_BUCKETS),
    "vllm:request_inference_time_seconds": ("From leaving the queue to the last token.", REQUEST_BUCKETS),
    "vllm:request_prefill_time_seconds": ("From leaving the queue to the first token.", REQUEST_BUCKETS),
    "vllm:request_decode_time_seconds": ("From the first token to the last one.", REQUEST_BUCKETS),
}


# The engine


class FastCounter(Collector):
    """A counter with one series.

    Args:
        name, help: as shown to Prometheus.
        labels: of the series.
        registry: where it is registered, at zero.
    """

    def __init__(self, name: str, help: str, labels: Mapping[str, str], registry: CollectorRegistry) -> None:
        self._about = (name, help)
        self._labels = labels
        self._value = 0
        self._created = time.time()
        registry.register(self)

    def inc(self, amount: int) -> None:
        """Add an amount."""
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(*self._about, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), self._value, self._created)
        yield family


class FastHistogram(Collector):
    """A histogram with one series.

    Args:
        name, help: as shown to Prometheus.
        labels: of the series.
        buckets: upper bounds, without infinity.
        registry: where it is registered, at zero.
    """

    def __init__(
        self, name: str, help: str, labels: Mapping[str, str], buckets: tuple[float, ...], registry: CollectorRegistry
    ) -> None:
        self._about = (name, help)
        self._labels = labels
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        self._created = time.time()
        registry.register(self)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or several times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += times * value

    def collect(self) -> Iterator[Metric]:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        family = HistogramMetricFamily(*self._about, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), buckets, self._sum)
        family.add_sample(f"{family.name}_created", dict(self._labels), self._created)
        yield family


Labelled = TypeVar("Labelled", Counter, Gauge, Histogram)


def token_buckets(context: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, ... up to the context."""
    decades = range(len(str(context)))
    buckets = (mantissa * 10**decade for decade in decades for mantissa in (1, 2, 5))
    return tuple(each for each in buckets if each <= context)


@dataclass(slots=True)
class _Times:
    """Times of a choice so far, in monotonic seconds."""

    first: float | None = None
    last: float | None = None
    tokens: int = 0


@dataclass(slots=True)
class _Seen:
    """State of a request.

    Attributes:
        begun: whether any choice has a token.
        longest: tokens of the longest choice that has ended.
    """

    choices: dict[int, _Times] = field(default_factory=dict)
    begun: bool = False
    longest: int = 0


class Metrics:
    """An `Observer` of the engine that maintains its metrics.

    Args:
        registry: where the metrics are registered, at zero.
        model: served name.
        info: of the engine.
        context: limit of prompt and output tokens together.
        num_live: returns the number of HTTP requests in progress.
        clock: monotonic seconds, as in a request's arrival.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        model: str,
        info: EngineInfo,
        context: int,
        num_live: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._names = (model, ENGINE)
        self._clock = clock
        self._stats = EngineStats()
        self._reported = 0.0
        self._seen: dict[str, _Seen] = {}
        self._add_gauges(info, num_live)
        counters = COUNTERS | {name: help for name, (help, _) in TOTALS.items()}
        self._counts = {name: self._new(Counter, name, help) for name, help in counters.items()}
        tokens = token_buckets(context)
        histograms = HISTOGRAMS | {name: (help, tokens) for name, help in SIZES.items()}
        self._histograms = {
            name: self._new(Histogram, name, help, buckets=buckets) for name, (help, buckets) in histograms.items()
        }
        help = "Prompt tokens by the origin of their keys and values."
        self._by_source = self._each(Counter, "vllm:prompt_tokens_by_source", help, "source", SOURCES)
        name, positions = "vllm:spec_decode_num_accepted_tokens_per_pos", map(str, range(MAX_DRAFT))
        self._accepted_at = self._each(
            Counter, name, "Accepted draft tokens by position in the draft.", "position", positions
        )
        self._success = self._each(Counter, "vllm:request_success", "Ended choices.", "finished_reason", ENDS)
        labels = dict(zip(LABELS, self._names, strict=True))
        self._generated = FastCounter("vllm:generation_tokens", "Generated tokens.", labels, registry)
        name = "vllm:inter_token_latency_seconds"
        self._between = FastHistogram(name, "Time between tokens.", labels, TOKEN_BUCKETS, registry)

    def _new(self, kind: Callable[..., Labelled], name: str, help: str, **options: Any) -> Labelled:
        return kind(name, help, LABELS, registry=self._registry, **options).labels(*self._names)

    def _each(
        self, kind: Callable[..., Labelled], name: str, help: str, label: str, values: Iterable[str]
    ) -> dict[str, Labelled]:
        """Return one metric for each value of a label."""
        metric = kind(name, help, (*LABELS, label), registry=self._registry)
        return {value: metric.labels(*self._names, value) for value in values}

    def _add_gauges(self, info: EngineInfo, num_live: Callable[[], int]) -> None:
        for name, (help, path) in GAUGES.items():
            self._new(Gauge, name, help).set_function(partial(self._read, attrgetter(path)))
        AdapterUseMetric(lambda: (self._stats.adapters, self._reported), self._registry)
        self._new(Gauge, "ferrum:live_requests", "HTTP requests in progress.").set_function(num_live)
        name, reasons = "vllm:num_requests_waiting_by_reason", ("capacity", "deferred")
        waiting = self._each(Gauge, name, "Waiting sequences by reason.", "reason", reasons)
        waiting["capacity"].set_function(lambda: self._stats.waiting)
        name = "vllm:engine_sleep_state"
        self._each(Gauge, name, "1 for the engine's state.", "sleep_state", SLEEP_STATES)["awake"].set(1)
        ranks = [] if info.memory is None else list(map(str, range(info.ranks)))
        for gauge in self._each(Gauge, "ferrum:rank_bytes", "Planned bytes of a rank.", "rank", ranks).values():
            gauge.set(0 if info.memory is None else info.memory.total)
        labels = (*LABELS, "block_size", "num_gpu_blocks", "enable_prefix_caching")
        size = info.page_size or 1
        cache = Gauge("vllm:cache_config_info", "The KV pool.", labels, registry=self._registry)
        cache.labels(*self._names, str(size), str(info.kv_capacity // size), str(info.prefix_cache)).set(1)

    def _read(self, read: Callable[[EngineStats], float]) -> float:
        return read(self._stats)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[f"vllm:{name}"].observe(value)

    def step(self, stats: EngineStats) -> None:
        """Take over the engine's state; see `Observer`."""
        before, self._stats, self._reported = self._stats, stats, time.time()
        for name, (_, path) in TOTALS.items():
            total = attrgetter(path)
            self._counts[name].inc(total(stats) - total(before))
        accepted, earlier = stats.speculation.accepted_per_position, before.speculation.accepted_per_position
        for position, (count, known) in enumerate(zip_longest(accepted, earlier, fillvalue=0)):
            self._accepted_at[str(position)].inc(count - known)
        for tokens in stats.step_tokens:
            self._observe("iteration_tokens_total", tokens)

    def delta(self, request: Request, delta: Delta) -> None:
        """Count the tokens and ends of a delta; see `Observer`."""
        now = self._clock()
        seen = self._seen.get(request.request_id) or self._seen.setdefault(request.request_id, _Seen())
        times = seen.choices.get(delta.index) or seen.choices.setdefault(delta.index, _Times())
        if delta.token_ids:
            if not seen.begun:
                seen.begun = True
                self._counts["vllm:prompt_tokens"].inc(len(request.prompt))
            self._count_tokens(request, times, len(delta.token_ids), now)
        if delta.finish_reason is not None:
            self._count_choice(request, delta, times, now)
            seen.longest = max(seen.longest, times.tokens)
        if delta.usage is not None:
            del self._seen[request.request_id]
            self._count_request(request, seen, delta)

    def _count_tokens(self, request: Request, times: _Times, count: int, now: float) -> None:
        """Count the tokens of a step, which share the time since the previous token equally."""
        self._generated.inc(count)
        if times.last is None:
            times.first = now
            self._observe("time_to_first_token_seconds", now - request.arrival)
            self._between.observe(0.0, count - 1)
        else:
            self._between.observe((now - times.last) / count, count)
        times.last = now
        times.tokens += count

    def _count_choice(self, request: Request, delta: Delta, times: _Times, now: float) -> None:
        assert delta.finish_reason is not None
        self._success[FINISHES[delta.finish_reason]].inc()
        if isinstance(delta.error, NonFiniteLogits):
            self._counts["vllm:corrupted_requests"].inc()
        self._observe("request_prompt_tokens", len(request.prompt))
        self._observe("request_generation_tokens", times.tokens)
        self._observe("request_num_preemptions", delta.preemptions)
        self._observe("e2e_request_latency_seconds", now - request.arrival)
        if delta.scheduled is not None:
            self._observe("request_queue_time_seconds", delta.scheduled - request.arrival)
        if times.first is None or times.last is None:
            return
        if delta.scheduled is not None:
            self._observe("request_prefill_time_seconds", times.first - delta.scheduled)
            self._observe("request_inference_time_seconds", times.last - delta.scheduled)
        decode = times.last - times.first
        self._observe("request_decode_time_seconds", decode)
        if times.tokens > 1:
            self._observe("request_time_per_output_token_seconds", decode / (times.tokens - 1))

    def _count_request(self, request: Request, seen: _Seen, end: Delta) -> None:
        assert end.usage is not None
        cached = end.usage.cached_tokens
        scored = request.params.max_tokens == 0 and end.finish_reason is FinishReason.LENGTH
        if scored:
            self._counts["vllm:prompt_tokens"].inc(len(request.prompt))
        if seen.begun or scored:
            self._by_source["local_cache_hit"].inc(cached)
            self._by_source["local_compute"].inc(len(request.prompt) - cached)
            self._counts["vllm:prompt_tokens_cached"].inc(cached)
        self._observe("request_prefill_kv_computed_tokens", len(request.prompt) - cached)
        self._observe("request_max_num_generation_tokens", seen.longest)
        self._observe("request_params_n", request.params.n)
        if request.params.max_tokens is not None:
            self._observe("request_params_max_tokens", request.params.max_tokens)


# Adapters that live requests use


class AdapterUseMetric(Collector):
    """The names of the adapters in use, as labels. Only the present ones are a series: each mixture would be another.

    Args:
        read: returns the engine's last counts, and seconds since 1970 when it reported them; 0 before the first one.
        registry: where it is registered.
    """

    def __init__(self, read: Callable[[], tuple[AdapterCounts, float]], registry: CollectorRegistry) -> None:
        self._read = read
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        counts, reported = self._read()
        labels = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
        family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters that live requests use.", labels=labels)
        named = (str(counts.loaded), ",".join(counts.waiting), ",".join(counts.running))
        family.add_metric(named, reported if counts.running or counts.waiting else 0.0)
        yield family


# HTTP, under names that dashboards of FastAPI services use


DURATION_BUCKETS: Final = (0.1, 0.5, 1.0)
FINE_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""HTTP methods; others are counted as `other`."""


class HttpMetrics:
    """Metrics of HTTP requests and of the server process.

    Args:
        registry: where the metrics are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self._requests = Counter(
            "http_requests", "Requests by route, method and status.", ("handler", "method", "status"), registry=registry
        )
        self._request_bytes = Summary(
            "http_request_size_bytes", "Bytes of request bodies.", ("handler",), registry=registry
        )
        self._response_bytes = Summary(
            "http_response_size_bytes", "Bytes of response bodies.", ("handler",), registry=registry
        )
        self._duration = Histogram(
            "http_request_duration_seconds",
            "From request headers to the end of the response.",
            ("handler", "method"),
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds", "The same over all routes.", buckets=FINE_BUCKETS, registry=registry
        )

    def observe(self, handler: str, method: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count a request.

        Args:
            handler: the route's path, or `none` for unknown paths.
            received, sent: bytes of the bodies.
        """
        method = method if method in METHODS else "other"
        self._requests.labels(handler, method, f"{status // 100}xx").inc()
        self._request_bytes.labels(handler).observe(received)
        self._response_bytes.labels(handler).observe(sent)
        self._duration.labels(handler, method).observe(seconds)
        self._fine.observe(seconds)
