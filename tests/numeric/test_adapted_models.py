"""Models of all families with adapters: rows without one keep their bits, and batches and cuts change none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from changed_sites import random_adapter, random_norms
from family_twin import MODELS
from ferrum.core.errors import RequestError
from ferrum.core.step import AdapterUse, Rows, Span, SpanExtras, StepBatch, Want
from ferrum.kernels.adapters import AdapterSite, Change, LowRank, SiteKind
from ferrum.kernels.op_spec import OpSpec
from ferrum.kernels.operations import Operations
from ferrum.models.tensor_names import HEAD
from ferrum.nn.linear import weight_names
from ferrum.quant.dense import DenseWeight
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from native_twin import require_native, same_bits
from tiny import directory_of, tokens_of

LENGTH = 40
A, B, NORMS = AdapterUse("a"), AdapterUse("b", 0.6), AdapterUse("norms")
KINDS: tuple[tuple[AdapterUse, ...], ...] = ((), (A,), (B,), (A, B), (B, A), (NORMS,))

SOME = (
    *("gemma2", "gemma4-shared", "gemma4-experts", "llama4", "cohere2-bias", "gpt-oss", "qwen2-moe", "granite"),
    *("deepseek-v2-groups", "deepseek-v3-halves", "phi3-partial", "starcoder2"),
)
"""Models with norms before and after parts, softcaps, per-layer embeddings, biases, experts, latent vectors."""


@cache
def executor_of(name: str, kernels: str) -> LocalExecutor:
    """Return a model that holds two adapters of all its matrices, and one of these and of all norms."""
    small = {"page_size": 16, "kv_capacity": 16 * 32, "max_rows": 64}
    executor = load_executor(directory_of(MODELS[name]), kernels=kernels, dtype="float32", **small)
    slots = executor.lm.adapters
    for key, rank in (("a", 3), ("b", 8)):
        slots.add(key, slots.prepare(random_adapter(executor.lm, rank, rank)))
    slots.add("norms", slots.prepare(random_adapter(executor.lm, 5, 2) | random_norms(executor.lm, 5)))
    return executor


def tokens(name: str) -> tuple[int, ...]:
    return tuple(tokens_of(MODELS[name], LENGTH, 1))


def span_of(name: str, index: int, begin: int, end: int, uses: Sequence[AdapterUse]) -> Span:
    """Return a span of a sequence with adapters, of which all rows are wanted."""
    extras = SpanExtras(adapters=(*uses,)).or_none()
    return Span(str(index), begin, tokens(name)[begin:end], Want.LOGITS, Rows.ALL, extras=extras)


def run(executor: LocalExecutor, name: str, *sequences: tuple[int, int, Sequence[AdapterUse]]) -> list[np.ndarray]:
    """Return the logits of one step: for each sequence tokens from a position to another, with adapters."""
    spans = [span_of(name, index, *sequence) for index, sequence in enumerate(sequences)]
    found = []
    for result in executor.submit(StepBatch(tuple(spans))).result().results:
        assert not isinstance(result, Exception), result
        found.append(np.array(result.logits))
    return found


@cache
def alone(name: str, kernels: str, uses: tuple[AdapterUse, ...]) -> np.ndarray:
    executor = executor_of(name, kernels)
    executor.reset()
    (found,) = run(executor, name, (0, LENGTH, uses))
    executor.reset()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_without_an_adapter_keeps_its_bits_next_to_others(name: str) -> None:
    """Its step runs the program with adapters; alone it runs the other one."""
    require_native()
    executor = executor_of(name, "native")
    base, changed, normed = (alone(name, "native", uses) for uses in ((), (A,), (NORMS,)))
    executor.reset()
    half = LENGTH // 2
    for begin, end in ((0, half), (half, LENGTH)):
        uses: tuple[tuple[AdapterUse, ...], ...] = ((), (A,), (A, B), (NORMS,))
        plain, one, both, other = run(executor, name, *((begin, end, each) for each in uses))
        same_bits(plain, base[begin:end])
        same_bits(one, changed[begin:end])
        same_bits(other, normed[begin:end])
        assert np.isfinite(both).all() and (both != one).any() and (one != plain).any()
    executor.reset()


@pytest.mark.parametrize("name", SOME)
def test_native_and_reference_agree_on_models_with_adapters(name: str) -> None:
    require_native()
    for uses in ((A,), (A, B), (NORMS,)):
        same_bits(alone(name, "native", uses), alone(name, "reference", uses))


@pytest.mark.parametrize("name", SOME)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bits_depend_on_no_cut_and_no_batch(name: str, data: st.DataObject) -> None:
    require_native()
    expected = {kind: alone(name, "native", kind) for kind in KINDS}
    executor = executor_of(name, "native")
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=3, max_size=5))
    lengths = [0] * len(kinds)
    while min(lengths) < LENGTH:
        ends = [min(LENGTH, length + data.draw(st.integers(1, 12))) for length in lengths]
        chosen = [i for i, length in enumerate(lengths) if length < LENGTH and data.draw(st.booleans())]
        spans = [span_of(name, i, lengths[i], ends[i], kinds[i]) for i in chosen]
        results = executor.submit(StepBatch(tuple(spans))).result().results if spans else ()
        for i, result in zip(chosen, results, strict=True):
            same_bits(result.logits, expected[kinds[i]][lengths[i] : ends[i]])
            lengths[i] = ends[i]
    executor.reset()


class MergedOperations(Operations):
    """Operations on matrices with an adapter added, in float32."""

    def __init__(self, kernels: Operations, merged: dict[int, Any], head: Any) -> None:
        self._kernels, self._merged, self._head = kernels, merged, head

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        def other(argument: Any) -> Any:
            if isinstance(argument, tuple):
                return tuple(map(other, argument))
            return self._merged.get(id(argument), argument)

        if spec.name == "head":
            arguments = arguments[0], self._head, *arguments[2:]
        elif not (spec.name == "embed" and arguments[2] != 1):
            arguments = tuple(map(other, arguments))
        return getattr(self._kernels, spec.name)(*arguments)


def merged_matrix(site: AdapterSite, matrix: Any, change: Change) -> DenseWeight:
    """Return a matrix plus the product of an adapter, group by group."""
    low, groups = change.low_rank, site.groups
    assert isinstance(low, LowRank)
    if site.kind is SiteKind.EMBEDDING:
        return DenseWeight((matrix.dequantize() + low.scale * low.a @ low.b.T).astype(np.float32))
    a, b = (np.broadcast_to(each, (groups, *each.shape[-2:])) for each in (low.a, low.b))
    return DenseWeight((matrix.dequantize() + low.scale * (b @ a).reshape(matrix.shape)).astype(np.float32))


@pytest.mark.parametrize("name", SOME)
def test_an_adapter_equals_its_sum_with_the_matrices(name: str) -> None:
    """The network runs a second time with all matrices replaced by W + s B A."""
    executor = executor_of(name, "reference")
    found, lm = alone(name, "reference", (A,)), executor.lm
    changes, names = random_adapter(lm, 3, 3), {name: id for id, name in weight_names(lm.network).items()}
    merged, head = dict[int, Any](), None
    for site in lm.adapters.sites:
        if site.kind is SiteKind.NORM:
            continue  # they have no matrices
        for each, (matrix, _) in zip(site.names, site.base, strict=True):
            made = merged_matrix(site, matrix, changes[each])
            if each == HEAD and site.kind is SiteKind.HEAD:
                head = made
            else:
                merged[names[each]] = made
    network, replay = lm.network, lm.replay
    try:
        lm.network = lambda kernels, states=None: network(MergedOperations(kernels, merged, head), states)
        lm.replay = None
        (expected,) = run(executor, name, (0, LENGTH, ()))
    finally:
        lm.network, lm.replay = network, replay
        executor.reset()
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max(), rtol=0)


def test_keys_of_latent_attention_have_one_adapter_from_the_start() -> None:
    """All queries compute keys from the latent vectors again, so none before an aLoRA's start could keep its own."""
    lm = executor_of("deepseek-v3-halves", "reference").lm
    error = lm.adapters.refuse((AdapterUse("a", start=8),))
    assert isinstance(error, RequestError) and "kv_b_proj" in str(error)


def test_adapters_that_no_sequence_uses_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without adapters runs the program that it runs in a model that never had one."""
    require_native()
    executor = executor_of("qwen3-moe", "native")
    executor.reset()
    steps = list[str]()

    def counted(name: str, replay: Any) -> Any:
        class Counted:
            def submit(self, *arguments: Any) -> Any:
                steps.append(name)
                return replay.submit(*arguments)

        return Counted()

    lm = executor.lm
    monkeypatch.setattr(lm, "replay", counted("plain", lm.replay))
    monkeypatch.setattr(lm.adapted, "replay", counted("adapted", lm.adapted.replay))
    for uses in ((), (A,), ()):
        run(executor, "qwen3-moe", (0, LENGTH, uses))
        executor.reset()
    assert steps == ["plain", "adapted", "plain"]


def test_removed_adapters_leave_their_slots_to_others() -> None:
    """A slot that is used again has the bits of the new adapter, in models with experts too."""
    require_native()
    executor = executor_of("qwen3-moe", "native")
    slots, expected = executor.lm.adapters, alone("qwen3-moe", "native", (B,))
    slots.remove("a")
    with_b = slots.prepare(random_adapter(executor.lm, 8, 8))
    slots.add("c", with_b)
    (found,) = run(executor, "qwen3-moe", (0, LENGTH, (AdapterUse("c", 0.6),)))
    executor.reset()
    same_bits(found, expected)
    slots.remove("c")
    assert slots.refuse((A,)) is not None and slots.refuse((B,)) is None
    slots.add("a", slots.prepare(random_adapter(executor.lm, 3, 3)))
