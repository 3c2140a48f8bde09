"""Rotation, the pool and attention on the emulated CUDA device: the bits of the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cuda_twin import CudaTwin
from ferrum.kernels.interface import PoolGroup
from ferrum.kernels.op_attributes import AttentionShape
from native_twin import group_of, normal, shape_of, tables_of

FORMATS = ("float32", "bfloat16", "int8")
SPANS = [(0, 1), (63, 1), (0, 65), (64, 1), (100, 30), (129, 2)]
FEW = [(0, 1), (63, 1), (192, 1), (126, 9), (129, 2)]
"""Spans of few rows, whose keys are spread over blocks."""

STEPS = pytest.mark.parametrize("spans", [SPANS, FEW], ids=["many rows", "few rows"])
SMOKE = [pytest.param("float32", marks=pytest.mark.cuda), "bfloat16", "int8"]
"""Formats of tests that `make test` runs, which compile no module that others do not."""

EPS = 1e-6


def count_of(spans: list[tuple[int, int]]) -> int:
    return sum(count for _, count in spans)


def same_pages(twin: CudaTwin, group: PoolGroup) -> None:
    """Assert that all pages have the same bytes on both."""
    for page in range(group.num_pages):
        ours, theirs = (kernels.read_page(group.name, page) for kernels in (twin.cuda, twin.reference))
        np.testing.assert_array_equal(ours, theirs)


def frequencies(pairs: int) -> tuple[float, ...]:
    return tuple(10.0 ** -np.arange(pairs))


@pytest.mark.cuda
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("key_dim", "value_dim", "page_size", "pairs"),
    [(16, 16, 64, 8), (80, 24, 16, 20), (40, 96, 12, 20), (7, 5, 5, 3), (576, 512, 128, 32)],
)
def test_stored_keys_and_values_equal_the_reference(format, key_dim, value_dim, page_size, pairs):
    rng, rows = np.random.default_rng(key_dim), count_of(SPANS)
    group = PoolGroup("group", 8 + 700 // page_size, page_size, 2, 2, key_dim, value_dim, format)
    twin = CudaTwin(group)
    shape = AttentionShape(0, 1, 6, 2, key_dim, 0.3, value_dim=value_dim)
    q, k, v = (normal(rng, rows, width) for width in (6 * key_dim, 2 * key_dim, 2 * value_dim))
    k[3] *= np.float32(2.0**-130)
    v[5] *= np.float32(2.0**-100)
    k[7, 1], v[8, -1], v[9, 0] = np.inf, np.nan, 3e38
    norms = [twin.vector(normal(rng, size)) for size in (key_dim, key_dim, value_dim)]
    temperature, rope = twin.vector(normal(rng, 200)), twin.rope_table(frequencies(pairs), 1.25, 200)
    twin.begin(tables_of(rng, SPANS, (group,)))
    twin.same("rope_store", q, k, v, shape, None, None, None, EPS)
    same_pages(twin, group)
    for last in (False, True):
        rest = rope, *norms[:2], EPS, norms[2], last, temperature
        twin.same("rope_store", q, k, v, shape, *rest)
        same_pages(twin, group)
        twin.same("rope_store", q[:, ::-1].copy(), None, None, shape, *rest)


@pytest.mark.cuda
@pytest.mark.parametrize("format", FORMATS)
def test_stored_latent_vectors_equal_the_reference(format):
    rng, rows = np.random.default_rng(0), count_of(SPANS)
    group = PoolGroup("group", 60, 16, 1, 1, 48, 0, format)
    twin, shape = CudaTwin(group), AttentionShape(0, 0, 3, 1, 48, 0.6, value_dim=32)
    rope = twin.rope_table(frequencies(7), 1.0, 200)
    twin.begin(tables_of(rng, SPANS, (group,)))
    given = (normal(rng, rows, width) for width in (96, 48, 32, 16))
    twin.same("latent_store", *given, shape, rope)
    same_pages(twin, group)


def fill(rng: np.random.Generator, twin: CudaTwin, lengths: list[int], group: PoolGroup, shape: AttentionShape):
    """Fill the pages of sequences with random keys and values."""
    spans = [(0, length) for length in lengths]
    k, v = (normal(rng, count_of(spans), group.num_kv_heads * dim) for dim in (group.key_dim, group.value_dim))
    q = normal(rng, count_of(spans), shape.num_heads * group.key_dim)
    twin.reference.begin(tables_of(rng, spans, (group,)))
    twin.reference.rope_store(q, k, v, shape, None, None, None, EPS)
    twin.send_pages()


def compare(seed: int, spans: list[tuple[int, int]], group: PoolGroup, shape: AttentionShape, **given: np.ndarray):
    """Attend from the last rows of sequences."""
    rng, twin = np.random.default_rng(seed), CudaTwin(group)
    fill(rng, twin, [start + count for start, count in spans], group, shape)
    twin.begin(tables_of(rng, spans, (group,)))
    sinks = {name: twin.vector(values) for name, values in given.items()}
    twin.same("attention", normal(rng, count_of(spans), shape.num_heads * group.key_dim), shape, **sinks)


SHAPES = [
    (16, 2, 2, None, 64),
    (24, 2, 3, 1, 64),
    (48, 1, 7, 9, 1),
    (64, 2, 1, 63, 63),
    (80, 3, 2, 64, 80),
    (128, 1, 4, None, 32),
    (32, 1, 20, 65, 12),
    (200, 1, 3, 100, 192),
    (300, 1, 5, None, 16),
    (576, 1, 3, 100, 64),
]
"""Size of a head, heads of keys, query heads for each, window and page size."""


@pytest.mark.cuda
@STEPS
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_of_every_shape_equals_the_reference(format, shape, spans):
    dim, heads, share, window, page_size = shape
    group = group_of(dim, heads, format, page_size, pages=8 + 700 // page_size)
    compare(dim + share, spans, group, shape_of(group, share, window))


@pytest.mark.cuda
@pytest.mark.parametrize("format", FORMATS)
def test_attention_of_long_sequences_equals_the_reference(format):
    group = group_of(16, 2, format, pages=60)
    compare(3, [(2600, 2), (40, 1), (700, 1)], group, shape_of(group, 2))


SINKS = np.float32([0.5, -3, 8, -np.inf])


@pytest.mark.cuda
@STEPS
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
def test_softcaps_sinks_and_chunks_equal_the_reference(format, sinks, changes, spans):
    group = group_of(16, 2, format)
    given = {} if sinks is None else {"sinks": sinks}
    compare(5, spans, group, replace(shape_of(group, 2), **changes), **given)


@pytest.mark.cuda
@pytest.mark.parametrize(("key_dim", "value_dim", "page_size"), [(16, 144, 64), (80, 24, 64), (40, 64, 5)])
@STEPS
@pytest.mark.parametrize("format", FORMATS)
def test_values_may_be_wider_or_narrower_than_keys(format, key_dim, value_dim, page_size, spans):
    group = PoolGroup("group", 8 + 700 // page_size, page_size, 1, 2, key_dim, value_dim, format)
    compare(6, spans, group, replace(shape_of(group, 2), value_dim=value_dim))


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("key_dim", "value_dim", "heads", "page_size"),
    [(48, 32, 3, 64), (200, 144, 17, 12), (576, 512, 5, 64), (40, 19, 2, 5)],
)
@STEPS
@pytest.mark.parametrize("format", FORMATS)
def test_latent_attention_equals_the_reference(format, key_dim, value_dim, heads, page_size, spans):
    group = PoolGroup("group", 8 + 700 // page_size, page_size, 2, 1, key_dim, 0, format)
    shape = AttentionShape(0, 1, heads, 1, key_dim, 0.2, value_dim=value_dim)
    rng, twin = np.random.default_rng(key_dim), CudaTwin(group)
    lengths = [(0, start + count) for start, count in spans]
    rows, rest = count_of(lengths), key_dim - value_dim
    given = (normal(rng, rows, width) for width in (heads * value_dim, heads * rest, value_dim, rest))
    rope = twin.rope_table(frequencies(rest // 2), 1.0, 200)
    twin.begin(tables_of(rng, lengths, (group,)))
    twin.same("latent_store", *given, shape, rope)
    twin.begin(tables_of(rng, spans, (group,)))
    twin.same("attention", normal(rng, count_of(spans), heads * key_dim), shape)


@pytest.mark.parametrize("format", SMOKE)
def test_extreme_numbers_equal_the_reference(format):
    """Numbers that no row may ignore: tiny ones lose bits, huge ones give infinities, and NaN spreads."""
    spans, group = [(0, 70), (0, 5), (0, 66), (0, 3), (0, 40)], group_of(40, 2, format)
    rng, twin, shape = np.random.default_rng(2), CudaTwin(group), shape_of(group, 3)
    rows = count_of(spans)
    q, k, v = (normal(rng, rows, columns) for columns in (240, 80, 80))
    k[72] *= np.float32(2.0**-128)
    v[73] *= np.float32(2.0**-125)
    k[139:141] *= 8  # which makes the earlier keys of this sequence small ones
    v[75:141] *= np.float32(2.0**-120) * np.float32(2.0) ** rng.integers(-8, 8, (66, 1)).astype(np.float32)
    k[141] *= np.float32(2.0**100)
    q[142] *= np.float32(2.0**100)
    k[144, 3], v[150, 45], q[20, 7], q[30, 9] = np.nan, 3e38, np.inf, np.nan
    twin.begin(tables_of(rng, spans, (group,)))
    twin.same("rope_store", q, k, v, shape, None, None, None, EPS)
    for factor in (1, 64):
        twin.same("attention", q * np.float32(factor), shape)
    bounds = np.cumsum([count for _, count in spans])
    few = [(count - 3, 3) for _, count in spans]
    twin.begin(tables_of(rng, few, (group,)))
    twin.same("attention", np.concatenate([q[end - 3 : end] for end in bounds]), shape)


@pytest.mark.cuda
@pytest.mark.parametrize("format", FORMATS)
def test_pages_that_a_window_has_freed_are_not_read(format):
    group = group_of(16, 2, format, 16)
    rng, twin, shape = np.random.default_rng(2), CudaTwin(group), shape_of(group, 2, window=20)
    fill(rng, twin, [210], group, shape)
    for rows in (2, 70):  # few and many
        tables = tables_of(rng, [(210 - rows, rows)], (group,))
        tables.pages[0][0, : (210 - rows - 20) // 16] = -1
        twin.begin(tables)
        twin.same("attention", normal(rng, rows, 64), shape)


@pytest.mark.parametrize("format", SMOKE)
def test_rows_alone_equal_rows_of_a_batch(format):
    group = group_of(32, 2, format, 16)
    rng, twin, shape = np.random.default_rng(2), CudaTwin(group), shape_of(group, 2)
    fill(rng, twin, [90], group, shape)
    q = normal(rng, 90, 128)
    twin.begin(tables_of(rng, [(0, 90)], (group,)))
    (whole,) = twin.same("attention", q, shape)
    for row in (0, 63, 64, 89):
        twin.begin(tables_of(rng, [(row, 1)], (group,)))
        (alone,) = twin.same("attention", q[row : row + 1], shape)
        np.testing.assert_array_equal(alone, whole[row : row + 1])
