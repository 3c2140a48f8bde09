"""The named verbs of an executor with adapters have the bits of steps whose spans name them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adapter_cases import BASES
from adapter_kit import executor_with, two_adapters
from ferrum import (
    AdapterUse,
    DecodeInput,
    KvCacheHandle,
    LogitsPolicy,
    PrefillInput,
    Rows,
    Span,
    SpanExtras,
    SpanResult,
    StepBatch,
    UnifiedBatch,
    UnifiedBatchItem,
    Want,
)
from ferrum.core.errors import KvExhausted, RequestError, UnknownSequence
from ferrum.verbs.load_executor import LocalExecutor

PROMPT, NEXT = (3, 1, 4, 1, 5, 9), (2, 6, 5)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[LocalExecutor]:
    case = BASES["qwen3"]
    with executor_with(case, two_adapters(case, tmp_path, "q_proj", "down_proj")) as executor:
        yield executor


@pytest.fixture
def latent(tmp_path: Path) -> Iterator[LocalExecutor]:
    case = BASES["deepseek-v3"]
    with executor_with(case, two_adapters(case, tmp_path, "kv_b_proj")) as executor:
        yield executor


def steps(executor: LocalExecutor, *parts: tuple[tuple[int, ...], str | None]) -> np.ndarray:
    """Return the logits [S, V] of one sequence, computed by a step for each part with its adapter."""
    rows, start = [], 0
    for tokens, key in parts:
        extras = SpanExtras(adapters=() if key is None else (AdapterUse(key),)).or_none()
        span = Span("steps", start, tokens, Want.LOGITS, Rows.ALL, extras=extras)
        (result,) = executor.submit(StepBatch((span,))).result().results
        assert isinstance(result, SpanResult), result
        rows.append(np.array(result.logits))
        start += len(tokens)
    executor.release_cache("steps")
    return np.concatenate(rows)


def begun(executor: LocalExecutor, name: str, key: str | None) -> KvCacheHandle:
    """Begin a sequence with the prompt and an adapter."""
    handle = executor.set_lora_adapter(name, key)
    return executor.prefill(PrefillInput(PROMPT, kv_cache=handle)).kv_cache


def test_each_verb_adds_the_adapter_of_its_sequence(executor: LocalExecutor) -> None:
    base = executor.forward([PROMPT])
    expected = steps(executor, (PROMPT, "k1"), (NEXT, "k1"))
    assert np.abs(base[0] - expected[: len(PROMPT)]).max() > 1e-3
    handle = executor.set_lora_adapter("x", "k1")
    assert handle.sequence_length == 0
    first = executor.prefill(PrefillInput(PROMPT[:2], kv_cache=handle, logits="all"))
    rest = executor.prefill(PrefillInput(PROMPT[2:], kv_cache=first.kv_cache, logits="all"))
    np.testing.assert_array_equal(np.concatenate((first.logits[0], rest.logits[0])), expected[: len(PROMPT)])
    end = rest.kv_cache
    fork = executor.fork(end)
    verified = executor.forward_verify([DecodeInput([token], end) for token in NEXT])
    np.testing.assert_array_equal(np.stack([each.logits[0] for each in verified]), expected[-len(NEXT) :])
    end = executor.truncate_kv_for_cache_id("x", len(PROMPT))
    np.testing.assert_array_equal(executor.decode(DecodeInput([NEXT[0]], fork)).logits[0], expected[len(PROMPT)])
    output = executor.speculative_decode(DecodeInput([NEXT[0]], end), [NEXT[1]])
    np.testing.assert_array_equal(output.next_logits[0], expected[len(PROMPT) + output.acceptance_count])
    np.testing.assert_array_equal(executor.forward([PROMPT]), base)
    assert executor.lora_metrics_snapshot().active == ("k1",)


def test_a_batch_mixes_adapters(executor: LocalExecutor) -> None:
    keys = ("k0", None, "k1")
    handles = [begun(executor, f"s{key}", key) for key in keys]
    outputs = executor.batch_decode([DecodeInput([NEXT[0]], handle) for handle in handles])
    for key, output in zip(keys, outputs, strict=True):
        expected = steps(executor, (PROMPT, key), (NEXT[:1], key))[-1]
        np.testing.assert_array_equal(output.logits[0], expected)


def test_an_adapter_may_change_between_tokens(executor: LocalExecutor) -> None:
    handle = begun(executor, "x", "k0")
    expected = steps(executor, (PROMPT, "k0"), (NEXT[:1], "k1"), (NEXT[1:2], None))[-2:]
    for key, token, row in zip(("k1", None), NEXT, expected, strict=False):
        executor.set_lora_adapter(handle, key)
        output = executor.decode(DecodeInput([token], handle))
        np.testing.assert_array_equal(output.logits[0], row)
        handle = output.kv_cache


def test_the_adapter_of_an_item_stays_with_its_sequence(executor: LocalExecutor) -> None:
    expected = steps(executor, (PROMPT, "k1"), (NEXT, "k1"))
    item = UnifiedBatchItem("x", PROMPT, 0, True, LogitsPolicy.ALL, adapter="k1")
    (rows,) = executor.unified_decode(UnifiedBatch((item,)))
    np.testing.assert_array_equal(rows, expected[: len(PROMPT)])
    output = executor.decode(DecodeInput([NEXT[0]], executor.handle("x")))
    (last,) = executor.unified_decode(UnifiedBatch((UnifiedBatchItem("x", NEXT[1:], len(PROMPT) + 1),)))
    np.testing.assert_array_equal(np.stack((output.logits[0], last[0])), expected[[len(PROMPT), -1]])


def test_an_error_changes_no_adapter(executor: LocalExecutor) -> None:
    handle = begun(executor, "x", "k0")
    item = UnifiedBatchItem("x", NEXT[:1], len(PROMPT), adapter="k1")
    large = UnifiedBatchItem("large", (7,) * 256, 0)
    executor.prefill([5] * 250)
    with pytest.raises(KvExhausted):
        executor.unified_decode(UnifiedBatch((item, large)))
    for key in ("k9", ""):
        with pytest.raises(RequestError, match=f"no adapter '{key}' is loaded"):
            executor.set_lora_adapter("x", key)
    with pytest.raises(UnknownSequence, match="reserved"):
        executor.set_lora_adapter("llm-cache-77", "k0")
    expected = steps(executor, (PROMPT, "k0"), (NEXT[:1], "k0"), (NEXT[1:2], None))[-2:]
    np.testing.assert_array_equal(executor.decode(DecodeInput([NEXT[0]], handle)).logits[0], expected[0])
    executor.set_lora_adapter("x", "k1")
    executor.unload_adapter("k1")
    with pytest.raises(RequestError, match="no adapter 'k1' is loaded"):
        executor.decode(DecodeInput([NEXT[1]], executor.handle("x")))
    executor.set_lora_adapter("x", None)
    np.testing.assert_array_equal(executor.decode(DecodeInput([NEXT[1]], executor.handle("x"))).logits[0], expected[1])


@pytest.mark.parametrize("end", ["release", "reset"])
def test_a_name_that_ends_loses_its_adapter(executor: LocalExecutor, end: str) -> None:
    begun(executor, "x", "k0")
    if end == "release":
        executor.release_cache("x")
    else:
        executor.reset()
    assert executor.lora_metrics_snapshot().active == ()
    (rows,) = executor.unified_decode(UnifiedBatch((UnifiedBatchItem("x", PROMPT, 0, True, LogitsPolicy.ALL),)))
    np.testing.assert_array_equal(rows, executor.forward([PROMPT])[0])


def test_adapters_of_latent_keys_stay_from_the_first_token_on(latent: LocalExecutor) -> None:
    items = [UnifiedBatchItem("x", PROMPT[:2], 0, adapter="k0"), UnifiedBatchItem("x", PROMPT[2:], 2, adapter="k0")]
    outputs = [latent.unified_decode(UnifiedBatch((item,)))[0] for item in items]
    np.testing.assert_array_equal(outputs[-1][0], steps(latent, (PROMPT, "k0"))[-1])
    begun(latent, "base", None)
    for name, key in (("x", "k1"), ("x", None), ("base", "k0")):
        with pytest.raises(RequestError, match="must begin with the prompt"):
            latent.set_lora_adapter(name, key)
    latent.truncate_kv_for_cache_id("x", 0)
    output = latent.prefill(PrefillInput(PROMPT, kv_cache=latent.set_lora_adapter("x", "k1")))
    np.testing.assert_array_equal(output.logits[0, 0], steps(latent, (PROMPT, "k1"))[-1])
