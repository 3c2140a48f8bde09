"""OpenTelemetry traces (optional): a span per request, with child spans queue, prefill and decode.

A request's span continues the trace of its `traceparent` header (W3C Trace Context). Attributes follow the semantic
conventions for generative AI.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from ferrum.client.request_output import Delta
from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.types import Request
from ferrum.engine.messages import EngineStats

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

NANOSECONDS: Final = 1e9

CLOSE_SECONDS: Final = 2.0
"""How long a closing server waits for the trace collector (the exporter's default: 8)."""

_ENDPOINT: Final = re.compile(r"https?://(\S+@)?(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]]+)(:\d{1,5})?([/?]\S*)?", re.IGNORECASE)

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    """Times of a request so far, in monotonic seconds, and its results."""

    scheduled: float | None = None
    first: float | None = None
    last: float | None = None
    tokens: int = 0
    reasons: tuple[str, ...] = ()
    error: str | None = None


class Traces:
    """An `Observer` of the engine that creates the spans of finished requests.

    Args:
        provider: exports the spans.
        model: served name.
        clock: monotonic seconds, as in a request's arrival.
        wall: nanoseconds since 1970.
    """

    def __init__(
        self,
        provider: TracerProvider,
        model: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("ferrum")
        self._context_of = TraceContextTextMapPropagator().extract
        self._model = model
        self._clock = clock
        self._wall = wall
        self._seen: dict[str, _Seen] = {}

    def step(self, stats: EngineStats) -> None:
        """Do nothing; see `Observer`."""

    def delta(self, request: Request, delta: Delta) -> None:
        """Record a delta; the last one of a request creates its spans. See `Observer`."""
        seen = self._seen.setdefault(request.request_id, _Seen())
        now = self._clock()
        if delta.scheduled is not None and (seen.scheduled is None or seen.first is None):
            seen.scheduled = delta.scheduled
        if delta.token_ids:
            seen.first = now if seen.first is None else seen.first
            seen.last = now
            seen.tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            seen.reasons += (delta.finish_reason.value,)
        if delta.error is not None:
            seen.error = type(delta.error).__name__
        if delta.usage is not None:
            del self._seen[request.request_id]
            self._export(request, seen, now)

    def _export(self, request: Request, seen: _Seen, now: float) -> None:
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        wall = self._wall()

        def at(moment: float) -> int:
            return wall - round((now - moment) * NANOSECONDS)

        span = self._tracer.start_span(
            "llm_request",
            context=self._context_of({"traceparent": request.trace_id}),
            kind=SpanKind.SERVER,
            attributes=self._attributes(request, seen),
            start_time=at(request.arrival),
        )
        if seen.error is not None:
            span.set_status(StatusCode.ERROR, seen.error)
        inner = set_span_in_context(span)
        moments = {"queue": request.arrival, "prefill": seen.scheduled, "decode": seen.first, "": seen.last}
        known = [(name, moment) for name, moment in moments.items() if moment is not None]
        for (name, begun), (_, ended) in pairwise(known):
            self._tracer.start_span(name, context=inner, start_time=at(begun)).end(at(ended))
        span.end(at(now))

    def _attributes(self, request: Request, seen: _Seen) -> dict[str, Any]:
        params = request.params
        attributes = {
            "gen_ai.request.model": self._model,
            "gen_ai.response.id": request.request_id,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.choice.count": params.n,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.usage.input_tokens": len(request.prompt),
            "gen_ai.usage.output_tokens": seen.tokens,
            "gen_ai.response.finish_reasons": seen.reasons,
            "error.type": seen.error,
        }
        return {name: value for name, value in attributes.items() if value is not None}

    def close(self) -> None:
        """Send the remaining spans; those not accepted within `CLOSE_SECONDS` are lost."""
        sending = threading.Thread(target=self._provider.shutdown, name="ferrum-traces", daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)
        if sending.is_alive():
            _LOG.warning("the trace collector did not accept the last spans within %g s; they are lost", CLOSE_SECONDS)


def otlp_provider(endpoint: str) -> TracerProvider:
    """Return a provider that exports spans by OTLP over HTTP in the background.

    Raises:
        ConfigError: the endpoint is not a valid URL.
        Unsupported: the libraries are not installed.
    """
    if not _ENDPOINT.fullmatch(endpoint):
        wanted = "a URL as in http://localhost:4318/v1/traces"
        raise ConfigError(f"must be {wanted}, not {endpoint!r}", param="otlp_traces_endpoint")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Unsupported("otlp_traces_endpoint", f"{error.name} is missing: pip install 'ferrum-llm[otel]'") from None
    # `Traces.close` shuts it down with a timeout; a shutdown at exit would have none.
    provider = TracerProvider(resource=Resource.create({"service.name": "ferrum"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider
