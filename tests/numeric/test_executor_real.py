"""The executor on tiny random models: parity with `transformers`, one pass per verb, CARRY tokens, and its reports.

Requirements of every executor are in `contract_verbs`, which `test_contract_local` runs on the same models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from ferrum import load_executor
from ferrum.contract.decoder_llm import LogitsPolicy
from ferrum.contract.model_info import DataType
from ferrum.contract.step_executor import ExecutorState
from ferrum.core.errors import ConfigError, ExecutorInUse, InvalidTransition, RequestError, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.snapshots import SpeculationCounts
from ferrum.core.step import CARRY, Hidden, Rows, Sampling, Span, SpanResult, StepBatch, Want
from ferrum.verbs.executor_reports import AttentionType
from ferrum.verbs.io_types import DecodeInput, PrefillInput, UnifiedBatch, UnifiedBatchItem
from ferrum.verbs.load_executor import LocalExecutor
from tiny import directory_of, find, model_of, reference_logits, tokens_of

WINDOWS = "qwen3-windows"
TOKENS = tokens_of(find(WINDOWS), 40, seed=8)


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    with load_executor(directory_of(find(WINDOWS)), kernels="reference", page_size=8, kv_capacity=512) as made:
        yield made


class CountingKernels:
    """Kernels that count their calls and the steps."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            return attribute(*arguments)

        return call


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# Passes


@pytest.mark.contract("2.batch_prefill")
@pytest.mark.contract("2.batch_decode")
@pytest.mark.contract("2.unified_decode")
@pytest.mark.contract("2.forward_verify")
def test_every_list_verb_embeds_once_and_has_one_head(executor: LocalExecutor) -> None:
    spy = CountingKernels(executor.lm.kernels)
    executor.lm.kernels = spy

    def passes() -> tuple[int, ...]:
        counted = spy.calls["begin"], spy.calls["embed"], spy.calls["head"], spy.calls["attention"]
        spy.calls.clear()
        return counted

    once = (1, 1, 1, executor.info.num_layers)
    handles = [o.kv_cache for o in executor.batch_prefill([PrefillInput(TOKENS[:n]) for n in (9, 1, 17)])]
    assert passes() == once
    handles = [o.kv_cache for o in executor.batch_decode([DecodeInput([5], handle) for handle in handles])]
    assert passes() == once
    executor.unified_decode(
        UnifiedBatch(
            (
                UnifiedBatchItem("fresh", TOKENS[:12], 0, is_final_chunk=False),
                UnifiedBatchItem(handles[0], [1, 2, 3], 10, logits_policy=LogitsPolicy.ALL),
                UnifiedBatchItem(handles[1], [4], 2),
            )
        )
    )
    assert passes() == once
    executor.forward_verify([DecodeInput([token], handles[2]) for token in (1, 2, 3)])
    assert passes() == once


@pytest.mark.contract("2.submit")
def test_a_step_larger_than_the_buffers_gives_the_same_bits_in_more_passes(executor: LocalExecutor) -> None:
    expected = executor.forward(TOKENS)[0]
    with load_executor(
        directory_of(find(WINDOWS)), kernels="reference", kv_capacity=512, max_batch_size=2, max_rows=7
    ) as small:
        spy = CountingKernels(small.lm.kernels)
        small.lm.kernels = spy
        np.testing.assert_array_equal(small.forward(TOKENS)[0], expected)
        assert spy.calls["begin"] == -(-len(TOKENS) // 7)


# Parity with transformers


@cache
def twin(name: str) -> Any:
    """Return the hidden states and attention weights of transformers for TOKENS."""
    with torch.no_grad():
        return model_of(find(name)).float()(torch.tensor([TOKENS]), output_hidden_states=True, output_attentions=True)


@pytest.mark.contract("1.PrefillOutput")
@pytest.mark.contract("1.DecodeOutput")
@pytest.mark.parametrize("name", [WINDOWS, "llama3"])
def test_hidden_states_match_transformers(name: str) -> None:
    expected = twin(name).hidden_states[-1][0].numpy()
    with load_executor(directory_of(find(name)), kernels="reference", kv_capacity=512) as executor:
        whole = executor.prefill(PrefillInput(TOKENS, return_hidden_states=True)).hidden_states
        assert relative(whole[0], expected) < 1e-4
        chunk = executor.prefill(PrefillInput(TOKENS[:23], return_hidden_states=True))
        rest = executor.prefill(PrefillInput(TOKENS[23:-1], return_hidden_states=True).with_kv_cache(chunk.kv_cache))
        last = executor.decode(DecodeInput([TOKENS[-1]], rest.kv_cache, return_hidden_states=True))
        pieces = [chunk.hidden_states[0], rest.hidden_states[0], last.hidden_state]
        np.testing.assert_array_equal(np.concatenate(pieces), whole[0])
        span = Span("mean", 0, tuple(TOKENS), Want.NONE, hidden=Hidden.MEAN)
        (result,) = executor.submit(StepBatch((span,))).result().results
        assert relative(result.hidden[0], expected.mean(axis=0)) < 1e-4


@pytest.mark.contract("1.PrefillOutput")
@pytest.mark.contract("1.DecodeOutput")
@pytest.mark.parametrize("name", [WINDOWS, "llama3", "mistral"])
def test_attention_weights_match_transformers_with_windows_and_chunks(name: str) -> None:
    expected = [layer[0].numpy() for layer in twin(name).attentions]
    with load_executor(directory_of(find(name)), kernels="reference", page_size=8, kv_capacity=512) as executor:
        asked = {"return_attention_weights": True}
        whole = executor.prefill(PrefillInput(TOKENS, **asked)).attention_weights
        assert len(whole) == executor.info.num_layers
        for found, layer in zip(whole, expected, strict=True):
            np.testing.assert_allclose(found, layer, atol=1e-5)
        chunk = executor.prefill(PrefillInput(TOKENS[:23], **asked))
        rest = executor.prefill(PrefillInput(TOKENS[23:-1], **asked).with_kv_cache(chunk.kv_cache))
        last = executor.decode(DecodeInput([TOKENS[-1]], rest.kv_cache, **asked))
        for begin, weights in ((0, chunk), (23, rest), (len(TOKENS) - 1, last)):
            for found, layer in zip(weights.attention_weights, expected, strict=True):
                rows, end = found.shape[1:]
                assert end == begin + rows
                np.testing.assert_allclose(found, layer[:, begin:end, :end], atol=1e-5)


@pytest.mark.contract("2.speculative_decode")
@pytest.mark.contract("5.speculation is exact")
def test_exact_speculation_matches_transformers_greedy_and_a_threshold_is_lossy(executor: LocalExecutor) -> None:
    history = list(TOKENS)
    for _ in range(5):
        history.append(int(reference_logits(find(WINDOWS), history)[-1].argmax()))
    handle = executor.prefill(PrefillInput(TOKENS[:-1])).kv_cache
    right = history[len(TOKENS) :]
    exact = executor.speculative_decode(DecodeInput([TOKENS[-1]], handle), [*right[:3], (right[3] + 1) % 131])
    assert list(exact.accepted_tokens) == right[:3]
    assert int(exact.next_logits.argmax()) == right[3]
    back = executor.truncate_kv(exact.kv_cache, len(TOKENS) - 1)
    unlikely = int(reference_logits(find(WINDOWS), TOKENS)[-1].argmin())
    lossy = executor.speculative_decode(DecodeInput([TOKENS[-1]], back), [unlikely], acceptance_threshold=0.0)
    assert lossy.accepted_tokens == (unlikely,) and lossy.kv_cache.sequence_length == len(TOKENS) + 1
    plain = executor.speculative_decode(DecodeInput([TOKENS[0]], lossy.kv_cache), [])
    assert plain.accepted_tokens == ()
    assert executor.cache_metrics_snapshot().speculation == SpeculationCounts(2, 5, 4, (2, 1, 1, 0))


# CARRY tokens


@pytest.mark.contract("2.submit")
@pytest.mark.parametrize("length", [0, 3, None])
def test_carry_is_refused_at_another_position(executor: LocalExecutor, length: int | None) -> None:
    sampling = Sampling(SamplingParams(temperature=0.0), 0, 10, TOKENS[:10])
    executor.submit(StepBatch((Span("it", 0, tuple(TOKENS[:10]), sampling=sampling),))).result()
    if length is None:
        executor.release_cache("it")
    else:
        executor.truncate_kv_for_cache_id("it", length)
    span = Span("it", length or 0, (CARRY,), Want.LOGITS)
    (error,) = executor.submit(StepBatch((span,))).result().results
    assert isinstance(error, RequestError) and error.param == "CARRY"
    executor.release_cache("it")


def sampled(executor: LocalExecutor, *, carry: bool) -> list[Any]:
    """Return twelve tokens and their log-probabilities; with `carry` the host never passes the sampled token."""
    params = SamplingParams(temperature=0.8, logprobs=2, frequency_penalty=0.5, repetition_penalty=1.2)
    history = list(TOKENS[:10])
    found: list[Any] = []
    late: list[int] = []
    for step in range(12):
        sampling = Sampling(params, 4, 10, history)
        tokens = tuple(history) if step == 0 else ((CARRY,) if carry else (history[-1],))
        span = Span("it", 0 if step == 0 else 9 + step, tokens, sampling=sampling)
        (result,) = executor.submit(StepBatch((span,))).result().results
        assert isinstance(result, SpanResult), result
        history += late if carry else result.tokens
        late = list(result.tokens)
        found.append((result.tokens, result.logprobs))
    executor.release_cache("it")
    return found


@pytest.mark.contract("2.submit")
def test_carry_is_the_token_sampled_in_the_step_before(executor: LocalExecutor) -> None:
    assert sampled(executor, carry=True) == sampled(executor, carry=False)


@pytest.mark.contract("2.submit")
@pytest.mark.parametrize(("start", "tokens"), [(0, (CARRY,)), (10, (3, CARRY)), (10, (CARRY,))])
def test_carry_is_refused_without_a_sampled_token(executor: LocalExecutor, start: int, tokens: tuple[int, ...]) -> None:
    executor.submit(StepBatch((Span("it", 0, tuple(TOKENS[:10]), Want.LOGITS),))).result()
    (alone,) = executor.submit(StepBatch((Span("other", 0, tuple(TOKENS), Want.LOGITS),))).result().results
    executor.release_cache("other")
    spans = (Span("it" if start else "new", start, tokens, Want.LOGITS), Span("other", 0, tuple(TOKENS), Want.LOGITS))
    error, beside = executor.submit(StepBatch(spans)).result().results
    assert isinstance(error, RequestError) and error.param == "CARRY"
    assert executor.pages.length("it") == 10 and "new" not in executor.pages
    np.testing.assert_array_equal(beside.logits, alone.logits)


# Reports


@pytest.mark.contract("2.capabilities")
@pytest.mark.contract("5.sizes follow heads and formats")
@pytest.mark.parametrize(
    ("name", "sharing", "windows"),
    [
        ("qwen3", AttentionType.GROUPED_QUERY, False),
        ("qwen3-mqa-wide-head-tied", AttentionType.MULTI_QUERY, False),
        ("qwen2-tied-mha", AttentionType.MULTI_HEAD, False),
        ("qwen3-windows", AttentionType.GROUPED_QUERY, True),
        ("mistral", AttentionType.GROUPED_QUERY, True),
        ("mistral-full", AttentionType.GROUPED_QUERY, False),
    ],
)
@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("bfloat16", 2)])
def test_capabilities_and_sizes_match_the_checkpoint(
    name: str, sharing: AttentionType, windows: bool, dtype: str, item: int
) -> None:
    config = model_of(find(name)).config
    with load_executor(directory_of(find(name)), kernels="reference", dtype=dtype, kv_capacity=512) as executor:
        can, info = executor.capabilities(), executor.info
        expected = {sharing, AttentionType.PAGED, AttentionType.FLASH}
        assert can.attention_mechanisms == expected | ({AttentionType.SLIDING_WINDOW} if windows else set())
        assert can.supports_speculative_decoding and can.supports_continuous_batching
        assert not can.supports_tensor_parallelism and not can.supports_pipeline_parallelism
        assert (info.num_layers, info.num_kv_heads) == (config.num_hidden_layers, config.num_key_value_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        assert info.head_dim == head_dim and info.dtype is DataType(dtype)
        per_layer = 2 * config.num_key_value_heads * head_dim * item
        assert executor.memory_requirements.kv_cache_memory_per_token == per_layer
        unique = {id(parameter): parameter.numel() for parameter in model_of(find(name)).parameters()}
        assert info.num_parameters == sum(unique.values())
        assert executor.prefill(PrefillInput([[1, 2]])).kv_cache.num_kv_heads == config.num_key_value_heads
    assert type(can).from_json(can.to_json()) == can and type(info).from_json(info.to_json()) == info


@pytest.mark.contract("0.load_executor")
@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "stored"),
    [
        ("auto", "auto", "float32"),
        ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "auto", "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("float16", "auto", "float32"),
        ("bfloat16", "int8", "int8"),
    ],
)
def test_formats_match_the_options(dtype: str, kv_dtype: str, stored: str) -> None:
    options = {"dtype": dtype, "kv_dtype": kv_dtype, "kernels": "reference", "kv_capacity": 256}
    with load_executor(directory_of(find("qwen2")), **options) as executor:
        assert executor.info.dtype == ("float32" if dtype == "auto" else dtype)
        handle = executor.prefill(PrefillInput([[1, 2, 3]])).kv_cache
        assert handle.dtype == stored and handle.device == "cpu"
        needs, info = executor.memory_requirements, executor.info
        head = info.head_dim + 4 if stored == "int8" else info.head_dim * DataType(stored).bits // 8
        assert needs.kv_cache_memory_per_token == 2 * info.num_kv_heads * head
        assert executor.memory_plan.kv_pool == 256 * needs.kv_cache_memory_per_token * info.num_layers


@pytest.mark.contract("0.load_executor")
@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("device", "cuda", Unsupported),
        ("quantize", "int3", ConfigError),
        ("kv_dtype", "int4", ConfigError),
        ("device", "metal", Unsupported),
        ("device", "cuda:one", ConfigError),
        ("kernels", "cuda", ConfigError),
        ("max_sequence_length", 257, ConfigError),
        ("max_batch_size", 0, ConfigError),
        ("dtype", "float64", ConfigError),
        ("page_size", 0, ConfigError),
        ("page_size", -1, ConfigError),
        ("page_size", 64.0, ConfigError),
        ("max_rows", 0, ConfigError),
        ("max_rows", 8.5, ConfigError),
        ("max_batch_size", 1 << 62, ConfigError),
        ("kv_capacity", "many", ConfigError),
        ("replay", "no", ConfigError),
        ("replay", 0, ConfigError),
        ("progress", 0, ConfigError),
        ("progress", "bar", ConfigError),
    ],
)
def test_invalid_options_are_refused_by_name(option: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=str(value)) as caught:
        load_executor(directory_of(find("qwen2")), **{option: value})
    assert option in str(caught.value) or getattr(caught.value, "param", None) == option


@pytest.mark.contract("0.load_executor")
def test_the_prefix_of_cache_ids_is_an_option() -> None:
    with load_executor(directory_of(find("qwen2")), kernels="reference", kv_capacity=64, cache_prefix="mine") as made:
        assert made.prefill([1, 2]).kv_cache.cache_id == "mine-0"
    with pytest.raises(RequestError) as caught:
        load_executor(directory_of(find("qwen2")), cache_prefix=5)  # type: ignore[arg-type]
    assert caught.value.param == "cache_prefix"


@pytest.mark.contract("0.load_executor")
@pytest.mark.contract("2.kv_capacity")
def test_limits_match_the_options() -> None:
    options = {"max_batch_size": 3, "max_sequence_length": 100, "kv_capacity": 130}
    with load_executor(directory_of(find("qwen2")), kernels="reference", **options) as executor:
        can = executor.capabilities()
        assert (can.max_batch_size, can.max_sequence_length) == (3, 100)
        assert executor.kv_capacity() == 192, "whole pages of 64"
        plan = executor.memory_plan
        assert [plan.max_sequences(length) for length in (192, 100, 64)] == [1, 1, 3]
        assert executor.supports_batch_size(3) and not executor.supports_batch_size(4)
        assert not executor.supports_batch_size(0)


@pytest.mark.contract("2.optimal_batch_size")
def test_the_best_batch_size_is_measured_once_and_leaves_no_sequences(executor: LocalExecutor) -> None:
    best = executor.optimal_batch_size()
    assert executor.supports_batch_size(best)
    steps = CountingKernels(executor.lm.kernels)
    executor.lm.kernels = steps
    assert executor.optimal_batch_size() == best and not steps.calls
    assert executor.cache_metrics_snapshot().used_pages == 0 and executor.metrics().total_operations == 0


@pytest.mark.contract("2.status")
@pytest.mark.contract("2.metrics")
@pytest.mark.contract("2.cache_metrics_snapshot")
@pytest.mark.contract("2.serialisation")
def test_reports_follow_the_steps(executor: LocalExecutor) -> None:
    idle = executor.status()
    assert (idle.backend, idle.numerics_id) == ("reference", executor.lm.kernels.numerics_id) and idle.numerics_id
    handle = executor.prefill(PrefillInput(TOKENS[:20])).kv_cache
    clone = executor.fork(handle)
    executor.batch_decode([DecodeInput([1], handle), DecodeInput([2], clone)])
    status, metrics, snapshot = executor.status(), executor.metrics(), executor.cache_metrics_snapshot()
    assert (status.prefill_operations, status.decode_operations) == (1, 2)
    assert (metrics.total_operations, snapshot.sequences, snapshot.stored_tokens) == (3, 2, 42)
    assert snapshot.shared_pages == 4, "two full pages in each of two layer groups"
    usage = status.memory_usage
    assert usage.allocated_bytes == executor.memory_plan.total
    page_bytes = {part.page_bytes for part in executor.memory_plan.pool}
    assert usage.used_bytes - idle.memory_usage.used_bytes == 4 * sum(page_bytes)
    for record in (status, metrics, snapshot, usage, executor.lora_metrics_snapshot(), executor.memory_plan, clone):
        assert type(record).from_json(record.to_json()) == record


@pytest.mark.contract("2.warmup")
@pytest.mark.contract("2.reset")
@pytest.mark.contract("2.lease")
def test_states_lease_and_shutdown() -> None:
    executor = load_executor(directory_of(find("qwen2")), kernels="reference", kv_capacity=256)
    executor.warmup()
    executor.warmup()
    assert executor.status().state is ExecutorState.READY
    with executor.lease("test"):
        span = Span("s", 0, (1, 2), Want.LOGITS, Rows.ALL)
        assert isinstance(executor.submit(StepBatch((span,))).result().results[0], SpanResult)
        for verb in (executor.reset, executor.shutdown, lambda: executor.forward([1])):
            with pytest.raises(ExecutorInUse):
                verb()
    executor.reset()
    assert executor.cache_metrics_snapshot().sequences == 0
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(InvalidTransition):
        executor.forward([[1]])
