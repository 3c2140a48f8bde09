"""Quantisers of matrices: errors against the `gguf` package, grids, importance, refusals, schemes."""

from __future__ import annotations

from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from ferrum.core.errors import ConfigError
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_quantizers import QUANTIZERS
from ferrum.quant.block_weight import BlockRows, RowWeight
from ferrum.quant.gguf_blocks import dequantize
from ferrum.quant.scale_search import QUICK, THOROUGH, Search, column_importance

FLAT = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
SUPER = ("q4_k", "q5_k", "q6_k")
SEARCHES = pytest.mark.parametrize("search", [QUICK, THOROUGH], ids=["quick", "thorough"])


def matrix(rows: int = 24, inputs: int = 512, seed: int = 0) -> NDArray[np.float32]:
    """Return weights whose rows are normal, heavy-tailed, shifted, tiny, large and zero."""
    numbers = np.random.default_rng(seed)
    w = numbers.standard_normal((rows, inputs)).astype(np.float32)
    w[1::6] = numbers.standard_t(3, w[1::6].shape)
    w[2::6] = w[2::6] * np.float32(0.1) + np.float32(0.3)
    w[3::6] *= np.float32(1e-2)
    w[4::6] *= np.float32(200)
    w[-1] = 0
    return w


def numbers_of(
    name: str, w: NDArray[Any], importance: NDArray[np.float32] | None = None, search: Search = QUICK
) -> NDArray[np.float32]:
    """Quantise a matrix and return its numbers."""
    rows = QUANTIZERS[name](w, importance, search)
    return RowWeight(kind=BLOCK_FORMATS[name], shape=(w.shape[0], w.shape[1]), whole=rows).dequantize()


def peer_blocks(name: str, w: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the blocks that the `gguf` package makes, [N, B, bytes]."""
    kind = gguf.GGMLQuantizationType[name.upper()]
    blocks = gguf.quants.quantize(w, kind)
    return blocks.reshape(len(w), -1, gguf.GGML_QUANT_SIZES[kind][1])


def errors(found: NDArray[np.float32], w: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the squared error of each row."""
    squares: NDArray[np.float64] = np.square(found.astype(np.float64) - w).sum(axis=1)
    return squares


def rounded(name: str, w: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round a matrix as a format could, with each group's range and block scales from it, without any search."""
    kind = BLOCK_FORMATS[name]
    x = w.reshape(len(w), -1, kind.groups, kind.group)
    low = np.minimum(x.min(-1), 0) if kind.minima else np.zeros(x.shape[:-1])
    bottom, top = (0, (1 << kind.bits) - 1) if kind.minima else (-32, 31)
    exact = (x.max(-1) - low) / top if kind.minima else np.abs(x).max(-1) / top
    levels = 63 if kind.minima else 127
    d, m = (np.maximum(each.max(-1, keepdims=True) / levels, 1e-30) for each in (exact, -low))
    scale, offset = (d * np.rint(exact / d))[..., None], (m * np.rint(-low / m))[..., None]
    codes = np.clip(np.rint((x + offset) / np.maximum(scale, 1e-30)), bottom, top)
    return (codes * scale - offset).reshape(w.shape).astype(np.float32)


def test_q8_0_equals_the_reference_bit_for_bit() -> None:
    w = matrix(48, 576)
    rows, blocks = QUANTIZERS["q8_0"](w), peer_blocks("q8_0", w)
    assert np.array_equal(rows.d.view(np.uint16), np.ascontiguousarray(blocks[..., :2]).view(np.uint16)[..., 0])
    assert np.array_equal(rows.codes, blocks[..., 2:] ^ np.uint8(128))


@SEARCHES
@pytest.mark.parametrize("name", FLAT)
def test_error_is_at_most_that_of_the_gguf_package(name: str, search: Search) -> None:
    w = matrix()
    theirs = errors(dequantize(name.upper(), peer_blocks(name, w)), w)
    ours = errors(numbers_of(name, w, np.ones(512, np.float32), search), w)
    assert (ours <= theirs * (1 + 1e-6)).all()
    if name != "q8_0" or search is THOROUGH:
        assert (ours[:3] < 0.97 * theirs[:3]).all()


@SEARCHES
@pytest.mark.parametrize("name", FLAT)
def test_large_weights_get_more_exact_without_importance(name: str, search: Search) -> None:
    if name == "q8_0" and search is QUICK:
        return
    w = matrix()[:3]
    equal, own = (numbers_of(name, w, each, search) for each in (np.ones(512, np.float32), None))
    large = np.abs(w) > 2 * w.std(axis=1, keepdims=True)
    assert np.square(own - w)[large].sum() < np.square(equal - w)[large].sum()


@SEARCHES
@pytest.mark.parametrize("name", SUPER)
def test_error_is_below_that_of_rounding_each_range(name: str, search: Search) -> None:
    w = matrix()
    ratios = errors(numbers_of(name, w, np.ones(512, np.float32), search), w)[:-1] / errors(rounded(name, w), w)[:-1]
    assert ratios.max() < 1
    assert ratios.mean() < 0.93


@pytest.mark.parametrize("name", [name for name in QUANTIZERS if name != "q8_0"])
def test_thorough_search_has_less_error(name: str) -> None:
    w = matrix()[:3]
    equal = np.ones(512, np.float32)
    quick, thorough = (errors(numbers_of(name, w, equal, search), w).sum() for search in (QUICK, THOROUGH))
    assert thorough < quick


@SEARCHES
@pytest.mark.parametrize("name", FLAT)
def test_numbers_on_a_grid_stay(name: str, search: Search) -> None:
    on_grid = dequantize(name.upper(), peer_blocks(name, matrix()))
    assert np.array_equal(numbers_of(name, on_grid, None, search), on_grid)


@SEARCHES
@pytest.mark.parametrize("name", QUANTIZERS)
def test_importance_moves_error_to_unimportant_inputs(name: str, search: Search) -> None:
    if name == "q8_0" and search is QUICK:
        return
    w = matrix(6)[:3]
    importance = np.exp(np.random.default_rng(1).standard_normal(512) * 2).astype(np.float32)
    plain, weighted = (numbers_of(name, w, each, search) for each in (np.ones(512, np.float32), importance))
    root = np.sqrt(importance)
    assert errors(weighted * root, w * root).sum() < 0.97 * errors(plain * root, w * root).sum()


def test_column_importance_is_the_relative_mean_square_of_columns() -> None:
    w = matrix(3000, 96)
    squares = np.square(w.astype(np.float64)).mean(axis=0)
    np.testing.assert_allclose(column_importance(w), squares / squares.mean(), rtol=1e-5)


def same(a: BlockRows, b: BlockRows) -> bool:
    """Return whether rows are equal bit for bit."""
    parts = ((getattr(a, part), getattr(b, part)) for part in ("codes", "d", "m", "sub", "sub_m"))
    return all((x is None and y is None) or x.tobytes() == y.tobytes() for x, y in parts)


@SEARCHES
@pytest.mark.parametrize("name", QUANTIZERS)
def test_rows_are_independent(name: str, search: Search) -> None:
    w = matrix(300)
    whole = QUANTIZERS[name](w, search=search)
    for part in (slice(0, 1), slice(7, 20), slice(250, 300)):
        assert same(whole.part(part), QUANTIZERS[name](w[part], search=search))


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_give_the_bits_of_float32(name: str, dtype: Any) -> None:
    w = matrix().astype(dtype)
    assert same(QUANTIZERS[name](w), QUANTIZERS[name](w.astype(np.float32)))


@pytest.mark.parametrize("name", FLAT)
def test_zeros_complete_the_last_block(name: str) -> None:
    w = matrix(5, 80)
    longer = np.zeros((5, 96), np.float32)
    longer[:, :80] = w
    assert same(QUANTIZERS[name](w), QUANTIZERS[name](longer))


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize(
    ("wrong", "reason"), [(np.nan, "not finite"), (-np.inf, "not finite"), (3e38, "too large"), (-3e38, "too large")]
)
def test_weights_without_scales_are_refused(name: str, wrong: float, reason: str) -> None:
    w = matrix()
    w[3, 77] = wrong
    with pytest.raises(ConfigError, match=reason) as refusal:
        QUANTIZERS[name](w)
    assert refusal.value.param == "quantize"


@SEARCHES
@pytest.mark.parametrize("name", QUANTIZERS)
def test_extreme_weights_give_finite_numbers(name: str, search: Search) -> None:
    w = matrix(12)
    for row, size in enumerate((1e-45, 1e-38, 1e-20, 1e-12, 2e-8, 6e-8, 1e-6, 1.0, 6e4, 60000.0)):
        w[row] *= np.float32(size) / max(np.abs(w[row]).max(), np.float32(1e-3))
    w[10, ::2] = -0.0
    found = numbers_of(name, w, None, search)
    assert np.isfinite(found).all()
    assert (np.abs(found - w).max(axis=1) <= np.maximum(np.abs(w).max(axis=1) * 0.3, 1e-5)).all()
