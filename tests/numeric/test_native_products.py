"""Native products against the reference, and bits of a row in any batch."""

from __future__ import annotations

from dataclasses import replace
from math import erf

import numpy as np
import pytest

from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.op_attributes import SILU, Activation
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockRows, RowWeight, file_weight
from ferrum.quant.dense import DenseWeight
from ferrum.quant.low_bits import with_scales
from native_twin import TEAMS, TIERS, Twin, normal, same_bits, with_teams
from native_weights import BLOCKS, DTYPES, block_rows, dense, extreme, weight_of, wild

SHAPES = ((1, 1), (33, 17), (64, 128), (100, 33), (31, 1000), (257, 96))
ROWS = (1, 2, 3, 5, 7, 12, 13, 25, 70)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("team", TEAMS)
def test_products_equal_the_reference(team, dtype):
    rng, twin = np.random.default_rng(1), Twin(*team)
    for outputs, inputs in SHAPES:
        weight = dense(rng, outputs, inputs, dtype)
        bias = normal(rng, outputs)
        for rows in ROWS:
            x = (normal if rows % 2 else wild)(rng, rows, inputs)
            (ours, plain), (theirs, exact) = twin.both("linear", x, (weight, weight), (bias, None))
            same_bits(ours, theirs)
            same_bits(plain, exact)
            np.testing.assert_array_equal(twin.native.head(x, twin.native.weight(weight)), plain)
            np.testing.assert_array_equal(plain + bias, ours)


@pytest.mark.parametrize(("team", "format"), with_teams(BLOCKS))
def test_block_products_equal_the_reference_in_every_tier(team, format):
    rng, twin = np.random.default_rng(7), Twin(*team)
    for outputs, inputs in SHAPES:
        weight, bias = weight_of(rng, outputs, inputs, format), normal(rng, outputs)
        for rows in ROWS[::2]:
            ours, theirs = twin.both("linear", wild(rng, rows, inputs), (weight, weight), (None, bias))
            for y, expected in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(y, expected)
        assert twin.native.weight(weight).nbytes == weight.panels.nbytes


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("size", ["normal", "large", "small"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tier", TIERS)
def test_products_of_extreme_numbers_equal_the_reference(tier, dtype, size, rows):
    """Products and sums overflow, cancel, are subnormal, or next to the smallest normal number."""
    rng, twin = np.random.default_rng(13), Twin(tier, 2)
    x, weight = extreme(rng, rows, 80, 45, dtype, size)
    for y, expected in zip(*twin.both("linear", x, (weight,), (None,)), strict=True):
        same_bits(y, expected)


LEAST = 2.0**-126


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (-(2.0**-75), 2.0**-75, 0),  # IEEE rounds LEAST - 2^-150 to LEAST, AArch64's mode FZ and x86's FTZ to 0
        (-(2.0**-75), 2.0**-76, LEAST),  # LEAST - 2^-151: AArch64's mode gives 0, x86's LEAST
        (-1.5 * 2.0**-76, 2.0**-75, 0),
        (-1.5 * 2.0**-76, 2.0**-51, 0),
        (2.0**-75, 2.0**-75, LEAST),
    ],
)
@pytest.mark.parametrize("tier", TIERS)
def test_bfloat16_sums_next_to_the_smallest_number_follow_one_rule(tier, a, b, expected):
    """The sum is LEAST, then the product is added, as the first or the second term of a pair."""
    rows = np.array([[2.0**-63, 0, a, 0], [2.0**-63, 0, 0, a], [-(2.0**-63), 0, 0, -a]], np.float32)
    weight = DenseWeight(np.array([[2.0**-63, 0, b, b]] * 3, np.float32).astype(DTYPES[-1]))
    for (y,) in Twin(tier, 1).both("linear", rows, (weight,), (None,)):
        same_bits(y, np.array([[expected], [expected], [-expected]], np.float32) * np.ones(3, np.float32))


@pytest.mark.parametrize("tier", TIERS)
def test_only_bfloat16_products_take_subnormal_inputs_as_zeros(tier):
    """Even one that would round to the smallest normal bfloat16."""
    x, factor = np.array([[LEAST - 2.0**-149], [2.0**-130], [LEAST]], np.float32), np.float32(2.0**10)
    twin = Twin(tier, 1)
    for dtype in DTYPES:
        weight = DenseWeight(np.full((1, 1), factor).astype(dtype))
        expected = x * factor * (x == LEAST) if dtype == DTYPES[-1] else x * factor
        for (y,) in twin.both("linear", x, (weight,), (None,)):
            same_bits(y, expected)


def terms(total: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 32 integers of weights and of inputs, each with a 127, with products that sum to `total`."""
    whole, rest = divmod(total, 127 * 127)
    weights, inputs = [127] * whole + [127, 1], [127] * whole + list(divmod(rest, 127))
    pad = [0] * (32 - len(weights))
    return np.array(weights + pad, np.int16), np.array(inputs + pad, np.float32)


@pytest.mark.parametrize("team", TEAMS)
def test_fused_product_is_rounded_once(team):
    """The sum differs from the middle of two floats, 2^30 + 64, by 2^-24: less than double precision."""
    parts = [(1 << 15, 2.0**15, 1), (429_325, 1, 2501 * 2.0**-24)]  # sum, weight scale, input scale
    made = [terms(total) for total, _, _ in parts]
    row = np.concatenate([integers for integers, _ in made])
    codes = (np.stack([row, -row]) + 128).astype(np.uint8).reshape(2, 2, 32)
    whole = BlockRows(codes=codes, d=np.array([[scale for _, scale, _ in parts]] * 2, np.float16))
    x = np.concatenate([inputs * np.float32(scale) for (_, inputs), (_, _, scale) in zip(made, parts, strict=True)])
    weight = RowWeight(kind=BLOCK_FORMATS["q8_0"], shape=(2, 64), whole=whole)
    for (y,) in Twin(*team).both("linear", x[None], (weight,), (None,)):
        np.testing.assert_array_equal(y, [[2.0**30 + 128, -(2.0**30) - 128]])


@pytest.mark.parametrize("format", BLOCKS)
@pytest.mark.parametrize("tier", TIERS)
def test_products_of_extreme_codes_are_exact(tier, format):
    """With codes of largest magnitude, sums of pairs of products reach 16 bits in some tiers."""
    kernels, kind = NativeKernels(tier, 1), BLOCK_FORMATS[format]
    x = np.full((3, 512), 127, np.float32) * np.array([[1], [-1], [1]], np.float32)
    x[2, ::3] *= -1
    rng = np.random.default_rng(8)
    for code in (0, (1 << kind.bits) - 1):
        if kind.low is not None:
            blocks = np.full((33, kind.blocks(512), kind.low.nbytes), 255 if code else 0, np.uint8)
            scales = normal(rng, 33, 2) if kind.output_scales else None
            weight = file_weight(kind, with_scales(kind.low, blocks, normal(rng, *blocks.shape[:2])), outputs=scales)
        else:
            rows = block_rows(rng, kind, 33, 512)
            weight = RowWeight(kind=kind, shape=(33, 512), whole=replace(rows, codes=np.full_like(rows.codes, code)))
        same_bits(kernels.weight(weight).matmul(x), weight.matmul(x))


@pytest.mark.parametrize(("team", "dtype"), with_teams([*DTYPES, *BLOCKS]))
def test_gated_products_equal_the_reference(team, dtype):
    rng, twin = np.random.default_rng(2), Twin(*team)
    gate, up = weight_of(rng, 75, 64, dtype), weight_of(rng, 75, 64, dtype)
    for rows in ROWS:
        ours, theirs = twin.both("gated_linear", normal(rng, rows, 64), gate, up)
        same_bits(ours, theirs)


@pytest.mark.parametrize(("gate", "up"), [("q5_0", "q5_1"), ("q6_k", np.float32), (DTYPES[-1], "q4_k")])
@pytest.mark.parametrize("team", TEAMS)
def test_gated_products_of_two_formats_equal_the_reference(team, gate, up):
    rng, twin = np.random.default_rng(9), Twin(*team)
    weights = [weight_of(rng, 75, 64, format) for format in (gate, up)]
    for rows in ROWS:
        ours, theirs = twin.both("gated_linear", normal(rng, rows, 64), *weights)
        same_bits(ours, theirs)


LIMITED = Activation("silu", sharpness=1.702, limit=0.75)
ACTIVATIONS = (SILU, LIMITED, Activation("gelu"), Activation("gelu_tanh"), Activation("relu2"))


@pytest.mark.parametrize(("gate", "up"), [("q4_k", "q4_k"), ("q5_0", DTYPES[-1]), (np.float32, np.float32)])
@pytest.mark.parametrize("team", TEAMS)
def test_gated_products_with_biases_and_limits_equal_the_reference(team, gate, up):
    rng, twin = np.random.default_rng(14), Twin(*team)
    weights, biases = [weight_of(rng, 75, 64, format) for format in (gate, up)], (normal(rng, 75), normal(rng, 75))
    for rows in ROWS[::3]:
        for activation in (LIMITED, ACTIVATIONS[-1]):
            same_bits(*twin.both("gated_linear", normal(rng, rows, 64), *weights, activation, *biases))


def every_kind_of_number() -> np.ndarray:
    """Return numbers of all magnitudes, and zeros, infinities and NaN, [R, 1]."""
    bits = np.random.default_rng(15).integers(0, 1 << 32, 3000, np.uint32).view(np.float32)
    special = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 1e-40, 3e38])
    return np.concatenate((bits, np.linspace(-20, 20, 2001, dtype=np.float32), special))[:, None]


@pytest.mark.parametrize("tier", TIERS)
def test_activations_of_every_kind_of_number_equal_the_reference(tier):
    twin, x = Twin(tier, 1), every_kind_of_number()
    identity, factor = (DenseWeight(np.full((1, 1), number, np.float32)) for number in (1, -3))
    with np.errstate(all="ignore"):
        for activation in ACTIVATIONS:
            ((ours,), (theirs,)) = twin.both("linear", x, (identity,), (None,), activation)
            same_bits(ours, theirs)
            same_bits(*twin.both("gated_linear", x, identity, factor, activation))
        for scale, softcap in ((0.25, None), (1.0, 30.0), (0.5, 50.0)):
            same_bits(*twin.both("head", x, identity, scale, softcap))


def test_activations_and_softcaps_are_near_their_formulas():
    x = np.linspace(-9, 9, 1001)
    mass, cubic = np.array([(1 + erf(z / 2**0.5)) / 2 for z in x]), np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    exact = (x / (1 + np.exp(-x)), x / (1 + np.exp(-1.702 * x)), x * mass, x * (1 + np.tanh(cubic)) / 2)
    kernels, column = NativeKernels(TIERS[0], 1), x.astype(np.float32)[:, None]
    identity = kernels.weight(DenseWeight(np.ones((1, 1), np.float32)))
    for activation, expected in zip(ACTIVATIONS, (*exact, np.maximum(x, 0) ** 2), strict=True):
        (ours,) = kernels.linear(column, (identity,), (None,), activation)
        np.testing.assert_allclose(ours[:, 0], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(kernels.head(column, identity, 2.0, 5.0)[:, 0], 5 * np.tanh(2 * x / 5), atol=2e-6)


def test_products_of_several_formats_over_one_input():
    for team in TEAMS:
        rng, twin = np.random.default_rng(3), Twin(*team)
        formats = (*DTYPES, *BLOCKS)
        weights = tuple(weight_of(rng, 33 + 7 * index, 40, format) for index, format in enumerate(formats))
        ours, theirs = twin.both("linear", normal(rng, 14, 40), weights, (None,) * len(formats))
        for y, expected in zip(ours, theirs, strict=True):
            same_bits(y, expected)


@pytest.mark.parametrize("dtype", [*DTYPES, *BLOCKS])
@pytest.mark.parametrize("tier", TIERS)
def test_row_bits_do_not_depend_on_batch_position_or_team(tier, dtype):
    rng = np.random.default_rng(4)
    weight = weight_of(rng, 130, 203, dtype)
    x = normal(rng, 600, 203)
    one, two = (NativeKernels(tier, threads) for threads in (1, 2))
    whole = one.weight(weight).matmul(x)
    packed = two.weight(weight)
    for rows in (*range(1, 40), 191, 193, 385):
        begin = int(rng.integers(0, 600 - rows))
        np.testing.assert_array_equal(packed.matmul(x[begin : begin + rows]), whole[begin : begin + rows])


@pytest.mark.parametrize("dtype", [DTYPES[-1], BLOCKS[0]])
def test_work_stealing_changes_no_bit(dtype):
    """With more threads than panels and cores, some threads own no panel and some wait for a core."""
    rng = np.random.default_rng(11)
    weight, x = weight_of(rng, 200, 96, dtype), normal(rng, 400, 96)
    alone, crowd = (NativeKernels(TIERS[0], threads).weight(weight) for threads in (1, 9))
    whole = alone.matmul(x)
    for rows in (1, 9, 400) * 5:
        np.testing.assert_array_equal(crowd.matmul(x[:rows]), whole[:rows])


def test_number_of_threads_may_change_between_runs():
    """Threads that skip several runs take part again later."""
    rng = np.random.default_rng(12)
    weight, x = weight_of(rng, 200, 96, BLOCKS[0]), normal(rng, 12, 96)
    crowd = NativeKernels(TIERS[0], 5).weight(weight)
    whole = NativeKernels(TIERS[0], 1).weight(weight).matmul(x)
    for part in rng.integers(-1, 8, 300):
        crowd.runtime.use(int(part))
        np.testing.assert_array_equal(crowd.matmul(x), whole)


@pytest.mark.parametrize("dtype", [*DTYPES, *BLOCKS])
@pytest.mark.parametrize("tier", TIERS)
def test_packing_is_lossless(tier, dtype):
    rng = np.random.default_rng(5)
    kernels = NativeKernels(tier, 2)
    for shape in SHAPES:
        weight = weight_of(rng, *shape, dtype)
        packed = kernels.weight(weight)
        np.testing.assert_array_equal(packed.dequantize(), weight.dequantize())
        ids = rng.integers(0, shape[0], 9).astype(np.int32)
        np.testing.assert_array_equal(packed.rows(ids), weight.rows(ids))
        assert (packed.shape, packed.format) == (weight.shape, weight.format)
        assert kernels.weight(packed) is packed


@pytest.mark.parametrize("tier", TIERS)
def test_special_float16_values_are_converted_exactly(tier):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = DenseWeight(halves[np.isfinite(halves)].reshape(-1, 1))
    packed = NativeKernels(tier, 1).weight(finite)
    np.testing.assert_array_equal(packed.matmul(np.ones((1, 1), np.float32))[0], finite.dequantize()[:, 0])


@pytest.mark.parametrize("tier", TIERS)
def test_nan_and_infinity_stay_within_their_row(tier):
    rng = np.random.default_rng(6)
    for dtype in (*DTYPES, *BLOCKS):
        packed = NativeKernels(tier, 2).weight(weight_of(rng, 40, 300, dtype))
        x = normal(rng, 14, 300)
        clean = packed.matmul(x)
        x[3, 7], x[9, 299] = np.nan, np.inf  # in a whole block, and in an incomplete one
        soiled = packed.matmul(x)
        assert not np.isfinite(soiled[[3, 9]]).any()
        kept = [row for row in range(14) if row not in (3, 9)]
        np.testing.assert_array_equal(soiled[kept], clean[kept])


@pytest.mark.parametrize("tier", TIERS)
def test_silu_is_within_two_units_in_the_last_place(tier):
    x = np.linspace(-80, 120, 40001).astype(np.float32)
    kernels = NativeKernels(tier, 1)
    identity = kernels.weight(DenseWeight(np.ones((1, 1), np.float32)))
    ours = kernels.gated_linear(x[:, None], identity, identity)[:, 0]
    exact = x.astype(np.float64)
    np.testing.assert_allclose(ours, exact * exact / (1 + np.exp(-exact)), rtol=4 * 2.0**-23, atol=0)
