"""Native rotation, cache writes and attention against the reference, for any split of a sequence into spans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ferrum.cache.page_table import PageCopy
from ferrum.kernels.interface import PoolGroup
from ferrum.kernels.op_attributes import AttentionShape
from native_twin import TEAMS, TIERS, Twin, group_of, normal, same_bits, shape_of, tables_of, with_teams

FORMATS = ("float32", "bfloat16", "int8")


def fill(rng: np.random.Generator, twin: Twin, spans: list[tuple[int, int]], group: PoolGroup, shape: AttentionShape):
    """Store random keys and values for whole sequences (no norm, no rotation: both stores hold the same bits)."""
    lengths = [(0, start + count) for start, count in spans]
    rows = sum(count for _, count in lengths)
    q = normal(rng, rows, shape.num_heads * group.key_dim)
    k = normal(rng, rows, group.num_kv_heads * group.key_dim)
    v = normal(rng, rows, group.num_kv_heads * group.value_dim)
    twin.begin(tables_of(rng, lengths, (group,)))
    ours, theirs = twin.both("rope_store", q, k, v, shape, None, None, None, 1e-6)
    np.testing.assert_array_equal(ours, theirs)


def compare(
    seed: int,
    team: tuple[str, int],
    spans: list[tuple[int, int]],
    group: PoolGroup,
    shape: AttentionShape,
    sinks: np.ndarray | None = None,
):
    rng, twin = np.random.default_rng(seed), Twin(*team, group)
    fill(rng, twin, spans, group, shape)
    twin.begin(tables_of(rng, spans, (group,)))
    q = normal(rng, sum(count for _, count in spans), shape.num_heads * group.key_dim)
    ours, theirs = twin.both("attention", q, shape, sinks)
    same_bits(ours, theirs)


SPANS = [(0, 1), (63, 1), (0, 65), (64, 1), (100, 30), (129, 2)]


SHAPES = [
    (16, 2, 2, None, 64),
    (24, 2, 3, 1, 64),
    (48, 1, 7, 9, 1),
    (64, 2, 1, 63, 5),
    (80, 3, 2, 64, 16),
    (128, 2, 2, None, 32),
    (32, 3, 7, 65, 64),
    (32, 2, 1, 100, 128),
    (32, 3, 3, None, 5),
    (16, 1, 2, 64, 64),
    (128, 2, 7, 100, 64),
    (80, 2, 1, None, 128),
]
"""Size of a head, heads of keys, query heads for each, window and page size."""


@pytest.mark.parametrize(("team", "format", "shape"), with_teams(FORMATS, SHAPES))
def test_attention_of_every_shape_equals_the_reference(team, format, shape):
    dim, heads, share, window, page_size = shape
    group = group_of(dim, heads, format, page_size, pages=8 + 600 // page_size)
    compare(dim + share, team, SPANS, group, shape_of(group, share, window))


@pytest.mark.parametrize("count", [8, 9, 17])
@pytest.mark.parametrize("team", TEAMS)
def test_all_of_many_sequences_are_computed(team, count):
    """Near the end of a step, threads split the heads of a sequence."""
    group = group_of(32, 4, "bfloat16", pages=8 * count)
    compare(count, team, [(150 + place % 3, 1) for place in range(count)], group, shape_of(group, share=2))


SINKS = np.float32([0.5, -3, 8, -np.inf])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("sinks", "changes"),
    [
        (None, {"softcap": 1.5}),
        (None, {"chunk": 1}),
        (None, {"chunk": 100}),
        (SINKS, {}),
        (SINKS, {"softcap": 30.0, "window": 70, "chunk": 96}),
    ],
)
@pytest.mark.parametrize("tier", TIERS)
def test_softcaps_sinks_and_chunks_equal_the_reference(tier, sinks, changes, format):
    group = group_of(16, 2, format)
    compare(5, (tier, 2), SPANS, group, replace(shape_of(group, 2), **changes), sinks)


@pytest.mark.parametrize(("key_dim", "value_dim", "page_size"), [(16, 48, 64), (80, 24, 64), (40, 64, 5)])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_values_may_be_wider_or_narrower_than_keys(tier, format, key_dim, value_dim, page_size):
    group = PoolGroup("group", 8 + 600 // page_size, page_size, 1, 2, key_dim, value_dim, format)
    compare(6, (tier, 2), SPANS, group, replace(shape_of(group, 2), value_dim=value_dim))


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_with_sinks_and_chunks_is_near_its_formula(softcap):
    group = group_of(16, 1, "float32")
    rng, twin = np.random.default_rng(7), Twin(TIERS[0], 1, group)
    shape = AttentionShape(0, 0, 2, 1, 16, 1.0, softcap=softcap, chunk=70)
    q, k, v, sinks = normal(rng, 150, 32), normal(rng, 150, 16), normal(rng, 150, 16), normal(rng, 2)
    twin.begin(tables_of(rng, [(0, 150)], (group,)))
    twin.both("rope_store", q, k, v, shape, None, None, None, 1e-6)
    scores = np.einsum("rhd,td->rht", q.reshape(150, 2, 16).astype(np.float64), k)
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    row, token = np.arange(150)[:, None], np.arange(150)
    weights = np.where(((token <= row) & (token >= row // 70 * 70))[:, None], np.exp(scores), 0)
    total = weights.sum(axis=2, keepdims=True) + np.exp(sinks, dtype=np.float64)[:, None]
    expected = (weights / total @ v).reshape(150, 32)
    np.testing.assert_allclose(twin.native.attention(q, shape, sinks), expected, atol=1e-5)


@pytest.mark.parametrize(("team", "format"), with_teams(FORMATS))
def test_layers_do_not_overlap(team, format):
    group = group_of(48, 2, format, layers=3)
    rng, twin = np.random.default_rng(0), Twin(*team, group)
    for layer in range(3):
        fill(rng, twin, SPANS, group, shape_of(group, 2, layer=layer))
    twin.begin(tables_of(rng, SPANS, (group,)))
    for layer in range(3):
        q = normal(rng, sum(count for _, count in SPANS), 4 * 48)
        theirs = twin.reference.attention(q, shape_of(group, 2, layer=layer))
        ours = twin.native.attention(q, shape_of(group, 2, layer=layer))
        same_bits(ours, theirs)


@pytest.mark.parametrize(("team", "format"), with_teams(FORMATS))
def test_rotation_and_head_norms_equal_the_reference(team, format):
    for dim, share, rotated in ((16, 1, 16), (64, 2, 64), (80, 7, 40), (128, 2, 128)):
        group = group_of(dim, 2, format)
        rng, twin, shape = np.random.default_rng(dim), Twin(*team, group), shape_of(group, share)
        rope = twin.reference.rope_table(tuple(10.0 ** -np.arange(rotated // 2)), 1.25, 200)
        norms = normal(rng, dim), normal(rng, dim)
        twin.begin(tables_of(rng, SPANS, (group,)))
        rows = sum(count for _, count in SPANS)
        q, k, v = normal(rng, rows, 2 * share * dim), normal(rng, rows, 2 * dim), normal(rng, rows, 2 * dim)
        ours, theirs = twin.both("rope_store", q, k, v, shape, rope, *norms, 1e-6)
        same_bits(ours, theirs)
        same_bits(*twin.both("attention", theirs, shape))


@pytest.mark.parametrize("norm_last", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_every_way_to_store_a_token_equals_the_reference(tier, format, norm_last):
    """Norms of values, norms after the rotation, temperatures, and queries without keys."""
    for dim, value_dim, share, rotated in ((64, 24, 2, 32), (40, 80, 3, 0)):
        group = PoolGroup("group", 40, 64, 1, 2, dim, value_dim, format)
        rng, twin = np.random.default_rng(dim), Twin(tier, 2, group)
        shape = replace(shape_of(group, share), value_dim=value_dim)
        rope = twin.reference.rope_table(tuple(10.0 ** -np.arange(rotated // 2)), 1.25, 200) if rotated else None
        q_norm, k_norm, v_norm = (normal(rng, size) for size in (dim, dim, value_dim))
        temperature = normal(rng, 200)
        twin.begin(tables_of(rng, SPANS, (group,)))
        rows = sum(count for _, count in SPANS)
        q, k, v = (normal(rng, rows, columns) for columns in (2 * share * dim, 2 * dim, 2 * value_dim))
        stored = rope, q_norm, k_norm, 1e-6, v_norm, norm_last, temperature
        same_bits(*twin.both("rope_store", q, k, v, shape, *stored))
        ours, theirs = twin.both("rope_store", 2 * q, None, None, shape, *stored)
        same_bits(ours, theirs)
        same_bits(*twin.both("attention", theirs, shape))
        same_bits(*twin.both("rope_store", q, k, v, shape, rope, None, k_norm, 1e-6, None, norm_last, temperature))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_attention_to_one_key_returns_its_stored_value(tier, format):
    group = group_of(32, 2, format)
    rng, twin, shape = np.random.default_rng(3), Twin(tier, 2, group), shape_of(group, 2)
    twin.begin(tables_of(rng, [(0, 1)], (group,)))
    q, k, v = normal(rng, 1, 128), normal(rng, 1, 64), normal(rng, 1, 64)
    v[0, :2] = 3e38, 2.0**-126
    np.testing.assert_array_equal(*twin.both("rope_store", q, k, v, shape, None, None, None, 1e-6))
    np.testing.assert_array_equal(*twin.both("attention", q, shape))


@pytest.mark.parametrize("size", [2.0**-126, 2.0**-118, 2.0**-66, 2.0**60])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_attention_to_extreme_numbers_equals_the_reference(tier, format, size):
    """Scores and outputs that are subnormal, and outputs that become so as they decay."""
    group = group_of(32, 2, format)
    rng, twin, shape = np.random.default_rng(4), Twin(tier, 2, group), shape_of(group, 3)
    rows = 200
    q, k, v = (normal(rng, rows, heads * 32) for heads in (6, 2, 2))
    k *= np.float32(min(size, 1))
    v *= np.float32(size)
    q[:, 32:64] *= 40  # a sharp softmax: weights underflow, outputs decay
    twin.begin(tables_of(rng, [(0, rows)], (group,)))
    same_bits(*twin.both("rope_store", q, k, v, shape, None, None, None, 1e-6))
    same_bits(*twin.both("attention", q, shape))
    q *= np.float32(min(1 / size, 2.0**100))
    same_bits(*twin.both("attention", q, shape))


@pytest.mark.parametrize(
    ("sinks", "changes"), [(None, {}), (SINKS[[0, 1] * 3], {"window": 50, "chunk": 70, "softcap": 5.0})]
)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_row_bits_do_not_depend_on_spans_page_size_or_team(tier, format, sinks, changes):
    rng = np.random.default_rng(11)
    length, dim, share = 300, 48, 3
    q = normal(rng, length, 2 * share * dim)
    k, v = normal(rng, length, 2 * dim), normal(rng, length, 2 * dim)
    expected = None
    for threads, page_size, cut in ((1, 64, 300), (2, 64, 1), (2, 64, 37), (1, 16, 64), (2, 128, 100), (2, 7, 299)):
        group = group_of(dim, 2, format, page_size, pages=1 + 400 // page_size)
        twin, shape, rows = Twin(tier, threads, group), replace(shape_of(group, share), **changes), []
        for start in range(0, length, cut):
            here = slice(start, min(start + cut, length))
            twin.native.begin(tables_of(rng, [(start, here.stop - start)], (group,)))
            turned = twin.native.rope_store(q[here], k[here], v[here], shape, None, None, None, 1e-6)
            rows.append(twin.native.attention(turned, shape, sinks))
        if expected is None:
            expected = np.concatenate(rows)
        np.testing.assert_array_equal(np.concatenate(rows), expected)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_previous_content_of_a_page_is_not_read(tier, format):
    """A failed sequence may leave NaN in a page. The next owner reads only the tokens that it wrote."""
    group = group_of(32, 1, format, pages=2)
    rng, shape = np.random.default_rng(5), shape_of(group, 2)
    q, k, v = normal(rng, 70, 64), normal(rng, 70, 32), normal(rng, 70, 32)
    results = []
    for stale in (0.0, np.nan, np.inf):
        twin = Twin(tier, 1, group)
        twin.native.begin(tables_of(rng, [(0, 128)], (group,)))
        bad = np.full((128, 32), stale, np.float32)
        twin.native.rope_store(np.zeros((128, 64), np.float32), bad, bad, shape, None, None, None, 1e-6)
        rows = []
        for start, stop in ((0, 33), (33, 34), (34, 70)):
            twin.native.begin(tables_of(rng, [(start, stop - start)], (group,)))
            turned = twin.native.rope_store(q[start:stop], k[start:stop], v[start:stop], shape, None, None, None, 1e-6)
            rows.append(twin.native.attention(turned, shape))
        results.append(np.concatenate(rows))
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


@pytest.mark.parametrize("page_size", [5, 64])
@pytest.mark.parametrize("format", FORMATS)
def test_page_copies_are_exact(format, page_size):
    for tier in TIERS:
        group = group_of(16, 2, format, page_size, pages=30, layers=2)
        rng, twin = np.random.default_rng(8), Twin(tier, 1, group)
        shapes = [shape_of(group, 2, layer=layer) for layer in range(2)]
        for shape in shapes:
            fill(rng, twin, [(0, 40)], group, shape)
        tables = tables_of(rng, [(39, 1)], (group,))
        q = normal(rng, 1, 64)
        twin.begin(tables)
        before = [twin.native.attention(q, shape) for shape in shapes]
        source = int(tables.pages[0][0, 0])
        target = next(page for page in range(30) if page not in tables.pages[0])
        twin.copy(PageCopy("group", source, target))
        tables.pages[0][0, 0] = target
        twin.begin(tables)
        for shape, expected in zip(shapes, before, strict=True):
            np.testing.assert_array_equal(twin.native.attention(q, shape), expected)


@pytest.mark.parametrize("changes", [{"window": 10}, {"chunk": 150}])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_page_outside_the_window_or_chunk_is_not_read(tier, format, changes):
    group = group_of(16, 1, format)
    rng, twin, shape = np.random.default_rng(9), Twin(tier, 2, group), replace(shape_of(group, 2), **changes)
    fill(rng, twin, [(0, 200)], group, shape)
    tables = tables_of(rng, [(199, 1)], (group,))
    q = normal(rng, 1, 32)
    twin.native.begin(tables)
    expected = twin.native.attention(q, shape)
    tables.pages[0][0, :2] = -1
    twin.native.begin(tables)
    np.testing.assert_array_equal(twin.native.attention(q, shape), expected)
