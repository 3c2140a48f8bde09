"""Rotation, the pool and attention on the emulated CUDA device: the bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_twin import CudaTwin
from ferrum.kernels.interface import PoolGroup
from ferrum.kernels.op_attributes import AttentionShape
from native_twin import normal, tables_of

FORMATS = ("float32", "bfloat16", "int8")
SPANS = [(0, 1), (63, 1), (0, 65), (64, 1), (100, 30), (129, 2)]
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


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("key_dim", "value_dim", "page_size", "pairs"),
    [(16, 16, 64, 8), (80, 24, 16, 20), (40, 96, 12, 20), (7, 5, 5, 3), (576, 512, 128, 32)],
)
def test_stored_keys_and_values_equal_the_reference(format, key_dim, value_dim, page_size, pairs):
    rng, rows = np.random.default_rng(key_dim), count_of(SPANS)
    group = PoolGroup("group", 8 + 600 // page_size, page_size, 2, 2, key_dim, value_dim, format)
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
