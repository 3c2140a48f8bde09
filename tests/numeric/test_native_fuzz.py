"""Random shapes for every native kernel against the reference: zero rows, odd widths, page edges, windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum.cache.page_table import PageCopy
from ferrum.kernels.interface import GivenRows
from hypothesis_settings import examples, seeds
from native_twin import TIERS, Twin, group_of, normal, same_bits, shape_of, tables_of
from native_weights import BLOCKS, DTYPES, weight_of, wild

teams = st.integers(1, 2)
formats = st.sampled_from([*DTYPES, *BLOCKS])
rows = st.one_of(st.integers(0, 40), st.integers(0, 600))
widths = st.one_of(st.integers(1, 70), st.integers(1, 600))


@pytest.mark.parametrize("tier", TIERS)
@examples(60)
@given(seed=seeds, threads=teams, format=formats, rows=rows, inputs=widths, outputs=widths, biased=st.booleans())
def test_products(tier, format, threads, seed, rows, inputs, outputs, biased):
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    weight, x = weight_of(rng, outputs, inputs, format), wild(rng, rows, inputs)
    bias = normal(rng, outputs) if biased else None
    (ours,), (theirs,) = twin.both("linear", x, (weight,), (bias,))
    same_bits(ours, theirs)
    packed, ids = twin.native.weight(weight), rng.integers(0, outputs, 7).astype(np.int32)
    np.testing.assert_array_equal(packed.rows(ids), weight.rows(ids))


@pytest.mark.parametrize("tier", TIERS)
@examples(30)
@given(seed=seeds, threads=teams, format=formats, rows=rows, inputs=widths, outputs=widths)
def test_gated_products(tier, format, threads, seed, rows, inputs, outputs):
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    gate, up = (weight_of(rng, outputs, inputs, format) for _ in range(2))
    ours, theirs = twin.both("gated_linear", normal(rng, rows, inputs), gate, up)
    same_bits(ours, theirs)


@pytest.mark.parametrize("tier", TIERS)
@examples(10)
@given(seed=seeds, threads=teams, rows=rows, columns=st.integers(1, 1100))
def test_norms(tier, threads, seed, rows, columns):
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    x, delta, weight = normal(rng, rows, columns), normal(rng, rows, columns), normal(rng, columns)
    same_bits(*twin.both("norm", x, weight, 1e-6))
    (total, normed), (theirs, expected) = twin.both("add_norm", x, delta, weight, 1e-6)
    np.testing.assert_array_equal(total, theirs)
    same_bits(normed, expected)


spans = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 70)), min_size=1, max_size=4)


@pytest.mark.parametrize("tier", TIERS)
@examples(10)
@given(seed=seeds, threads=teams, spans=spans, columns=st.integers(1, 300), given_rows=st.booleans(), data=st.data())
def test_embeddings_gathers_and_finite_flags(tier, threads, seed, spans, columns, given_rows, data):
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    count = sum(size for _, size in spans)
    some = st.lists(st.integers(0, count - 1), max_size=20)
    logit_rows, hidden_rows = (tuple(sorted(set(data.draw(some)))) for _ in range(2))
    tables = tables_of(rng, spans, (), logit_rows, hidden_rows, vocabulary=50)
    if given_rows:
        rows = np.flatnonzero(rng.random(count) < 0.5).astype(np.int32)
        tables = tables._replace(given=GivenRows(rows, normal(rng, len(rows), columns)))
    twin.begin(tables)
    format = data.draw(st.sampled_from([*DTYPES, *BLOCKS]))
    np.testing.assert_array_equal(*twin.both("embed", weight_of(rng, 50, columns, format)))
    x = normal(rng, count, columns)
    np.testing.assert_array_equal(*twin.both("gather", x))
    np.testing.assert_array_equal(*twin.both("gather_hidden", x))
    for row in data.draw(st.lists(st.integers(0, count - 1), max_size=4)):
        x[row, rng.integers(columns)] = rng.choice([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(*twin.both("finite", x))


@pytest.mark.parametrize("format", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("tier", TIERS)
@examples(5)
@given(
    seed=seeds,
    threads=teams,
    spans=spans,
    pairs=st.one_of(st.integers(1, 40), st.sampled_from([48, 64, 128, 256])),
    kv_heads=st.integers(1, 3),
    share=st.integers(1, 8),
    page_size=st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 61, 62, 63, 64, 65, 128, 192])),
    window=st.one_of(st.none(), st.integers(1, 200)),
    data=st.data(),
)
def test_rotation_store_and_attention(
    tier, format, threads, seed, spans, pairs, kv_heads, share, page_size, window, data
):
    """Store whole sequences, copy one of their pages, then attend with the spans."""
    rng, dim = np.random.default_rng(seed), 2 * pairs
    pages = 1 + sum(-(-(start + count) // page_size) for start, count in spans)
    group = group_of(dim, kv_heads, format, page_size, pages, layers=2)
    twin, shape = Twin(tier, threads, group), shape_of(group, share, window, layer=data.draw(st.integers(0, 1)))
    whole = [(0, start + count) for start, count in spans]
    count = sum(size for _, size in whole)
    rope = twin.reference.rope_table(tuple(10.0 ** -np.arange(data.draw(st.integers(1, pairs)))), 1.25, 400)
    norms = (normal(rng, dim), normal(rng, dim)) if data.draw(st.booleans()) else (None, None)
    q, k, v = (normal(rng, count, heads * dim) for heads in (kv_heads * share, kv_heads, kv_heads))
    twin.begin(tables_of(rng, whole, (group,)))
    same_bits(*twin.both("rope_store", q, k, v, shape, rope, *norms, 1e-6))
    tables = tables_of(rng, spans, (group,))
    spare = next(page for page in range(pages) if page not in tables.pages[0])
    twin.copy(PageCopy("group", int(tables.pages[0][0, 0]), spare))
    tables.pages[0][0, 0] = spare
    twin.begin(tables)
    q = normal(rng, sum(size for _, size in spans), kv_heads * share * dim)
    same_bits(*twin.both("attention", q, shape))
