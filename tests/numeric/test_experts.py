"""Experts and products by heads: an oracle of routing, native kernels against the reference, bits of a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum.core.errors import Unsupported
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.op_attributes import SILU, Activation, Routing
from ferrum.kernels.reference import ReferenceKernels
from ferrum.kernels.reference.reference_experts import route, scored
from native_twin import TIERS, Twin, normal, same_bits
from native_weights import weight_of

EXPERTS, HIDDEN, INNER = 12, 96, 64

PLAIN = Routing(EXPERTS, 3)
ROUTINGS = {
    "softmax": PLAIN,
    "softmax of the chosen": replace(PLAIN, late=True),
    "renormalised": replace(PLAIN, renormalise=True, least=0.4, factor=1.5),
    "sigmoid": replace(PLAIN, score="sigmoid", renormalise=True, eps=1e-20, factor=2.5),
    "sigmoid on inputs": replace(PLAIN, score="sigmoid", top_k=2, late=True, on_input=True),
    "sqrt of softplus": replace(PLAIN, score="sqrt_softplus", renormalise=True, eps=1e-20),
    "best of a group": replace(PLAIN, groups=4, kept_groups=2, factor=16.0),
    "two best of a group": replace(PLAIN, score="sigmoid", groups=3, kept_groups=2, group_best=2, renormalise=True),
    "all experts": replace(PLAIN, top_k=EXPERTS),
}
KERNELS: list[Callable[[], Any]] = [ReferenceKernels, *(partial(NativeKernels, tier, 2) for tier in TIERS[:1])]
GPT_OSS = Activation("silu", sharpness=1.702, limit=7.0)
FORMATS = {
    "f32": (np.float32,) * 3,
    "bf16": (ml_dtypes.bfloat16,) * 3,
    "q8_0": ("q8_0",) * 3,
    "mxfp4": ("mxfp4",) * 3,
    "q4_k and q6_k": ("q4_k", "q4_k", "q6_k"),
    "three formats": ("q5_1", "iq4_nl", np.float16),
}


def arguments(
    seed: int,
    routing: Routing,
    formats: tuple[Any, ...] = FORMATS["f32"],
    activation: Activation = SILU,
    rows: int = 65,
) -> tuple[Any, ...]:
    """Return the arguments of `experts` with every vector, and scores with many ties."""
    rng, e = np.random.default_rng(seed), routing.num_experts
    sizes = ((e * INNER, HIDDEN), (e * INNER, HIDDEN), (e * HIDDEN, INNER))
    weights = [weight_of(rng, *size, format) for size, format in zip(sizes, formats, strict=True)]
    scores = np.round(2 * normal(rng, rows, e)) / np.float32(2)
    biases = [normal(rng, size[0]) for size in sizes]
    vectors = np.round(normal(rng, e)) / np.float32(4), normal(rng, e)
    return normal(rng, rows, HIDDEN), scores, routing, *weights, activation, *vectors, *biases


def some(all: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
    """Return the arguments for some of the rows."""
    return all[0][rows], all[1][rows], *all[2:]


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("tier", TIERS)
def test_every_routing_equals_the_reference_and_a_row_alone_its_row_in_company(tier: str, name: str) -> None:
    """Some rows have an expert for themselves, some share one in a tile or in several."""
    formats = tuple(FORMATS.values())[sum(map(ord, name)) % len(FORMATS)]
    given = arguments(1, ROUTINGS[name], formats)
    twin = Twin(tier, 2)
    packed = twin._packed(given)
    ours, theirs = twin.native.experts(*packed), twin.reference.experts(*given)
    same_bits(ours, theirs)
    for begin, end in ((0, 1), (7, 8), (64, 65), (3, 10)):
        same_bits(twin.native.experts(*some(packed, slice(begin, end))), ours[begin:end])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tier", TIERS)
def test_every_format_equals_the_reference_on_one_thread_or_two(tier: str, name: str) -> None:
    given = arguments(2, ROUTINGS["renormalised"], FORMATS[name], GPT_OSS, rows=40)
    expected = ReferenceKernels().experts(*given)
    for threads in (1, 2):
        twin = Twin(tier, threads)
        packed = twin._packed(given)
        same_bits(twin.native.experts(*packed), expected)
        same_bits(twin.native.experts(*some(packed, slice(5, 6))), expected[5:6])


@pytest.mark.parametrize("tier", TIERS)
def test_experts_of_many_rows_take_several_blocks(tier: str) -> None:
    """Two experts get all rows, which are more than a block of rows."""
    given = arguments(3, Routing(2, 1), ("q4_k", "q4_k", "q8_0"), rows=450)
    ours, theirs = Twin(tier, 3).both("experts", *given)
    same_bits(ours, theirs)


@pytest.mark.parametrize("tier", TIERS)
def test_results_of_many_rows_are_added_in_strips(tier: str) -> None:
    """Results of 260 rows with 4 experts of 2080 columns are more than a strip, and those of 40 rows are less."""
    rng, kernels = np.random.default_rng(8), NativeKernels(tier, 2)
    sizes = (4 * 32, 2080), (4 * 32, 2080), (4 * 2080, 32)
    weights = [kernels.weight(weight_of(rng, *size, "q8_0")) for size in sizes]
    x, scores, bias = normal(rng, 260, 2080), normal(rng, 260, 4), normal(rng, 4 * 2080)
    rest = Routing(4, 4), *weights, SILU, None, None, None, None, bias
    whole = kernels.experts(x, scores, *rest)
    for part in (slice(begin, begin + 40) for begin in range(0, 260, 40)):
        same_bits(kernels.experts(x[part], scores[part], *rest), whole[part])


@pytest.mark.parametrize("kernels", KERNELS)
def test_ties_go_to_the_lowest_expert(kernels: Any) -> None:
    """With equal scores everywhere, the first experts of the first groups give the result of experts 0 to 2."""
    kernels = kernels()
    for routing in (PLAIN, ROUTINGS["softmax of the chosen"], ROUTINGS["two best of a group"]):
        x, scores, _, *weights = arguments(4, routing, rows=2)[:6]
        weights = [kernels.weight(weight) for weight in weights]
        first = np.full_like(scores, 0.25)
        first[1, 3:] = -9  # the same experts without a tie
        plain = replace(routing, renormalise=True)
        tied, chosen = kernels.experts(np.stack([x[0], x[0]]), first, plain, *weights)
        np.testing.assert_allclose(tied, chosen, rtol=1e-5)


@pytest.mark.parametrize("tier", TIERS)
def test_a_row_with_scores_that_are_not_finite_is_not_finite_and_harms_no_other(tier: str) -> None:
    for name in ("softmax", "softmax of the chosen", "sigmoid on inputs", "two best of a group"):
        given = arguments(5, ROUTINGS[name], rows=9)
        twin = Twin(tier, 2)
        clean = twin.native.experts(*twin._packed(given))
        given[1][2, 5], given[1][4], given[1][6, 0] = np.nan, -np.inf, np.inf
        ours, theirs = twin.both("experts", *given)
        same_bits(ours, theirs)
        assert not np.isfinite(ours[[2, 4, 6]]).any()
        kept = [0, 1, 3, 5, 7, 8]
        same_bits(ours[kept], clean[kept])


@pytest.mark.parametrize("format", [np.float32, ml_dtypes.bfloat16, "q8_0", "q5_1"])
@pytest.mark.parametrize("tier", TIERS)
def test_products_by_heads_equal_the_reference_for_any_rows(tier: str, format: Any) -> None:
    rng, heads, outputs, inputs = np.random.default_rng(6), 5, 64, 40
    weight, x = weight_of(rng, heads * outputs, inputs, format), normal(rng, 33, heads * inputs)
    twin = Twin(tier, 2)
    ours, theirs = twin.both("head_linear", x, weight, heads)
    same_bits(ours, theirs)
    packed = twin.native.weight(weight)
    for begin, end in ((0, 1), (30, 33)):
        same_bits(twin.native.head_linear(x[begin:end], packed, heads), ours[begin:end])
    for head in (0, 4):  # a head's product is that of its part alone
        part = packed.part(head * outputs, (head + 1) * outputs)
        same_bits(
            part.matmul(x[:, head * inputs : (head + 1) * inputs]), ours[:, head * outputs : (head + 1) * outputs]
        )


@pytest.mark.parametrize("kernels", KERNELS)
def test_matrices_that_are_no_whole_panels_are_refused(kernels: Any) -> None:
    kernels, rng = kernels(), np.random.default_rng(7)
    weight = kernels.weight(weight_of(rng, 2 * 40, 32, np.float32))
    with pytest.raises(Unsupported, match="80 rows in 2 matrices: each needs a multiple of 32"):
        kernels.head_linear(normal(rng, 1, 64), weight, 2)


def plainly_routed(scores: list[float], r: Routing, bias: list[float]) -> tuple[list[int], list[float]]:
    """Route a row in float64, by `Routing`'s steps one after another."""

    def apply(values: list[float]) -> list[float]:
        if r.score == "softmax":
            raised = [math.exp(v - max(values)) for v in values]
            return [v / sum(raised) for v in raised]
        if r.score == "sigmoid":
            return [1 / (1 + math.exp(-v)) for v in values]
        return [math.sqrt(math.log1p(math.exp(v))) for v in values]

    values = scores if r.late else apply(scores)
    ranked = [float(np.float32(v) + np.float32(b)) for v, b in zip(values, bias, strict=True)]
    size = r.num_experts // r.groups
    members = [range(g * size, (g + 1) * size) for g in range(r.groups)]
    totals = [sum(sorted((ranked[e] for e in each), reverse=True)[: r.group_best]) for each in members]
    kept = sorted(range(r.groups), key=lambda g: (-totals[g], g))[: r.kept_groups]
    allowed = [e for g in kept for e in members[g]]
    chosen = sorted(sorted(allowed, key=lambda e: (-ranked[e], e))[: r.top_k])
    weights = [values[e] for e in chosen]
    weights = apply(weights) if r.late else weights
    if r.renormalise:
        total = max(sum(weights) + r.eps, r.least)
        weights = [w / total for w in weights]
    return chosen, [w * r.factor for w in weights]


@st.composite
def routings(draw: st.DrawFn) -> Routing:
    groups = draw(st.sampled_from([1, 2, 4]))
    size = draw(st.integers(2, 5))
    kept = draw(st.integers(1, groups))
    return Routing(
        groups * size,
        draw(st.integers(1, kept * size)),
        draw(st.sampled_from(["softmax", "sigmoid", "sqrt_softplus"])),
        late=draw(st.booleans()),
        groups=groups,
        kept_groups=kept,
        group_best=draw(st.integers(1, 2)),
        renormalise=draw(st.booleans()),
        least=draw(st.sampled_from([0.0, 0.5])),
        factor=draw(st.sampled_from([1.0, 2.5])),
    )


@settings(max_examples=60, deadline=None)
@given(routings(), st.data())
def test_routing_follows_its_steps(routing: Routing, data: st.DataObject) -> None:
    """Scores are quarters with many ties; a power of two as a bias keeps the order exact where it decides."""
    quarters = st.lists(st.integers(-8, 8), min_size=routing.num_experts, max_size=routing.num_experts)
    scores = np.array(data.draw(quarters), np.float32)[None] / np.float32(4)
    bias = np.array(data.draw(quarters), np.float32)
    raw = scores if routing.late else scored(scores, routing.score)
    experts, weights = route(scores, routing, bias, None)
    chosen, expected = plainly_routed(scores[0].tolist(), routing, bias.tolist())
    totals = raw[0] + bias
    assert len(set(experts[0].tolist())) == routing.top_k and (np.diff(experts[0]) > 0).all()
    if len(np.unique(np.round(totals, 5))) == len(np.unique(totals)):  # float32 and float64 order them alike
        assert experts[0].tolist() == chosen
        np.testing.assert_allclose(weights[0], expected, rtol=1e-5)
