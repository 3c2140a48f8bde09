"""Native operations of adapters against the reference, and bits of a row in any batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from changed_operations import APART, EXPERTS, HIDDEN, INNER, ROUTINGS, SOME, expert_changes, random_change
from changed_sites import FLOATS, Changes, embedding, low_rank, norm_changes, replacement, site_of, twin_sites, uses
from ferrum.kernels.adapters import Change, LowRank, SiteKind
from ferrum.kernels.interface import AdapterRows, GivenRows, StepTables
from ferrum.kernels.op_attributes import SILU, Activation, Routing
from native_twin import TEAMS, TIERS, Twin, group_of, normal, same_bits, shape_of, tables_of, with_teams
from native_weights import BLOCKS, extreme, weight_of, wild

ROWS = 23
SHAPES = ((1, 1), (33, 17), (64, 128), (100, 63), (31, 1000))
RANKS = (1, 2, 3, 7, 16, 31, 33, 70)


def begin(twin: Twin, adapters: tuple[AdapterRows, ...], rows: int = ROWS, **tables: Any) -> None:
    rng = np.random.default_rng(0)
    step = tables_of(rng, [(0, rows)], (), vocabulary=41, logit_rows=(0, 4, 9, 22) if rows == ROWS else ())
    twin.begin(step._replace(adapters=adapters, **tables))


def both(
    twin: Twin, x: np.ndarray, ys: tuple[np.ndarray, ...], kind: SiteKind, entries: list[Changes], heads: int = 1
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Return the (native, reference) results of `adapt`."""
    shapes = [(y.shape[1] // heads, x.shape[1] // heads) for y in ys]
    sites = twin_sites(twin, kind, shapes, entries, heads)
    ours, theirs = (
        kernels.adapt(x, ys, site) for kernels, site in zip((twin.native, twin.reference), sites, strict=True)
    )
    return ours, theirs


@pytest.mark.parametrize(("team", "dtype"), with_teams(FLOATS))
def test_changed_products_equal_the_reference(team, dtype):
    """Matrices of one site have ranks and parts of their own; one of them has no change."""
    rng, twin = np.random.default_rng(1), Twin(*team)
    for index, (outputs, inputs) in enumerate((*SHAPES, *SHAPES)):
        alone = index < len(SHAPES)
        begin(twin, APART if alone else SOME)
        shapes = (outputs, inputs), (45, inputs), (7, inputs)
        entries: list[Changes] = []
        for slot in range(3):
            rank, other = (RANKS[(3 * index + slot + i) % len(RANKS)] for i in range(2))
            made = (
                random_change(rng, shape, r, dtype, (index + slot) % (6 if alone else 2))
                for shape, r in zip(shapes, (rank, other), strict=False)
            )
            entries.append((*made, None) if slot else (None, *made))
        entries[0] = None, *(random_change(rng, shape, 5, dtype, 1) for shape in shapes[1:])
        x = (normal if index % 2 else wild)(rng, ROWS, inputs)
        ys = tuple(normal(rng, ROWS, shape[0]) for shape in shapes)
        for ours, theirs, y in zip(*both(twin, x, ys, SiteKind.LINEAR, entries), ys, strict=True):
            same_bits(ours, theirs)
            same_bits(ours[[20, 21]], y[[20, 21]])  # rows without an adapter


@pytest.mark.parametrize("tier", TIERS)
def test_every_rank_equals_the_reference(tier):
    rng, twin = np.random.default_rng(2), Twin(tier, 2)
    begin(twin, SOME)
    x, ys = normal(rng, ROWS, 65), (normal(rng, ROWS, 40),)
    for rank in (*range(1, 71), 512):
        dtype = FLOATS[rank % 3]
        entries: list[Changes] = [(Change(low_rank(rng, (40, 65), rank, dtype, bias=rank % 2 == 0)),)] * 3
        same_bits(*(found[0] for found in both(twin, x, ys, SiteKind.LINEAR, entries)))


@pytest.mark.parametrize("team", TEAMS)
def test_matrices_that_share_a_have_the_bits_of_copies(team):
    rng, twin = np.random.default_rng(3), Twin(*team)
    begin(twin, SOME)
    x, ys = normal(rng, ROWS, 96), tuple(normal(rng, ROWS, 33) for _ in range(3))
    first, second = (low_rank(rng, (33, 96), 9) for _ in range(2))
    third = LowRank(first.a, normal(rng, 33, 9), 0.7)
    shared: list[Changes] = [(Change(first), Change(second), Change(third))] * 3
    copied: list[Changes] = [(Change(first), Change(second), Change(replace(third, a=first.a.copy())))] * 3
    ours, theirs = both(twin, x, ys, SiteKind.LINEAR, shared)
    for found, expected, apart in zip(ours, theirs, both(twin, x, ys, SiteKind.LINEAR, copied)[0], strict=True):
        same_bits(found, expected)
        same_bits(found, apart)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("size", ["normal", "large", "small"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("tier", TIERS)
def test_changes_of_extreme_numbers_equal_the_reference(tier, dtype, size, rows):
    """Products overflow, cancel or are subnormal, in both matrices."""
    rng, twin = np.random.default_rng(4), Twin(tier, 2)
    x, a = extreme(rng, rows, 80, 12, dtype, size)
    y, b = extreme(rng, rows, 12, 45, dtype, size)
    y = np.resize(y, (rows, 45))
    begin(twin, uses((0, 1.0, range(rows))), rows)
    with np.errstate(all="ignore"):
        entries: list[Changes] = [(Change(LowRank(a.values, b.values, 1.0)),)]
        same_bits(*(found[0] for found in both(twin, x, (y,), SiteKind.LINEAR, entries)))


@pytest.mark.parametrize("team", TEAMS)
def test_a_row_alone_has_the_bits_of_its_row_in_company(team):
    rng, twin = np.random.default_rng(5), Twin(*team)
    shape = 70, 130
    entries: list[Changes] = [(random_change(rng, shape, 6 + slot, np.float32, slot % 2),) for slot in range(3)]
    x, y = normal(rng, ROWS, 130), normal(rng, ROWS, 70)
    begin(twin, SOME)
    ((whole,), _) = both(twin, x, (y,), SiteKind.LINEAR, entries)
    for row in range(ROWS):
        own = [(each.slot, each.scale, [0]) for each in SOME if row in each.rows]
        begin(twin, uses(*own), 1)
        ((alone,), _) = both(twin, x[row : row + 1], (y[row : row + 1],), SiteKind.LINEAR, entries)
        same_bits(alone[0], whole[row])


@pytest.mark.parametrize("team", TEAMS)
def test_logits_are_changed_by_their_rows(team):
    rng, twin = np.random.default_rng(6), Twin(*team)
    begin(twin, uses((0, 1.0, range(9)), (1, 2.0, range(9, 23)), logit_rows=((0, 1), (2, 3))))
    x, y = normal(rng, 4, 50), normal(rng, 4, 41)
    entries: list[Changes] = [(random_change(rng, (41, 50), 8, np.float16, kind),) for kind in (0, 4)]
    ((ours,), (theirs,)) = both(twin, x, (y,), SiteKind.HEAD, entries)
    same_bits(ours, theirs)
    assert (ours != y).any(axis=1).all()


@pytest.mark.parametrize(("team", "dtype"), with_teams(FLOATS))
def test_changed_embeddings_equal_the_reference(team, dtype):
    """Some rows are given in place of embeddings, and stay as they are."""
    rng, twin = np.random.default_rng(7), Twin(*team)
    for columns in (1, 33, 96):
        shape, some = (41, columns), [0, 3, 17, 40, *range(20, 30)]
        entries: list[Changes] = [
            (Change(embedding(rng, shape, 5, dtype), replacement(rng, shape, sorted(some), dtype)),),
            (Change(embedding(rng, shape, 34, dtype)),),
            (Change(replaced=replacement(rng, shape, None, dtype)),),
        ]
        factors = {"factor": normal(rng, columns), "offset": np.zeros(columns, np.float32)}
        scaled: list[Changes] = [(Change(embedding(rng, shape, 5, dtype), **factors),), *entries[1:]]
        y = normal(rng, ROWS, columns)
        given = np.array([1, 8, 21], np.int32)
        cases = [(entries, SOME, rows) for rows in (None, GivenRows(given, normal(rng, 3, columns)))]
        for changes, adapters, rows in (*cases, (scaled, APART, cases[1][2])):
            begin(twin, adapters, given=rows)
            sites = twin_sites(twin, SiteKind.EMBEDDING, [shape], changes)
            for scale in (1.0, 6.1):
                ours = twin.native.adapt_embedding(y, sites[0], scale)
                same_bits(ours, twin.reference.adapt_embedding(y, sites[1], scale))
                if rows is not None:
                    same_bits(ours[given], y[given])


@pytest.mark.parametrize("formats", [BLOCKS[:1] * 2 + BLOCKS[-1:], (np.float32,) * 3, (FLOATS[-1], *BLOCKS[:1] * 2)])
@pytest.mark.parametrize("team", TEAMS)
def test_products_at_a_site_are_changed_as_after_it(team, formats):
    """Few rows are changed panel by panel, more rows and replaced ones after all products."""
    rng, twin, shapes = np.random.default_rng(10), Twin(*team), ((75, 64), (40, 64), (33, 64))
    pairs = zip(shapes, formats, strict=True)
    packed = tuple(twin.native.weight(weight_of(rng, *shape, format)) for shape, format in pairs)
    biases = normal(rng, 75), None, normal(rng, 33)
    for rows, kinds, users in ((1, 2, uses((1, 0.5, [0]))), (ROWS, 2, SOME), (ROWS, 6, APART), (700, 2, SOME)):
        x = wild(rng, rows, 64)
        entries: list[Changes] = [
            tuple(
                random_change(rng, shape, 5 + slot, FLOATS[slot], (slot + i) % kinds) for i, shape in enumerate(shapes)
            )
            for slot in range(3)
        ]
        begin(twin, users, rows)
        site = site_of(twin.native, SiteKind.LINEAR, shapes, entries)
        after = twin.native.adapt(x, twin.native.linear(x, packed, biases), site)
        for found, expected in zip(twin.native.linear(x, packed, biases, None, site), after, strict=True):
            same_bits(found, expected)


ACTIVATIONS = (SILU, Activation("gelu"), Activation("gelu_tanh"), Activation("relu2"), replace(SILU, limit=0.75))


@pytest.mark.parametrize(("team", "format"), with_teams([np.float32, FLOATS[-1], BLOCKS[0]]))
def test_separate_activations_have_the_bits_of_fused_ones(team, format):
    """What follows a product in one operation follows it as another one in the program with adapters."""
    rng, twin = np.random.default_rng(8), Twin(*team)
    begin(twin, ())
    gate, up = weight_of(rng, 75, 64, format), weight_of(rng, 75, 64, format)
    x, biases = wild(rng, ROWS, 64), (normal(rng, 75), normal(rng, 75))
    packed = twin.native.weight(gate), twin.native.weight(up)
    one, other = twin.native.linear(x, packed, biases)
    for activation in ACTIVATIONS:
        gated = twin.native.gate(one, other, activation)
        same_bits(gated, twin.native.gated_linear(x, *packed, activation, *biases))
        same_bits(gated, twin.reference.gate(one, other, activation))
        activated = twin.native.activate(one, activation)
        same_bits(activated, twin.native.linear(x, packed[:1], biases[:1], activation)[0])
        same_bits(activated, twin.reference.activate(one, activation))
    (logits,) = twin.native.linear(x, packed[:1], (None,))
    for scaling in ((0.3,), (1.0, 5.0), (0.5, 30.0)):
        scaled = twin.native.scale_logits(logits, *scaling)
        same_bits(scaled, twin.native.head(x, packed[0], *scaling))
        same_bits(scaled, twin.reference.scale_logits(logits, *scaling))


@pytest.mark.parametrize(("team", "dtype"), with_teams(FLOATS))
def test_changed_heads_equal_the_reference(team, dtype):
    """One of the matrices A and B may be that of all heads."""
    rng, twin, heads = np.random.default_rng(9), Twin(*team), 3
    begin(twin, SOME)
    x, y = normal(rng, ROWS, heads * 40), normal(rng, ROWS, heads * 64)
    each = low_rank(rng, (64, 40), 6, dtype, heads)
    entries: list[Changes] = [
        (Change(each),), (Change(replace(each, a=each.a[0])),), (Change(replace(each, b=each.b[1], scale=2.0)),)
    ]  # fmt: skip
    ((ours,), (theirs,)) = both(twin, x, (y,), SiteKind.HEADS, entries, heads)
    same_bits(ours, theirs)
    same_bits(ours[20:22], y[20:22])
    begin(twin, uses((0, 1.0, range(ROWS))))
    plain: list[Changes] = [(Change(LowRank(each.a[1], each.b[1], each.scale)),)]
    ((part,), _) = both(twin, x[:, 40:80].copy(), (y[:, 64:128].copy(),), SiteKind.LINEAR, plain)
    ((whole,), _) = both(twin, x, (y,), SiteKind.HEADS, entries, heads)
    same_bits(whole[:, 64:128], part)


@pytest.mark.parametrize(("name", "dtype"), [*zip(ROUTINGS, FLOATS, strict=True)])
@pytest.mark.parametrize("team", TEAMS)
def test_changed_experts_equal_the_reference_and_other_rows_keep_their_bits(team, name, dtype):
    rng, twin, routing = np.random.default_rng(10), Twin(*team), ROUTINGS[name]
    formats = {"softmax": (BLOCKS[0],) * 3, "all experts": ("q8_0", np.float32, FLOATS[-1])}.get(name, (dtype,) * 3)
    sizes = (EXPERTS * INNER, HIDDEN), (EXPERTS * INNER, HIDDEN), (EXPERTS * HIDDEN, INNER)
    weights = tuple(weight_of(rng, *size, format) for size, format in zip(sizes, formats, strict=True))
    x, scores = normal(rng, ROWS, HIDDEN), np.round(4 * normal(rng, ROWS, EXPERTS)) / np.float32(2)
    biases = [normal(rng, size[0]) for size in sizes]
    given = routing, *weights, replace(SILU, limit=0.75), None, None, *biases
    packed = twin._packed(given)
    entries = expert_changes(rng, 5, dtype)
    sites = twin_sites(twin, SiteKind.EXPERTS, sizes, entries, EXPERTS)
    begin(twin, SOME)
    ours = twin.native.experts(x, scores, *packed, sites[0])
    same_bits(ours, twin.reference.experts(x, scores, *given, sites[1]))
    same_bits(ours[20:22], twin.native.experts(x, scores, *packed)[20:22])
    for row in (0, 7, 22):
        begin(twin, uses(*((each.slot, each.scale, [0]) for each in SOME if row in each.rows)), 1)
        same_bits(twin.native.experts(x[row : row + 1], scores[row : row + 1], *packed, sites[0])[0], ours[row])


@pytest.mark.parametrize("tier", TIERS)
def test_changed_experts_of_many_rows_are_added_in_strips(tier):
    """Results of 260 rows with 4 experts of 2080 columns are more than a strip."""
    rng, twin = np.random.default_rng(11), Twin(tier, 2)
    sizes = (4 * 32, 2080), (4 * 32, 2080), (4 * 2080, 32)
    weights = [twin.native.weight(weight_of(rng, *size, "q8_0")) for size in sizes]
    x, scores = normal(rng, 260, 2080), normal(rng, 260, 4)
    inner, outer = (32, 2080), (2080, 32)
    changes = tuple(Change(low_rank(rng, shape, 4, groups=4)) for shape in (inner, inner, outer))
    site = site_of(twin.native, SiteKind.EXPERTS, sizes, [changes], 4)
    rest = Routing(4, 4), *weights, SILU, None, None, None, None, None, site
    begin(twin, uses((0, 1.0, range(200))), 260)
    whole = twin.native.experts(x, scores, *rest)
    for at in (slice(0, 40), slice(180, 220)):
        rows = [row - at.start for row in range(at.start, at.stop) if row < 200]
        begin(twin, uses((0, 1.0, rows)), 40)
        same_bits(twin.native.experts(x[at], scores[at], *rest), whole[at])


NORMED = uses((0, 1.0, [0, 1, 2, 9]), (1, 1.0, range(4, 9)), (5, 1.0, [3]), (2, 1.0, [18, 22]))
"""Rows of a step with adapters of norms; slot 5 is empty."""


def norm_step(groups: tuple[Any, ...] = ()) -> StepTables:
    return tables_of(np.random.default_rng(0), [(0, 5), (70, 1), (0, 17)], groups)._replace(adapters=NORMED)


@pytest.mark.parametrize("team", TEAMS)
def test_replaced_norms_equal_the_reference(team) -> None:
    """Rows have the bits of a norm with their weight, and rows without an adapter those of the base's."""
    rng, twin = np.random.default_rng(1), Twin(*team)
    twin.begin(norm_step())
    for columns in (1, 33, 192):
        x, delta, weight, bias = (
            normal(rng, *shape) for shape in ((ROWS, columns), (ROWS, columns), (columns,), (columns,))
        )
        only_bias = (Change(bias=normal(rng, columns)),)
        entries: list[Changes] = [norm_changes(rng, columns), norm_changes(rng, columns, bias=True), only_bias]
        sites = twin_sites(twin, SiteKind.NORM, [(columns, 1)], entries)
        for own, centred in ((None, False), (bias, False), (bias, True)):
            expected = twin.native.norm(x, weight, 1e-6, own, centred)
            for adapter, (change,) in zip((NORMED[0], NORMED[1], NORMED[3]), entries, strict=True):
                assert change is not None
                new = weight if change.replaced is None else change.replaced.values.ravel()
                other = own if change.bias is None else change.bias
                expected[adapter.rows] = twin.native.norm(x[adapter.rows], new, 1e-6, other, centred)
            for kernels, site in zip((twin.native, twin.reference), sites, strict=True):
                same_bits(kernels.norm(x, weight, 1e-6, own, centred, site), expected)
            (total, ours), (_, theirs) = (
                kernels.add_norm(x, delta, weight, 1e-6, own, centred, 0.22, site)
                for kernels, site in zip((twin.native, twin.reference), sites, strict=True)
            )
            same_bits(ours, theirs)
            same_bits(ours, twin.native.norm(total, weight, 1e-6, own, centred, sites[0]))


@pytest.mark.parametrize("norm_last", [False, True])
@pytest.mark.parametrize("team", TEAMS)
def test_replaced_norms_of_heads_equal_the_reference(team, norm_last: bool) -> None:
    """Queries and the stored keys, which attention reads, have the norms of their rows."""
    rng, group = np.random.default_rng(2), group_of(40, 2, "float32")
    twin, shape = Twin(*team, group), shape_of(group, 3)
    twin.begin(norm_step((group,)))
    q, k, v = (normal(rng, ROWS, heads * 40) for heads in (6, 2, 2))
    norms, frequencies = (normal(rng, 40), normal(rng, 40)), tuple(10.0 ** -np.arange(20))
    entries: list[Changes] = [norm_changes(rng, 40, 40), (None, *norm_changes(rng, 40)), (*norm_changes(rng, 40), None)]
    results = []
    for kernels in (twin.native, twin.reference):
        site = site_of(kernels, SiteKind.NORM, [(40, 1)] * 2, entries)
        rope = kernels.rope_table(frequencies, 1.0, 128)
        kernels.begin(kernels.tables)  # fills the table
        found = []
        for given in (None, site):
            turned = kernels.rope_store(q, k, v, shape, rope, *norms, 1e-6, None, norm_last, None, given)
            found += [np.array(turned), np.array(kernels.attention(turned, shape))]
        results.append(found)
    for ours, theirs in zip(*results, strict=True):
        same_bits(ours, theirs)
    plain, before, turned, after = results[0]
    assert np.flatnonzero((plain != turned).any(axis=1)).tolist() == [0, 1, 2, 9, 18, 22]
    assert (before[5] != after[5]).any(), "row 5 has another norm of its key alone"
