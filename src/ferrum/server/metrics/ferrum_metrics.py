"""Prometheus metrics for which vLLM has no names. Every definition is in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from ferrum.core.snapshots import PrefixCounts
from ferrum.core.types import Request
from ferrum.engine.messages import EngineStats
from ferrum.engine.request_output import Delta
from ferrum.server.metrics.engine_metrics import ENGINE, LABELS


class OwnMetrics:
    """Observes an engine (see `Observer`), and who is served.

    Args:
        registry: where the metrics are registered, all at zero.
        model: the model's name for clients.
        num_live: how many clients are being served.
    """

    def __init__(self, registry: CollectorRegistry, model: str, num_live: Callable[[], int]) -> None:
        self._registry = registry
        self._names = (model, ENGINE)
        self._prefixes = PrefixCounts()
        self._gauge("live_requests", "HTTP requests that are being served.", num_live)
        self._gauge("prefix_cache_pages", "Pages that can be found again.", lambda: self._prefixes.cached_pages)
        self._gauge("shared_pages", "Pages of several owners.", lambda: self._prefixes.shared_pages)
        self._evicted = self._counter("prefix_cache_evicted_pages", "Pages given up for want of room.")
        self._restored = self._counter("prefix_cache_restored_pages", "Pages back from host buffers or disk.")

    def _gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        gauge = Gauge(f"ferrum:{name}", help, LABELS, registry=self._registry)
        gauge.labels(*self._names).set_function(read)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(f"ferrum:{name}", help, LABELS, registry=self._registry).labels(*self._names)

    def step(self, stats: EngineStats) -> None:
        """See `Observer`."""
        before, self._prefixes = self._prefixes, stats.prefixes
        self._evicted.inc(self._prefixes.evicted_pages - before.evicted_pages)
        self._restored.inc(self._prefixes.restored_pages - before.restored_pages)

    def delta(self, request: Request, delta: Delta) -> None:
        """See `Observer`."""
