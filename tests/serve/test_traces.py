"""OpenTelemetry: a span per request with queue, prefill and decode, in the client's trace."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from engine_fakes import POISON, greedy
from ferrum.client.request_output import Delta, Usage
from ferrum.core.errors import ConfigError, StepError, Unsupported
from ferrum.core.types import FinishReason, Request
from ferrum.server.app import create_app
from ferrum.server.common.traces import Traces
from ferrum.server.server_config import ServerConfig
from serve_kit import Served, serving, wait_for

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
USAGE = Usage(prompt_tokens=3, completion_tokens=2)


@contextmanager
def exporting() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def by_name(spans: tuple[ReadableSpan, ...]) -> dict[str, ReadableSpan]:
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def spans_of(*deltas: tuple[float, Delta], **fields: Any) -> dict[str, ReadableSpan]:
    """Return the spans of a request that arrives at 10 s; the wall clock is 1000 s ahead."""
    request = Request("r", (1, 2, 3), greedy(2), 0, arrival=10.0, **fields)
    now = [0.0]
    with exporting() as (provider, exporter):
        traces = Traces(provider, "m", lambda: now[0], lambda: round((now[0] + 1000) * 1e9))
        for now[0], delta in deltas:
            traces.delta(request, delta)
        return by_name(exporter.get_finished_spans())


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None and span.end_time is not None
    return span.start_time / 1e9, span.end_time / 1e9


def test_spans_have_the_times_of_the_request() -> None:
    spans = spans_of(
        (14.0, Delta("r", token_ids=(5,), scheduled=12.0)),
        (17.0, Delta("r", token_ids=(6,), scheduled=12.0)),
        (18.0, Delta("r", finish_reason=FinishReason.LENGTH, scheduled=12.0, usage=USAGE)),
        trace_id=PARENT,
    )
    times = {name: seconds(span) for name, span in spans.items()}
    assert times == {
        "llm_request": (1010.0, 1018.0),
        "queue": (1010.0, 1012.0),
        "prefill": (1012.0, 1014.0),
        "decode": (1014.0, 1017.0),
    }
    whole = spans["llm_request"]
    assert whole.kind is SpanKind.SERVER and whole.parent is not None
    assert f"{whole.parent.trace_id:032x}-{whole.parent.span_id:016x}" == PARENT[3:-3]
    for name in ("queue", "prefill", "decode"):
        parent, context = spans[name].parent, whole.context
        assert parent is not None and context is not None and parent.span_id == context.span_id
    assert dict(whole.attributes or {}) == {
        "gen_ai.request.model": "m",
        "gen_ai.response.id": "r",
        "gen_ai.request.max_tokens": 2,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ("length",),
    }


def test_request_that_never_ran_has_only_a_queue_span() -> None:
    spans = spans_of((11.0, Delta("r", finish_reason=FinishReason.ABORT, usage=USAGE)), trace_id="not a parent")
    assert spans.keys() == {"llm_request"} and spans["llm_request"].parent is None


def test_failure_sets_the_error_type() -> None:
    failed = Delta("r", finish_reason=FinishReason.ERROR, error=StepError("secret"), scheduled=11.0, usage=USAGE)
    spans = spans_of((12.0, failed))
    assert spans.keys() == {"llm_request", "queue"}
    status = spans["llm_request"].status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "StepError")


def test_request_joins_the_clients_trace(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    router = server.service.model().client.router
    with exporting() as (provider, exporter):
        monkeypatch.setattr(router, "observers", [Traces(provider, "fake")])
        for body in ({"prompt": "ab"}, {"prompt": [POISON]}):
            server.http.post(
                "/v1/completions", json={"model": "fake", "max_tokens": 3, **body}, headers={"traceparent": PARENT}
            )
        wholes = [span for span in exporter.get_finished_spans() if span.name == "llm_request"]
    assert [span.parent is not None and span.parent.span_id for span in wholes] == [int(PARENT[36:52], 16)] * 2
    assert [span.status.status_code for span in wholes] == [StatusCode.UNSET, StatusCode.ERROR]


def test_spans_reach_a_collector_before_the_server_ends() -> None:
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    with serving(otlp_traces_endpoint=endpoint) as server:
        server.complete(max_tokens=2)
    wait_for(lambda: bool(bodies))
    collector.shutdown()
    collector.server_close()
    thread.join()
    [resource] = ExportTraceServiceRequest.FromString(b"".join(bodies)).resource_spans
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert names == {"llm_request", "queue", "prefill", "decode"}
    assert ("service.name", "ferrum") in {(each.key, each.value.string_value) for each in resource.resource.attributes}


def test_unresponsive_collector_does_not_delay_shutdown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ferrum.server.common.traces.CLOSE_SECONDS", 0.01)
    taken = threading.Event()

    class Stuck(SpanProcessor):
        def shutdown(self) -> None:
            taken.wait()

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Stuck())
    Traces(provider, "m").close()
    taken.set()
    assert "0.01 s" in caplog.text


@pytest.mark.parametrize(
    "endpoint",
    ["", "notaurl", "localhost:4318", "ftp://x/v1/traces", "http:///v1/traces", "http://x:port", "http://[x"],
)
def test_invalid_endpoint_is_rejected(endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_app(lambda: pytest.fail("it was built"), ServerConfig(otlp_traces_endpoint=endpoint))
    assert caught.value.param == "otlp_traces_endpoint"


def test_missing_trace_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ImportError("no", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unsupported, match=r"\[otel\]"):
        create_app(lambda: pytest.fail("it was built"), ServerConfig(otlp_traces_endpoint="http://x/v1/traces"))
