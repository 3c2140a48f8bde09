"""Products of matrices with an order of inputs: each gathers the inputs of a row, then rounds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from changed_sites import site_of, uses
from ferrum.kernels.adapters import Change, LowRank, SiteKind
from ferrum.kernels.op_attributes import SILU, Routing
from ferrum.quant.ordered_weight import OrderedWeight
from ferrum.verbs.load_executor import load_executor
from native_twin import TIERS, Twin, normal, same_bits, tables_of
from native_weights import weight_of
from quantized_kit import gptq, write_quantized
from tiny import Case, directory_of

ROWS = (1, 2, 9, 600)
FORMATS = ("q4_0", "q5_0", "q8_0", "q2_k")


def with_order(rng: np.random.Generator, outputs: int, inputs: int, format: str, runs: int = 1) -> OrderedWeight:
    order = np.stack([rng.permutation(inputs) for _ in range(runs)]).astype(np.int32)
    return OrderedWeight(weight_of(rng, outputs, inputs, format), order)


@pytest.mark.parametrize("tier", TIERS)
def test_products_equal_those_of_sorted_inputs_alone_and_among_others(tier: str) -> None:
    """Of one input: two matrices with an order in common, one with another, one without."""
    rng, twin = np.random.default_rng(1), Twin(tier, 2)
    for format in FORMATS:
        first = with_order(rng, 75, 320, format)
        alike = OrderedWeight(weight_of(rng, 40, 320, format), first.order.copy())
        weights = first, with_order(rng, 33, 320, format), alike, first.stored, weight_of(rng, 40, 320, "q6_k")
        x = normal(rng, max(ROWS), 320)
        whole = twin.reference.linear(x, weights, (None,) * 5)
        np.testing.assert_array_equal(whole[0], first.stored.matmul(x[:, first.order[0]]))
        np.testing.assert_array_equal(whole[2], alike.stored.matmul(x[:, first.order[0]]))
        packed = twin._packed(weights)
        for rows in ROWS:
            for ours, theirs in zip(twin.native.linear(x[-rows:], packed, (None,) * 5), whole, strict=True):
                same_bits(ours, theirs[-rows:])
        other = with_order(rng, 75, 320, format)
        same_bits(*twin.both("gated_linear", x[:9], first, other, SILU, *normal(rng, 2, 75)))
        same_bits(*twin.both("gated_linear", x[:9], first, OrderedWeight(other.stored, first.order)))


@pytest.mark.parametrize("tier", TIERS)
def test_rows_are_in_the_order_of_the_inputs(tier: str) -> None:
    rng, twin = np.random.default_rng(2), Twin(tier, 1)
    weight = with_order(rng, 96, 64, "q4_0", runs=3)
    expected = np.empty((96, 64), np.float32)
    for row, numbers in enumerate(weight.stored.dequantize()):
        expected[row, weight.order[row // 32]] = numbers
    packed = twin.native.weight(weight)
    assert packed.nbytes == weight.nbytes == weight.stored.nbytes + 3 * 64 * 4
    for found in (weight, packed):
        np.testing.assert_array_equal(found.dequantize(), expected)
        np.testing.assert_array_equal(found.part(32, 96).dequantize(), expected[32:])
        np.testing.assert_array_equal(found.rows(np.array([95, 0], np.int32)), expected[[95, 0]])


EXPERTS, HIDDEN, INNER = 6, 96, 64
SIZES = (EXPERTS * INNER, HIDDEN), (EXPERTS * INNER, HIDDEN), (EXPERTS * HIDDEN, INNER)


def changes_of(rng: np.random.Generator, shapes: tuple[tuple[int, int], ...], groups: int | None) -> Any:
    """Return changes of a rank of 3 for each matrix, or for each of several groups."""
    count = () if groups is None else (groups,)
    return tuple(
        Change(LowRank(normal(rng, *count, 3, inputs), normal(rng, *count, outputs // (groups or 1), 3), 0.5))
        for outputs, inputs in shapes
    )


@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("tier", TIERS)
def test_each_expert_has_an_order_and_adapters_take_the_inputs_as_they_are(tier: str, on_input: bool) -> None:
    rng, twin = np.random.default_rng(3), Twin(tier, 2)
    routing = Routing(EXPERTS, 2, score="sigmoid", late=True, on_input=on_input)
    gate, up, down = (with_order(rng, *size, "q4_0", runs=EXPERTS) for size in SIZES)
    x, scores = normal(rng, 65, HIDDEN), normal(rng, 65, EXPERTS)
    sites = [
        site_of(kernels, SiteKind.EXPERTS, SIZES, [changes_of(np.random.default_rng(4), SIZES, EXPERTS)], EXPERTS)
        for kernels in (twin.native, twin.reference)
    ]
    for weights in (
        (gate, up, down),
        (gate, OrderedWeight(up.stored, gate.order), down),
        (gate.stored, up, down.stored),
    ):
        packed = twin._packed(weights)
        for rows in (65, 1):
            given = x[:rows], scores[:rows], routing
            twin.begin(tables_of(rng, [(0, rows)], ()))
            same_bits(twin.native.experts(*given, *packed), twin.reference.experts(*given, *weights))
            twin.begin(tables_of(rng, [(0, rows)], ())._replace(adapters=uses((0, 1.0, range(0, rows, 2)))))
            rest = SILU, *(None,) * 5
            ours = twin.native.experts(*given, *packed, *rest, sites[0])
            same_bits(ours, twin.reference.experts(*given, *weights, *rest, sites[1]))


@pytest.mark.parametrize("tier", TIERS)
def test_heads_and_changed_products_equal_the_reference(tier: str) -> None:
    rng, twin, shapes = np.random.default_rng(5), Twin(tier, 2), ((75, 64), (40, 64))
    heads = with_order(rng, 3 * 64, 64, "q5_0", runs=3)
    weights = tuple(with_order(rng, *shape, "q4_0") for shape in shapes)
    entry = changes_of(rng, shapes, None)
    for rows in (1, 23):
        same_bits(*twin.both("head_linear", normal(rng, rows, 3 * 64), heads, 3))
        x = normal(rng, rows, 64)
        twin.begin(tables_of(rng, [(0, rows)], ())._replace(adapters=uses((0, 1.0, range(0, rows, 2)))))
        native, reference = (site_of(each, SiteKind.LINEAR, shapes, [entry]) for each in (twin.native, twin.reference))
        ours = twin.native.linear(x, twin._packed(weights), (None, None), None, native)
        for found, expected in zip(ours, twin.reference.linear(x, weights, (None, None), None, reference), strict=True):
            same_bits(found, expected)


SPARSE = Case(
    "qwen3-moe-ordered",
    "Qwen3MoeConfig",
    {"hidden_size": 64, "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "head_dim": 16},
)


def test_experts_of_a_directory_keep_their_blocks_and_orders(tmp_path: Path) -> None:
    """Matrices that are read apart are one of all experts, with an order for each."""
    found = write_quantized(directory_of(SPARSE), tmp_path, gptq(shuffled=True), r"experts\..*_proj\.weight")
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    with load_executor(str(found.directory), kv_capacity=256) as executor:
        formats = {name: weight.format for name, weight in executor.lm.network.weights.items() if "experts" in name}
        assert set(formats.values()) == {"q4_0"}
        ours = np.asarray(executor.forward(tokens))
    with load_executor(str(found.directory), kv_capacity=256, kernels="reference") as executor:
        np.testing.assert_array_equal(ours, executor.forward(tokens))
    with load_executor(str(found.plain), kv_capacity=256) as executor:
        whole = np.asarray(executor.forward(tokens))
    assert 0 < np.linalg.norm(ours - whole) < 0.04 * np.linalg.norm(whole)
