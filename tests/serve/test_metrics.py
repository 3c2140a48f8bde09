"""Metrics follow the definitions of docs/metrics.md, on a timeline that each test writes down."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine_fakes import FakeRecipe, greedy, input_processor
from ferrum.client.request_output import Delta, Usage
from ferrum.core.errors import NonFiniteLogits, StepError
from ferrum.core.memory_plan import MemoryPlan
from ferrum.core.snapshots import PrefixCounts, SpeculationCounts
from ferrum.core.types import FinishReason, Request
from ferrum.engine.messages import EngineInfo, EngineStats
from ferrum.server.common.metrics import SLEEP_STATES, SOURCES, FastCounter, FastHistogram, Metrics, token_buckets
from serve_kit import Served, chat_parts, serving, wait_for

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


class Timeline:
    """Metrics with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.registry = CollectorRegistry()
        info = EngineInfo("fake", 97, 100, 640, "fake-1", page_size=64)
        self.metrics = Metrics(self.registry, "name", info, 100, lambda: 3, clock=lambda: self.now)

    def request(self, at: float, prompt: int = 10, **params: Any) -> Request:
        request = input_processor().process([1] * prompt, greedy(**{"max_tokens": 20, **params}))
        object.__setattr__(request, "arrival", at)
        return request

    def delta(self, at: float, request: Request, tokens: int = 0, **fields: Any) -> None:
        self.now = at
        self.metrics.delta(request, Delta(request.request_id, token_ids=(1,) * tokens, **fields))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"vllm:{name}", {"model_name": "name", "engine": "0", **labels})

    def seen(self, name: str) -> tuple[float | None, float | None]:
        """Return number and sum of the observations."""
        return self.value(f"{name}_count"), self.value(f"{name}_sum")

    def sources(self) -> dict[str, float | None]:
        """Return prompt tokens by origin."""
        return {source: self.value("prompt_tokens_by_source_total", source=source) for source in SOURCES}


def test_draft_tokens_are_counted_by_position() -> None:
    line = Timeline()
    assert line.value("spec_decode_num_accepted_tokens_per_pos_total", position="15") == 0
    line.metrics.step(EngineStats(speculation=SpeculationCounts(2, 8, 5, (2, 2, 1, 0))))
    line.metrics.step(EngineStats(speculation=SpeculationCounts(3, 12, 6, (3, 2, 1, 0))))
    assert line.value("spec_decode_num_drafts_total") == 3
    assert line.value("spec_decode_num_draft_tokens_total") == 12
    assert line.value("spec_decode_num_accepted_tokens_total") == 6
    positions = [
        line.value("spec_decode_num_accepted_tokens_per_pos_total", position=str(position)) for position in range(4)
    ]
    assert positions == [3, 2, 1, 0]


def test_latencies_of_a_sequence() -> None:
    line = Timeline()
    request = line.request(at=100.0)
    line.delta(103.0, request, 1, scheduled=102.0)
    line.delta(103.5, request, 1, scheduled=102.0)
    line.delta(105.5, request, 4, scheduled=102.0)  # a step that verified drafts
    assert line.value("prompt_tokens_total") == 10 and line.value("generation_tokens_total") == 6
    assert line.seen("e2e_request_latency_seconds") == (0, 0)
    line.delta(
        106.0,
        request,
        1,
        scheduled=102.0,
        preemptions=2,
        finish_reason=FinishReason.STOP,
        usage=Usage(10, 7, cached_tokens=4),
    )
    assert line.seen("time_to_first_token_seconds") == (1, 3.0)
    assert line.seen("inter_token_latency_seconds") == (6, 3.0)
    assert line.value("inter_token_latency_seconds_bucket", le="0.4") == 0
    assert line.value("inter_token_latency_seconds_bucket", le="0.5") == 6
    assert line.seen("request_time_per_output_token_seconds") == (1, 0.5)
    assert line.seen("e2e_request_latency_seconds") == (1, 6.0)
    assert line.seen("request_queue_time_seconds") == (1, 2.0)
    assert line.seen("request_prefill_time_seconds") == (1, 1.0)
    assert line.seen("request_decode_time_seconds") == (1, 3.0)
    assert line.seen("request_inference_time_seconds") == (1, 4.0)
    assert line.seen("request_prompt_tokens") == (1, 10) and line.seen("request_generation_tokens") == (1, 7)
    assert line.seen("request_num_preemptions") == (1, 2)
    assert line.seen("request_prefill_kv_computed_tokens") == (1, 6) and line.value("prompt_tokens_cached_total") == 4
    assert line.sources() == {"local_compute": 6, "local_cache_hit": 4, "external_kv_transfer": 0}
    assert line.seen("request_params_max_tokens") == (1, 20) and line.seen("request_params_n") == (1, 1)
    assert line.value("request_success_total", finished_reason="stop") == 1


def test_choices_of_a_request_share_its_prompt() -> None:
    line = Timeline()
    request = line.request(at=0.0, n=2)
    line.delta(1.0, request, 1, index=0, scheduled=0.5)
    line.delta(2.0, request, 1, index=1, scheduled=0.5)
    line.delta(3.0, request, 1, index=0, scheduled=0.5, finish_reason=FinishReason.LENGTH)
    line.delta(4.0, request, 4, index=1, scheduled=0.5, finish_reason=FinishReason.STOP, usage=Usage(10, 7))
    assert line.value("prompt_tokens_total") == 10 and line.value("generation_tokens_total") == 7
    assert line.seen("request_prompt_tokens") == (2, 20) and line.seen("request_generation_tokens") == (2, 7)
    assert line.seen("request_max_num_generation_tokens") == (1, 5) and line.seen("request_params_n") == (1, 2)
    assert line.seen("time_to_first_token_seconds") == (2, 3.0)


def test_request_that_never_left_the_queue_has_only_a_total_latency() -> None:
    line = Timeline()
    line.delta(5.0, line.request(at=1.0), finish_reason=FinishReason.ABORT, usage=Usage(10, 0))
    assert line.seen("e2e_request_latency_seconds") == (1, 4.0)
    for name in ("queue", "prefill", "decode", "inference"):
        assert line.seen(f"request_{name}_time_seconds") == (0, 0)
    assert line.seen("time_to_first_token_seconds") == (0, 0) and line.value("prompt_tokens_total") == 0
    assert not any(line.sources().values())


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.DEADLINE, FinishReason.ERROR])
def test_prompts_without_a_result_are_not_counted(reason: FinishReason) -> None:
    line = Timeline()
    for limit in (0, 5):  # 0: a request for scores
        line.delta(1.0, line.request(0.0, max_tokens=limit), finish_reason=reason, usage=Usage(10, 0, cached_tokens=4))
    assert line.value("prompt_tokens_total") == 0 and line.value("prompt_tokens_cached_total") == 0
    assert not any(line.sources().values())
    request = line.request(0.0, max_tokens=0)
    line.delta(2.0, request, finish_reason=FinishReason.LENGTH, usage=Usage(10, 0, cached_tokens=4))
    assert line.value("prompt_tokens_total") == 10 and line.value("prompt_tokens_cached_total") == 4


@pytest.mark.parametrize(
    ("reason", "counted"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.ABORT, "abort"),
        (FinishReason.DEADLINE, "abort"),
        (FinishReason.ERROR, "error"),
    ],
)
def test_finish_reason_is_counted_once(reason: FinishReason, counted: str) -> None:
    line = Timeline()
    line.delta(1.0, line.request(at=0.0), finish_reason=reason, usage=Usage(10, 0), error=StepError("x"))
    ends = {each: line.value("request_success_total", finished_reason=each) for each in ("stop", "length", "abort")}
    ends |= {each: line.value("request_success_total", finished_reason=each) for each in ("error", "repetition")}
    assert ends == {**dict.fromkeys(ends, 0), counted: 1}
    assert line.value("corrupted_requests_total") == 0


def test_nan_counts_as_corrupted_request() -> None:
    line = Timeline()
    error = NonFiniteLogits("x")
    line.delta(1.0, line.request(at=0.0), finish_reason=FinishReason.ERROR, usage=Usage(10, 0), error=error)
    assert line.value("corrupted_requests_total") == 1


def test_steps_set_gauges_and_count_tokens() -> None:
    line = Timeline()
    line.metrics.step(
        EngineStats(
            running=3,
            waiting=2,
            kv_usage=0.25,
            preemptions=4,
            prefixes=PrefixCounts(1, 0, 50, 8, 2, 30, 20),
            step_tokens=(7, 9),
        )
    )
    waiting = [line.value("num_requests_waiting_by_reason", reason=reason) for reason in ("capacity", "deferred")]
    assert waiting == [2, 0]
    assert [line.value("engine_sleep_state", sleep_state=state) for state in SLEEP_STATES] == [1, 0, 0]
    line.metrics.step(
        EngineStats(
            running=1,
            waiting=0,
            kv_usage=0.5,
            preemptions=5,
            prefixes=PrefixCounts(1, 0, 90, 40, 3, 70, 60),
            step_tokens=(1,),
        )
    )
    assert (line.value("num_requests_running"), line.value("num_requests_waiting")) == (1, 0)
    assert line.value("kv_cache_usage_perc") == 0.5 and line.value("num_preemptions_total") == 5
    assert line.seen("iteration_tokens_total") == (3, 17)
    assert (line.value("prefix_cache_queries_total"), line.value("prefix_cache_hits_total")) == (90, 40)
    outside = [line.value(f"external_prefix_cache_{name}_total") for name in ("queries", "hits")]
    assert outside == [70, 60]
    labels = {"block_size": "64", "num_gpu_blocks": "10", "enable_prefix_caching": "False"}
    assert line.value("cache_config_info", **labels) == 1


def test_metrics_without_a_vllm_name_begin_with_ferrum() -> None:
    line = Timeline()
    line.metrics.step(EngineStats(prefixes=PrefixCounts(cached_pages=9, evicted_pages=2, restored_pages=1)))
    states = {"state_slots": 9, "state_bytes": 900, "used_slots": 3, "snapshots": 5}
    events = {"snapshot_hits": 6, "evicted_snapshots": 8}
    counts = PrefixCounts(7, evicted_pages=5, restored_pages=1, shared_pages=4, **states, **events)
    line.metrics.step(EngineStats(prefixes=counts))
    names = {
        "live_requests": 3,
        "prefix_cache_pages": 7,
        "shared_pages": 4,
        "prefix_cache_evicted_pages_total": 5,
        "prefix_cache_restored_pages_total": 1,
        "state_slots": 9,
        "state_bytes": 900,
        "state_slots_used": 3,
        "state_snapshots": 5,
        "state_snapshot_hits_total": 6,
        "state_snapshots_evicted_total": 8,
    }
    labels = {"model_name": "name", "engine": "0"}
    assert {name: line.registry.get_sample_value(f"ferrum:{name}", labels) for name in names} == names


def test_token_buckets_are_one_two_five_up_to_the_context() -> None:
    assert token_buckets(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_buckets(4096)[-3:] == (500, 1000, 2000)


def samples(server: Served) -> dict[str, float]:
    """Return the samples of /metrics without specific labels, by name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            if set(sample.labels) <= {"model_name", "engine"}:
                found[sample.name] = sample.value
    return found


def test_all_series_start_at_zero_and_are_documented() -> None:
    with serving() as server:
        text = server.http.get("/metrics").text
        names = set(re.findall(r"^# TYPE ((?:vllm|ferrum):\S+|http_\S+) ", text, re.MULTILINE))
        documented = set(re.findall(r"`((?:vllm|ferrum):\w+|http_\w+)`", DOCUMENT.read_text()))
        assert {name for name in names if not name.endswith("_created")} == documented
        start = samples(server)
        zero = {n: v for n, v in start.items() if n.startswith(("vllm:", "ferrum:")) and not n.endswith("_created")}
        assert len(zero) >= 40 and not any(zero.values())


def test_served_request_is_counted() -> None:
    with serving(chat_parts(FakeRecipe(page_size=16))) as server:
        server.complete(prompt=["a" * 10, "b" * 20], n=2, max_tokens=5, ignore_eos=True)
        wait_for(lambda: samples(server)["vllm:request_params_n_count"] == 2)
        now = samples(server)
        assert now["vllm:prompt_tokens_total"] == 30 and now["vllm:generation_tokens_total"] == 20
        assert (
            now["vllm:time_to_first_token_seconds_count"] == 4 and now["vllm:inter_token_latency_seconds_count"] == 16
        )
        assert now["vllm:request_queue_time_seconds_count"] == 4 and now["vllm:iteration_tokens_total_count"] >= 5
        # The choices share their prompt except its last token.
        assert now["vllm:iteration_tokens_total_sum"] == 30 + 2 + 4 * 4
        assert (now["vllm:num_requests_running"], now["vllm:kv_cache_usage_perc"]) == (0, 0)
        text = server.http.get("/metrics").text
        assert 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0' in text


def test_stop_string_limits_the_counted_tokens() -> None:
    with serving() as server:
        whole = server.complete(seed=1, max_tokens=30, ignore_eos=True).json()["choices"][0]["text"]
        reply = server.complete(seed=1, max_tokens=30, ignore_eos=True, stop=whole[10]).json()
        server.wait_idle()
        text = server.http.get("/metrics").text
        assert 'finished_reason="stop",model_name="fake"} 1.0' in text
        assert samples(server)["vllm:generation_tokens_total"] == 30 + reply["usage"]["completion_tokens"]


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 9.0]), st.integers(0, 3))))
def test_fast_metrics_equal_the_librarys(values: list[tuple[float, int]]) -> None:
    ours, theirs, labels = CollectorRegistry(), CollectorRegistry(), {"a": "x", "b": "y"}
    fast = FastHistogram("h", "help", labels, (0.5, 1.0, 2.0), ours)
    slow = Histogram("h", "help", tuple(labels), buckets=(0.5, 1.0, 2.0), registry=theirs).labels(**labels)
    fast_count = FastCounter("c", "help", labels, ours)
    slow_count = Counter("c", "help", tuple(labels), registry=theirs).labels(**labels)
    for value, times in values:
        fast.observe(value, times)
        fast_count.inc(times)
        slow_count.inc(times)
        for _ in range(times):
            slow.observe(value)

    def lines(registry: CollectorRegistry) -> list[str]:
        text = generate_latest(registry).decode()
        return [line.rpartition(" ")[0] if "_created{" in line else line for line in text.splitlines()]

    assert lines(ours) == lines(theirs)


def test_each_rank_has_the_bytes_of_the_plan() -> None:
    memory = MemoryPlan(weights=5, activations=7, activation_row=1, tables=0, pool=(), states=None, libraries=0)
    registry, info = CollectorRegistry(), EngineInfo("fake", 97, 100, 640, "fake-1", memory=memory, ranks=2)
    Metrics(registry, "name", info, 100, lambda: 3)
    labels = {"model_name": "name", "engine": "0"}
    found = [registry.get_sample_value("ferrum:rank_bytes", {**labels, "rank": rank}) for rank in "012"]
    assert found == [12, 12, None]
