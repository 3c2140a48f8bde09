"""Prometheus metrics of HTTP traffic, under names that dashboards of FastAPI services use.

Metrics of the engine are in `engine_metrics`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    Summary,
)

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
