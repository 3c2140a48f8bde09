"""Executors and models written by hand, and registries of executors, through the names of `ferrum`."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import ferrum
from ferrum import (
    AsyncModelExecutor,
    ConfigError,
    DataType,
    DecodeInput,
    ExecutorInUse,
    ExecutorRegistry,
    LlmExecutor,
    LlmRuntimeConfig,
    ModelInfo,
    ModelNotFound,
    RequestError,
    Unsupported,
)
from ferrum.core.registry import Registry

contract = pytest.mark.contract
CONFIG = LlmRuntimeConfig(hidden_size=1, num_layers=1, num_kv_heads=1, head_dim=1, vocab_size=10, max_seq_len=32)
INFO = ModelInfo(
    model_id="sum",
    family="Sum",
    num_parameters=1,
    vocab_size=10,
    max_sequence_length=32,
    hidden_size=1,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    dtype=DataType.FLOAT32,
)


class Sum:
    """A model of four methods that expects the sum of all tokens so far, modulo 10."""

    config = CONFIG

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}

    def prefill(self, cache_id: str, tokens: list[int]) -> list[float]:
        assert cache_id not in self.sums
        self.sums[cache_id] = sum(tokens) % 10
        return self.logits(cache_id)

    def decode(self, cache_id: str, token: int, pos: int) -> list[float]:
        assert pos > 0
        self.sums[cache_id] = (self.sums[cache_id] + token) % 10
        return self.logits(cache_id)

    def release(self, cache_id: str) -> None:
        self.sums.pop(cache_id, None)

    def logits(self, cache_id: str) -> list[float]:
        return [float(token == self.sums[cache_id]) for token in range(10)]


def best(logits: Any) -> list[int]:
    assert logits.dtype == np.float32
    return logits.reshape(-1, 10).argmax(axis=1).tolist()


@contract("3.LlmExecutor")
def test_a_model_of_four_methods_has_every_verb() -> None:
    model = Sum()
    with LlmExecutor(model, INFO) as executor:
        assert best(executor.forward([1, 2, 3])) == [1, 3, 6] and executor.status().backend == "Sum"
        handle = executor.prefill([1, 2]).kv_cache
        chunk = executor.prefill(ferrum.PrefillInput([3, 4], kv_cache=handle, logits="all"))
        assert best(chunk.logits) == [6, 0]
        branch = executor.fork(chunk.kv_cache)
        one, two = executor.batch_decode([DecodeInput([1], chunk.kv_cache), DecodeInput([2], branch)])
        assert (best(one.logits), best(two.logits)) == ([1], [2])
        rows = executor.forward_verify([DecodeInput([token], one.kv_cache) for token in (1, 1, 1)])
        assert [best(row.logits) for row in rows] == [[2], [3], [4]]
        kept = executor.truncate_kv(rows[-1].kv_cache, 3)
        draft = executor.speculative_decode(DecodeInput([0], kept), [6, 2, 9])
        assert draft.accepted_tokens == (6, 2) and best(draft.next_logits) == [4]
        with pytest.raises(RequestError):
            executor.decode(DecodeInput([11], draft.kv_cache))
        assert executor.kv_capacity() is None and executor.supports_batch_size(32)
        executor.release_cache(two.kv_cache)
        assert set(model.sums) == {draft.kv_cache.cache_id}
    assert model.sums == {}


@contract("3.LlmExecutor")
@pytest.mark.parametrize("name", ["config", "prefill", "decode", "release"])
def test_what_a_model_lacks_is_named(name: str) -> None:
    class Lacking:
        def __getattr__(self, asked: str) -> Any:
            if asked == name:
                raise AttributeError(asked)
            return getattr(Sum(), asked)

    with pytest.raises(RequestError, match=f"lacks {name}$") as caught:
        LlmExecutor(Lacking(), INFO)
    assert caught.value.param == "model"
    with pytest.raises(RequestError, match="lacks config, prefill"):
        LlmExecutor(Sum, INFO)  # type: ignore[arg-type]


@contract("3.kv_capacity")
@pytest.mark.parametrize("capacity", [None, 64, 0, "x"])
def test_a_model_may_have_no_limit_and_no_wrong_one(capacity: Any) -> None:
    model: Any = Sum()
    model.kv_capacity = lambda: capacity
    if capacity in (0, "x"):
        with pytest.raises(RequestError) as caught:
            LlmExecutor(model, INFO)
        assert caught.value.param == "kv_capacity"
        return
    executor = LlmExecutor(model, INFO, max_batch_size=4)
    assert executor.kv_capacity() == capacity
    for _ in range(8):
        executor.prefill([1] * 8)
    assert executor.supports_batch_size(1) is (capacity is None)


class Echo(ferrum.ModelExecutor):
    """An executor whose logits name the token itself."""

    pages: ferrum.PageTable

    def __init__(self) -> None:
        part = ferrum.PoolPart(name="all", num_pages=8, page_size=4, page_bytes=16)
        traits = ferrum.ExecutorTraits(
            backend="echo",
            numerics_id="echo-1",
            kv_dtype=DataType.FLOAT32,
            max_batch_size=4,
            max_sequence_length=32,
            memory=ferrum.MemoryPlan(weights=0, activations=0, activation_row=0, tables=0, pool=(part,)),
        )
        super().__init__(INFO, traits, ferrum.PageTable([ferrum.PageGroup("all", 8, 4, None)]))

    def _run(self, batch: ferrum.StepBatch) -> ferrum.StepOutput:
        return ferrum.StepOutput(tuple(map(self._one, batch.spans)))

    def _one(self, span: ferrum.Span) -> Any:
        if not self.pages.reserve(span.cache_id, span.end):
            return ferrum.KvExhausted("no free pages")
        self.pages.commit(span.cache_id, span.end)
        return ferrum.SpanResult(span.end, logits=np.eye(10, dtype=np.float32)[list(span.tokens)])


@contract("2.submit")
def test_an_executor_by_hand_has_every_verb() -> None:
    with Echo() as executor:
        handle = executor.prefill(ferrum.PrefillInput([1, 2, 3], logits="all")).kv_cache
        assert best(executor.decode(DecodeInput([7], executor.fork(handle))).logits) == [7]
        assert executor.truncate_kv(handle, 2).block_table == (0,)
        with pytest.raises(ferrum.KvExhausted):
            executor.batch_prefill([ferrum.PrefillInput([1] * 20)] * 2)
        assert executor.cache_metrics_snapshot().sequences == 2


class OneByOne(Echo):
    """An executor that replaces verbs by calls of others."""

    def batch_prefill(self, inputs: Any) -> Any:
        return [self.prefill(each) for each in inputs]

    def batch_decode(self, inputs: Any) -> Any:
        return [self.decode(each) for each in inputs]

    def truncate_kv_for_cache_id(self, cache_id: str, new_len: int) -> ferrum.KvCacheHandle:
        return self.truncate_kv(self.handle(cache_id), new_len)


@contract("2.submit")
def test_a_verb_may_be_replaced_by_calls_of_others() -> None:
    with OneByOne() as executor:
        one, two = executor.batch_prefill([ferrum.PrefillInput([1, 2]), ferrum.PrefillInput([3])])
        executor.batch_decode([DecodeInput([4], one.kv_cache), DecodeInput([5], two.kv_cache)])
        assert executor.truncate_kv_for_cache_id(one.kv_cache.cache_id, 1).sequence_length == 1
        assert executor.metrics().total_operations == 4


class Remote:
    """An executor by hand that passes its verbs on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.info = inner.info
        for verb in ("prefill", "decode", "release_cache", "capabilities", "status", "metrics", "shutdown"):
            setattr(self, verb, getattr(inner, verb))


@contract("2.ExecutorRegistry")
def test_a_registry_refuses_a_duplicate_name() -> None:
    registry: Registry[int] = Registry("number")
    assert registry.register("one")(1) == 1
    registry.add("two", 2)
    with pytest.raises(ConfigError, match="number 'one'"):
        registry.add("one", 3)
    assert registry.get("one") == 1 and "one" in registry and len(registry) == 2 and list(registry) == ["one", "two"]


@contract("2.ExecutorRegistry")
def test_an_unknown_name_lists_the_known_ones() -> None:
    registry: Registry[int] = Registry("number")
    with pytest.raises(Unsupported, match=r"number .one.*none"):
        registry.get("one")
    registry.add("two", 2)
    registry.add("three", 3)
    with pytest.raises(Unsupported, match=r"number 'one'.*three, two"):
        registry.get("one")


@contract("2.ExecutorRegistry")
def test_executors_are_registered_by_name() -> None:
    registry, executor = ExecutorRegistry(), Echo()
    registry.register("main", executor)
    registry.register("draft", Echo())
    assert registry.list_names() == ["draft", "main"] and registry.get("main") is executor
    executor.prefill([1, 2])
    assert registry.get_metrics("main").prefill_operations == 1
    with pytest.raises(ConfigError):
        registry.register("main", executor)
    for call in (registry.get, registry.remove, registry.get_metrics):
        with pytest.raises(ModelNotFound, match="draft, main"):
            call("other")
    with executor.lease("an engine"), pytest.raises(ExecutorInUse):
        registry.remove("main")
    assert registry.remove("main") is executor and registry.list_names() == ["draft"]
    for other in (None, object(), Echo):
        with pytest.raises(RequestError) as caught:
            registry.register("x", other)
        assert caught.value.param == "executor" and registry.list_names() == ["draft"]
    for other in (None, 5, ["draft"]):
        with pytest.raises(ConfigError) as caught:
            registry.register(other, executor)
        assert caught.value.param == "name"
        for call in (registry.get, registry.remove, registry.get_metrics):
            with pytest.raises(ModelNotFound):
                call(other)


@contract("2.ExecutorRegistry")
def test_a_registry_takes_anything_that_has_the_verbs() -> None:
    registry, inner = ExecutorRegistry(), LlmExecutor(Sum(), INFO)
    remote, awaited = Remote(inner), AsyncModelExecutor(inner)
    registry.register("remote", remote)
    registry.register("awaited", awaited)
    registry.get("remote").prefill([1, 2])
    assert asyncio.run(awaited.prefill([3])).kv_cache.sequence_length == 1
    assert registry.get_metrics("remote").prefill_operations == registry.get_metrics("awaited").prefill_operations == 2
    with inner.lease("an engine"), pytest.raises(ExecutorInUse):
        registry.remove("awaited")
    assert registry.remove("awaited") is awaited and registry.remove("remote") is remote
    del remote.decode
    with pytest.raises(RequestError, match="lacks decode"):
        registry.register("remote", remote)


class Five(ferrum.AnyExecutor):
    """An executor of the five required methods: handles count the tokens, and logits name the token."""

    info = INFO

    def prefill(self, inputs: ferrum.PrefillInput) -> ferrum.PrefillOutput:
        stored = 0 if inputs.kv_cache is None else inputs.kv_cache.sequence_length
        logits = np.eye(10, dtype=np.float32)[[inputs.input_ids[0][-1:]]]
        return ferrum.PrefillOutput(logits, handle_of(stored + inputs.sequence_length))

    def decode(self, inputs: DecodeInput) -> ferrum.DecodeOutput:
        logits = np.eye(10, dtype=np.float32)[[inputs.token]]
        return ferrum.DecodeOutput(logits, handle_of(inputs.kv_cache.sequence_length + 1))

    def capabilities(self) -> ferrum.ExecutorCapabilities:
        return LlmExecutor(Sum(), INFO).capabilities()

    def status(self) -> ferrum.ExecutorStatus:
        return LlmExecutor(Sum(), INFO).status()


def handle_of(length: int) -> ferrum.KvCacheHandle:
    return ferrum.KvCacheHandle(
        cache_id="a",
        sequence_length=length,
        num_layers=1,
        num_kv_heads=1,
        head_dim=1,
        dtype=DataType.FLOAT32,
        device=ferrum.Device.CPU,
        block_table=(),
        generation=0,
        executor_id="five",
    )


@contract("2.BatchModelExecutor")
def test_an_executor_of_five_methods_has_the_defaults_of_the_trait() -> None:
    executor = Five()
    outputs = executor.batch_prefill([ferrum.PrefillInput([1, 2]), ferrum.PrefillInput([3])])
    assert [best(output.logits) for output in outputs] == [[2], [3]]
    outputs = executor.batch_decode([DecodeInput([4], handle_of(2)), DecodeInput([5], handle_of(7))])
    assert [output.kv_cache.sequence_length for output in outputs] == [3, 8]
    rows = executor.forward_verify([DecodeInput([token], handle_of(2)) for token in (1, 2, 3)])
    assert [row.kv_cache.sequence_length for row in rows] == [3, 4, 5]
    assert executor.truncate_kv(rows[-1].kv_cache, 3) == handle_of(3)
    assert executor.kv_capacity() is executor.cache_metrics_snapshot() is executor.lora_metrics_snapshot() is None
    assert executor.warmup() is executor.release_cache("a") is executor.shutdown() is None
    for call in (executor.forward, executor.unified_decode):
        with pytest.raises(ferrum.Unsupported, match="Five does not implement it"):
            call([[1]])
    registry = ExecutorRegistry()
    registry.register("five", executor)
    with pytest.raises(ferrum.Unsupported):
        registry.get_metrics("five")
    assert registry.remove("five") is executor


@contract("2.BatchModelExecutor")
def test_executors_are_instances_of_their_protocols() -> None:
    inner = LlmExecutor(Sum(), INFO)
    for executor in (inner, Echo(), Five(), AsyncModelExecutor(inner)):
        assert isinstance(executor, ferrum.AnyExecutor)
    assert isinstance(inner, ferrum.BatchModelExecutor) and not isinstance(Five(), ferrum.BatchModelExecutor)
    assert not isinstance(object(), ferrum.AnyExecutor)


@contract("3.LlmExecutor")
@pytest.mark.parametrize("protocol", [ferrum.AnyExecutor, ferrum.BatchModelExecutor, ferrum.MinimalLLM])
def test_a_required_method_is_not_left_out_silently(protocol: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        type("Lacking", (protocol,), {})()


@contract("2.status")
@contract("2.serialisation")
def test_a_status_of_the_rust_engine_is_read() -> None:
    with LlmExecutor(Sum(), INFO) as executor:
        executor.prefill([1])
        own = executor.status().to_dict()
    eight = """state is_ready current_batch_size prefill_operations decode_operations avg_prefill_time_ms
               avg_decode_time_ms memory_usage"""
    status = ferrum.ExecutorStatus.from_dict({name: own[name] for name in eight.split()})
    assert status.prefill_operations == 1 and status.last_operation is None and status.backend == ""
    assert ferrum.ExecutorStatus.from_json(status.to_json()) == status
