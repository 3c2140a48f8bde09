"""Random shapes, ranks and rows for native operations of adapters against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changed_operations import random_change
from changed_sites import FLOATS, Changes, embedding, low_rank, norm_changes, replacement, twin_sites
from ferrum.kernels.adapters import Change, SiteKind
from ferrum.kernels.interface import AdapterRows
from ferrum.kernels.op_attributes import SILU, Routing
from hypothesis_settings import examples, seeds
from native_twin import TIERS, Twin, normal, same_bits, tables_of
from native_weights import BLOCKS, weight_of, wild

SLOTS = 3
VOCABULARY = 19
FORMATS = BLOCKS[0], *FLOATS

teams = st.integers(1, 2)
rows = st.one_of(st.integers(1, 40), st.integers(1, 300))
widths = st.one_of(st.integers(1, 70), st.integers(1, 400))
ranks = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 64, 65, 128]))
floats = st.sampled_from(FLOATS)


def begin(rng: np.random.Generator, twin: Twin, rows: int, alone: bool) -> tuple[AdapterRows, ...]:
    """Begin a step of random rows of each slot and of an empty one, and of random rows of logits."""
    chosen = rng.integers(0, SLOTS + 2, rows)
    using = [chosen == slot if alone else rng.random(rows) < 0.4 for slot in range(SLOTS + 1)]
    logits = np.flatnonzero(rng.random(rows) < 0.3).astype(np.int32)
    adapters = tuple(
        AdapterRows(
            int(slot),
            float(rng.choice([1.0, 0.3, -2.0])),
            np.flatnonzero(using[slot]).astype(np.int32),
            np.flatnonzero(using[slot][logits]).astype(np.int32),
        )
        for slot in rng.permutation(SLOTS + 1)
    )
    made = tables_of(rng, [(0, rows)], (), vocabulary=VOCABULARY)
    twin.begin(made._replace(adapters=adapters, logit_rows=logits))
    return adapters


@pytest.mark.parametrize("tier", TIERS)
@examples(12)
@given(
    seed=seeds, threads=teams, rows=rows, inputs=widths, outputs=st.lists(widths, min_size=1, max_size=4),
    rank=ranks, dtype=floats, alone=st.booleans(), head=st.booleans(),
)  # fmt: skip
def test_adapted_products(tier, seed, threads, rows, inputs, outputs, rank, dtype, alone, head):
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    begin(rng, twin, rows, alone)
    shapes, entries = [(each, inputs) for each in outputs], list[Changes]()
    for _ in range(SLOTS):
        made = (
            random_change(rng, shape, int(rng.integers(1, rank + 1)), dtype, int(rng.integers(6 if alone else 2)))
            for shape in shapes
        )
        entries.append(tuple(None if rng.random() < 0.2 else each for each in made))
    count = len(twin.reference.tables.logit_rows) if head else rows
    x, ys = wild(rng, count, inputs), tuple(normal(rng, count, each) for each in outputs)
    sites = twin_sites(twin, SiteKind.HEAD if head else SiteKind.LINEAR, shapes, entries)
    for ours, theirs in zip(twin.native.adapt(x, ys, sites[0]), twin.reference.adapt(x, ys, sites[1]), strict=True):
        same_bits(ours, theirs)
    if head:
        return
    weights = tuple(weight_of(rng, *shape, FORMATS[rng.integers(len(FORMATS))]) for shape in shapes)
    biases = tuple(normal(rng, each) if rng.random() < 0.5 else None for each in outputs)
    ours, theirs = (
        each.linear(x, some, biases, None, site)
        for each, some, site in zip((twin.native, twin.reference), (twin._packed(weights), weights), sites, strict=True)
    )
    for one, other in zip(ours, theirs, strict=True):
        same_bits(one, other)


@pytest.mark.parametrize("tier", TIERS)
@examples(4)
@given(
    seed=seeds, threads=teams, rows=rows, inputs=widths, outputs=widths, rank=ranks, dtype=floats,
    heads=st.integers(2, 4),
)  # fmt: skip
def test_adapted_heads(tier, seed, threads, rows, inputs, outputs, rank, dtype, heads):
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    begin(rng, twin, rows, alone=False)
    entries: list[Changes] = [(Change(low_rank(rng, (outputs, inputs), rank, dtype, heads)),) for _ in range(SLOTS)]
    x, y = normal(rng, rows, heads * inputs), normal(rng, rows, heads * outputs)
    sites = twin_sites(twin, SiteKind.HEADS, [(outputs, inputs)], entries, heads)
    same_bits(*(each.adapt(x, (y,), site)[0] for each, site in zip((twin.native, twin.reference), sites, strict=True)))


@pytest.mark.parametrize("tier", TIERS)
@examples(6)
@given(
    seed=seeds, threads=teams, rows=rows, columns=widths, rank=ranks, dtype=floats,
    scale=st.sampled_from([1.0, 6.1]), alone=st.booleans(),
)  # fmt: skip
def test_adapted_embeddings(tier, seed, threads, rows, columns, rank, dtype, scale, alone):
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    begin(rng, twin, rows, alone)
    shape, entries = (VOCABULARY, columns), list[Changes]()
    for slot in range(SLOTS):
        some = sorted(rng.choice(VOCABULARY, 1 + int(rng.integers(VOCABULARY)), replace=False).tolist())
        new = replacement(rng, shape, some if slot else None, dtype) if alone else None
        entries.append((Change(embedding(rng, shape, rank, dtype), new),))
    y = normal(rng, rows, columns)
    ours, theirs = twin_sites(twin, SiteKind.EMBEDDING, [shape], entries)
    same_bits(twin.native.adapt_embedding(y, ours, scale), twin.reference.adapt_embedding(y, theirs, scale))


@pytest.mark.parametrize("tier", TIERS)
@examples(12)
@given(seed=seeds, threads=teams, rows=rows, columns=widths, biased=st.booleans(), centred=st.booleans())
def test_adapted_norms(tier, seed, threads, rows, columns, biased, centred):
    """Adapters replace the weight, the bias, both or neither."""
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    begin(rng, twin, rows, alone=True)
    only_bias = (Change(bias=normal(rng, columns)),)
    kinds = norm_changes(rng, columns), norm_changes(rng, columns, bias=True), only_bias, (None,)
    entries: list[Changes] = [kinds[int(rng.integers(len(kinds)))] for _ in range(SLOTS)]
    x, delta, weight = wild(rng, rows, columns), normal(rng, rows, columns), normal(rng, columns)
    rest = weight, 1e-6, normal(rng, columns) if biased else None, centred
    sites = twin_sites(twin, SiteKind.NORM, [(columns, 1)], entries)
    both = [*zip((twin.native, twin.reference), sites, strict=True)]
    same_bits(*(kernels.norm(x, *rest, site) for kernels, site in both))
    ours, theirs = (kernels.add_norm(x, delta, *rest, 0.22, site) for kernels, site in both)
    for one, other in zip(ours, theirs, strict=True):
        same_bits(one, other)


@pytest.mark.parametrize("tier", TIERS)
@examples(4)
@given(
    seed=seeds, threads=teams, rows=st.integers(1, 60), experts=st.integers(2, 5), columns=st.integers(1, 4),
    hidden=st.integers(1, 3), rank=ranks, dtype=floats, on_input=st.booleans(),
    format=st.sampled_from(FORMATS),
)  # fmt: skip
def test_adapted_experts(tier, seed, threads, rows, experts, columns, hidden, rank, dtype, on_input, format):
    """Sizes of experts are multiples of 32."""
    rng, twin = np.random.default_rng(seed), Twin(tier, threads)
    begin(rng, twin, rows, alone=False)
    inner, outer = (32 * hidden, 32 * columns), (32 * columns, 32 * hidden)
    entries: list[Changes] = [
        tuple(
            None if rng.random() < 0.2 else Change(low_rank(rng, shape, rank, dtype, experts))
            for shape in (inner, inner, outer)
        )
        for _ in range(SLOTS)
    ]
    sizes = [(experts * outputs, inputs) for outputs, inputs in (inner, inner, outer)]
    weights = tuple(weight_of(rng, *size, format) for size in sizes)
    routing = Routing(experts, int(rng.integers(1, experts + 1)), "sigmoid", late=on_input, on_input=on_input)
    x, scores = normal(rng, rows, 32 * columns), normal(rng, rows, experts)
    given, rest = (x, scores, routing), (SILU, None, None, None, None, None)
    ours, theirs = twin_sites(twin, SiteKind.EXPERTS, sizes, entries, experts)
    same_bits(
        twin.native.experts(*given, *twin._packed(weights), *rest, ours),
        twin.reference.experts(*given, *weights, *rest, theirs),
    )
