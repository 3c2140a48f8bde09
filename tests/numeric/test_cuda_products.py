"""Products of weights in blocks on the emulated CUDA device have the reference's bits."""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from emulated_cuda import emulated_kernels
from ferrum.kernels.cuda.cuda_kernels import CudaKernels
from ferrum.kernels.cuda.device_memory import DeviceRows
from ferrum.kernels.cuda.launches import Operand
from ferrum.kernels.cuda.product_launches import HALVES, block_products
from ferrum.kernels.cuda.products import Groups, Product
from ferrum.kernels.interface import NetworkOutput
from ferrum.kernels.op_attributes import SILU, Activation
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.operations import F32, Operations
from ferrum.kernels.recorded_program import record
from ferrum.kernels.reference import ReferenceKernels
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockWeight
from ferrum.quant.dense import DenseWeight
from ferrum.quant.ordered_weight import OrderedWeight
from ferrum.runtime.known_answers import Inputs
from native_twin import normal, same_bits, tables_of
from native_weights import INTEGERS, weight_of

OUTPUTS = 70  # two panels and a part
ROWS = (1, 3, 8, 9, 70)
DEPTHS = (200, 1152)  # incomplete blocks; more chunks of 256 inputs than wait at once, and half a chunk
SMOKE = ("q8_0", "q4_k", "iq2_xs")
OTHERS = [format for format in INTEGERS if format not in SMOKE]

kernels = cache(emulated_kernels)
reference = ReferenceKernels()


def matrix(format: str, outputs: int = OUTPUTS, depth: int = 200, seed: int = 0) -> BlockWeight:
    weight = weight_of(np.random.default_rng(seed), outputs, depth, format)
    assert isinstance(weight, BlockWeight)
    return weight


def rows_of(depth: int) -> F32:
    """Return ordinary, tiny and huge rows [70, depth], some numbers of which are not finite."""
    x = np.concatenate([Inputs().rows(depth), normal(np.random.default_rng(depth), 57, depth)])
    x[1, depth // 2], x[-1, -1], x[20, 0] = np.nan, np.inf, -np.inf
    return x


def assert_same(name: str, x: F32, *arguments: object) -> None:
    """Compare an operation, whose weights and vectors are given as the reference has them."""

    def on_device(argument: object) -> object:
        if isinstance(argument, tuple):
            return tuple(map(on_device, argument))
        if isinstance(argument, np.ndarray):
            return kernels().vector(argument)
        return kernels().weight(argument) if isinstance(argument, BlockWeight | OrderedWeight) else argument

    with np.errstate(all="ignore"):
        ours = getattr(kernels(), name)(x, *map(on_device, arguments))
        theirs = getattr(reference, name)(x, *arguments)
    for our, their in zip(*(each if isinstance(each, tuple) else (each,) for each in (ours, theirs)), strict=True):
        same_bits(kernels().host(our), their)


def assert_products(format: str) -> None:
    for depth in DEPTHS:
        weight, x, bias = matrix(format, depth=depth), rows_of(depth), normal(np.random.default_rng(1), OUTPUTS)
        for count in ROWS:
            assert_same("linear", x[:count], (weight,), (bias,))
        assert_same("gated_linear", x[:3], weight, matrix(format, depth=depth, seed=1), SILU)


def test_formats_with_groups_of_16_inputs_are_known() -> None:
    assert set(HALVES) == {name for name, kind in BLOCK_FORMATS.items() if kind.group == 16}


@pytest.mark.parametrize("format", SMOKE)
def test_products_have_the_bits_of_the_reference(format: str) -> None:
    assert_products(format)


@pytest.mark.cuda
@pytest.mark.parametrize("format", OTHERS)
def test_products_of_other_formats_have_the_bits_of_the_reference(format: str) -> None:
    assert_products(format)


@pytest.mark.parametrize("count", [3, 20])
def test_weights_of_several_formats_and_orders_are_multiplied_at_once(count: int) -> None:
    order = np.random.default_rng(2).permutation(200).astype(np.int32)[None]
    ordered = OrderedWeight(matrix("q8_0", 33, seed=4), order)
    weights = (matrix("q8_0"), matrix("q4_k"), ordered, *(matrix("q8_0", size, seed=size) for size in (1, 32, 100)))
    biases = tuple(None if i % 2 else np.full(w.shape[0], i, np.float32) for i, w in enumerate(weights))
    assert_same("linear", rows_of(200)[:count], weights, biases, Activation("gelu"))


@pytest.mark.parametrize("count", [2, 12])
def test_gated_products_have_the_bits_of_the_reference(count: int) -> None:
    x, bias, limited = rows_of(200)[:count], normal(np.random.default_rng(1), OUTPUTS), Activation("silu", 1.7, 0.75)
    gate, up = matrix("q8_0"), matrix("q8_0", seed=1)
    assert_same("gated_linear", x, gate, up, limited, bias, -bias)
    assert_same("gated_linear", x, gate, gate, SILU)
    assert_same("gated_linear", x, gate, matrix("q4_k"), limited, bias, -bias)


@pytest.mark.parametrize("count", [2, 12])
def test_heads_and_logits_have_the_bits_of_the_reference(count: int) -> None:
    x = rows_of(3 * 64)[:count]
    assert_same("head_linear", x, matrix("q8_0", 3 * 64, 64), 3)
    assert_same("head", x, matrix("q8_0", depth=3 * 64), 2.0, 3.0)
    assert_same("head", x, matrix("q8_0", depth=3 * 64), 0.5)


@pytest.mark.parametrize("most", [4, 40])
@pytest.mark.parametrize("format", ["q8_0", "q4_k"])
def test_groups_multiply_their_rows_by_their_matrix(format: str, most: int) -> None:
    """Of three experts one has no rows, and one has `most`; each reads rows in another order."""
    x, weight = rows_of(200), matrix(format, 3 * 64)
    bounds, row_of = np.array([0, most, most, most + 3]), np.random.default_rng(5).integers(0, len(x), most + 3)
    on, made = kernels(), DeviceRows.empty(kernels().memory, (most + 3, 64))
    given = [DeviceRows.of(on.memory, array.astype(np.int32)) for array in (bounds, row_of)]
    groups = Groups(3, *(each.address for each in given), most + 5)
    product = Product(on.weight(weight), None, None, None, operand(on, made))
    rows = DeviceRows.of(on.memory, x)
    on.launcher.run(block_products(on.ground, operand(on, rows), [product], None, groups))
    for expert, (begin, end) in enumerate(pairwise(bounds)):
        part = weight.part(64 * expert, 64 * (expert + 1))
        same_bits(made.host()[begin:end], part.matmul(x[row_of[begin:end]]))


def operand(on: CudaKernels, rows: DeviceRows) -> Operand:
    return Operand(rows.address, rows.shape[1], on.memory.uploaded(np.array([len(rows)], np.int32)), len(rows))


def network(weights: dict[str, Any], kernels: Operations) -> NetworkOutput:
    """A block with a gate, whose inputs are normed, and logits."""
    x = kernels.embed(weights["table"])
    normed = kernels.norm(x, weights["norm"], 1e-6)
    hidden = kernels.gated_linear(normed, weights["gate"], weights["up"])
    (delta,) = kernels.linear(hidden, (weights["down"],), (None,))
    _, rows = kernels.add_norm(x, delta, weights["norm"], 1e-6)
    (doubled,) = kernels.linear(rows, (weights["gate"],), (None,))
    logits = kernels.gather(doubled)
    return NetworkOutput(logits, kernels.best(logits), kernels.gather_hidden(rows), kernels.finite(rows))


@pytest.mark.parametrize(("rows", "roundings"), [(2, 0), (30, 1)])
@pytest.mark.parametrize("outputs", [70, 300])
def test_rows_that_their_operation_rounds_give_the_same_bits(rows: int, roundings: int, outputs: int) -> None:
    """Norms round their results, and products of few rows do. 300 outputs are more than a chunk."""
    on, rng = kernels(), np.random.default_rng(6)
    matrices = {
        "gate": matrix("q4_k", outputs),
        "up": matrix("q4_k", outputs, seed=1),
        "down": matrix("q8_0", 200, outputs),
    }
    matrices["table"] = DenseWeight(normal(rng, 40, 200))
    norm, tables = normal(rng, 200), tables_of(rng, [(0, rows)], (), (rows - 1,), vocabulary=40)
    ours = {name: on.weight(weight) for name, weight in matrices.items()} | {"norm": on.vector(norm)}
    replay = on.prepare(record(partial(network, ours)), dict.fromkeys(Extent, 64))
    found = replay.submit(on, tables)
    launches = [launch.kernel for each in replay._bucket(rows).operations for launch in each]
    assert launches.count("round_rows") == roundings
    reference.begin(tables)
    expected = network(matrices | {"norm": norm}, reference)
    same_bits(on.host(found.logits), expected.logits)
