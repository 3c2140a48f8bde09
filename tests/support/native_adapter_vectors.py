"""Cases of adapters for the conformance program: operations that change or activate products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from changed_operations import APART, HIDDEN, INNER, ROUTINGS, SOME, expert_changes, random_change
from changed_sites import FLOATS, Changes, embedding, low_rank, replacement, site_of, uses
from ferrum.kernels.adapters import Change, LowRank, SiteKind
from ferrum.kernels.cpu.weights import AdapterMemory, native_entry
from ferrum.kernels.interface import AdapterRows, GivenRows
from ferrum.kernels.op_attributes import SILU, Activation, Routing
from ferrum.kernels.operations import Weight
from ferrum.kernels.reference import ReferenceKernels
from native_twin import normal, tables_of
from native_weights import BLOCKS, extreme, wild
from vector_fields import Case, Fields, matrix, tables

ROWS = 23
VOCABULARY = 41
RANKS = 1, 3, 16, 64
SHAPES = (1, 1), (33, 17), (64, 128), (100, 63), (31, 321)
"""(outputs, inputs) of the first matrix of a site."""


def begin(kernels: ReferenceKernels, adapters: tuple[AdapterRows, ...], rows: int = ROWS, **more: Any) -> Fields:
    """Begin a step of one span; return its tables."""
    made = tables_of(np.random.default_rng(0), [(0, rows)], (), vocabulary=VOCABULARY)
    made = made._replace(adapters=adapters, **more)
    kernels.begin(made)
    return tables("", made)


def site_fields(entries: Sequence[Changes]) -> Fields:
    """Return the adapters of a site, slot by slot, in the library's form."""
    fields: Fields = {"slots": len(entries), "matrices": len(entries[0])}
    for slot, changes in enumerate(entries):
        owners = list[Any]()
        for index, each in enumerate(native_entry(changes, AdapterMemory(0))):
            owners.append(None if each is None or each.low_rank is None else each.low_rank[0])
            if each is None:
                continue
            parts: Fields = {"bias": each.bias, "factor": each.factor, "offset": each.offset}
            if each.low_rank is not None:
                a, b, rank, scale = each.low_rank
                owner = next(at for at, one in enumerate(owners) if one is a)
                parts |= {"owner of a": owner, "b format": b[0], "b": b[1], "rank": rank, "scale": float(scale)}
                parts |= {"a format": a[0], "a": a[1]} if owner == index else {}
            if each.replaced is not None:
                (format, values), rows = each.replaced
                parts |= {"replaced format": format, "replaced": values, "replaced rows": rows}
            fields |= {f"slot {slot} {index} {key}": value for key, value in parts.items() if value is not None}
    return fields


def adapt_case(
    kernels: ReferenceKernels,
    step: Fields,
    x: np.ndarray,
    ys: tuple[np.ndarray, ...],
    entries: Sequence[Changes],
    kind: SiteKind = SiteKind.LINEAR,
    heads: int = 1,
) -> Case:
    """Return a case of `adapt` for the step that was begun."""
    shapes = [(y.shape[1] // heads, x.shape[1] // heads) for y in ys]
    with np.errstate(all="ignore"):
        changed = kernels.adapt(x, ys, site_of(kernels, kind, shapes, entries, heads))
    results = {f"y {i}": y for i, y in enumerate(ys)} | {f"changed {i}": y for i, y in enumerate(changed)}
    place = {"heads": heads, "logits": int(kind is SiteKind.HEAD)}
    return "adapt", {**step, **site_fields(entries), **place, "x": x, **results}


def products(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of three matrices, where adapters have several ranks and parts, and leave some matrices unchanged."""
    kernels = ReferenceKernels()
    for dtype in FLOATS:
        for index, (outputs, inputs) in enumerate((*SHAPES, *SHAPES)):
            alone = index < len(SHAPES)
            step, shapes = begin(kernels, APART if alone else SOME), ((outputs, inputs), (45, inputs), (7, inputs))
            entries: list[Changes] = [(None, *(random_change(rng, shape, 5, dtype, 1) for shape in shapes[1:]))]
            for slot in (1, 2):
                ranks = (RANKS[(3 * index + slot + i) % len(RANKS)] for i in range(2))
                kind = (index + slot) % (6 if alone else 2)
                made = (random_change(rng, *each, dtype, kind) for each in zip(shapes, ranks, strict=False))
                entries.append((*made, None))
            x = (normal if index % 2 else wild)(rng, ROWS, inputs)
            yield adapt_case(kernels, step, x, tuple(normal(rng, ROWS, shape[0]) for shape in shapes), entries)


def linears(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of changes within a linear operation: by panels, or after it of many rows, high ranks or new rows."""
    kernels, shapes = ReferenceKernels(), ((75, 64), (40, 64), (33, 64))
    formats = (BLOCKS[0],) * 3, (np.float32,) * 3, (FLOATS[-1], *BLOCKS[:2])
    for some, dtype in zip(formats, FLOATS, strict=True):
        for rows, kinds, adapters, own in (
            (1, 2, uses((0, 0.5, [0])), RANKS[:3]), (ROWS, 2, SOME, RANKS[:3]), (ROWS, 2, SOME, RANKS[1:]),
            (ROWS, 6, APART, RANKS[:3]), (700, 2, SOME, RANKS[:3]),
        ):  # fmt: skip
            fields = {**begin(kernels, adapters, rows), "x": wild(rng, rows, 64)}
            weights, biases = list[Weight](), (normal(rng, 75), None, normal(rng, 33))
            for index, (shape, format, bias) in enumerate(zip(shapes, some, biases, strict=True)):
                weight, more = matrix(rng, f"weight {index}", shape, format)
                weights.append(weight)
                fields |= more if bias is None else {**more, f"bias {index}": bias}
            entries: list[Changes] = [
                tuple(random_change(rng, shape, rank, dtype, (slot + i) % kinds) for i, shape in enumerate(shapes))
                for slot, rank in enumerate(own)
            ]
            site = site_of(kernels, SiteKind.LINEAR, shapes, entries)
            changed = kernels.linear(fields["x"], tuple(weights), biases, None, site)
            fields |= {f"changed {index}": y for index, y in enumerate(changed)}
            yield "adapted linear", fields | site_fields(entries)


def ranks(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of each rank for one row and for some, with one matrix A of queries, keys and values."""
    kernels = ReferenceKernels()
    for dtype in FLOATS:
        for rank in RANKS:
            for rows in (1, 6):
                step = begin(kernels, uses((0, 0.7, range(rows)), (1, 1.0, [rows - 1])), rows)
                entries = [shared_changes(rng, rank, dtype), shared_changes(rng, rank + 1, dtype)]
                x, ys = normal(rng, rows, 96), tuple(normal(rng, rows, outputs) for outputs in (96, 33, 31))
                yield adapt_case(kernels, step, x, ys, entries)


def shared_changes(rng: np.random.Generator, rank: int, dtype: Any) -> Changes:
    """Return low-rank products by one matrix A."""
    first, *others = (low_rank(rng, (outputs, 96), rank, dtype) for outputs in (96, 33, 31))
    return Change(first), *(Change(replace(each, a=first.a)) for each in others)


def extremes(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases whose products overflow, cancel or are subnormal."""
    kernels = ReferenceKernels()
    for dtype in FLOATS:
        for size in ("large", "small"):
            for rows in (1, 7):
                x, a = extreme(rng, rows, 80, 12, dtype, size)
                y, b = extreme(rng, rows, 12, 45, dtype, size)
                step = begin(kernels, uses((0, 1.0, range(rows))), rows)
                entries: list[Changes] = [(Change(LowRank(a.values, b.values, 1.0)),)]
                yield adapt_case(kernels, step, x, (np.resize(y, (rows, 45)),), entries)


def logits_and_heads(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of rows of logits, and of heads with matrices A and B that are those of one head or of all."""
    kernels = ReferenceKernels()
    for dtype in FLOATS:
        using = uses((0, 1.0, range(9)), (1, 2.0, range(9, ROWS)), logit_rows=((0, 1), (2, 3)))
        step = begin(kernels, using, logit_rows=np.array([0, 4, 9, 22], np.int32))
        entries: list[Changes] = [(random_change(rng, (41, 50), 8, dtype, kind),) for kind in (0, 4)]
        yield adapt_case(kernels, step, normal(rng, 4, 50), (normal(rng, 4, 41),), entries, SiteKind.HEAD)
        step, heads = begin(kernels, SOME), 3
        each = low_rank(rng, (64, 40), 6, dtype, heads)
        entries = [
            (Change(made),) for made in (each, replace(each, a=each.a[0]), replace(each, b=each.b[1], scale=2.0))
        ]
        x, y = normal(rng, ROWS, heads * 40), normal(rng, ROWS, heads * 64)
        yield adapt_case(kernels, step, x, (y,), entries, SiteKind.HEADS, heads)


def embeddings(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of embeddings, some of which were given in place of those of tokens."""
    kernels = ReferenceKernels()
    for dtype in FLOATS:
        for columns in (1, 33, 96):
            shape = VOCABULARY, columns
            factors = normal(rng, columns), np.zeros(columns, np.float32)
            some = replacement(rng, shape, [0, 3, 17, *range(20, 30), 40], dtype)
            entries: list[Changes] = [
                (Change(embedding(rng, shape, 5, dtype), some),),
                (Change(embedding(rng, shape, 34, dtype)),),
                (Change(embedding(rng, shape, 7, dtype), replacement(rng, shape, None, dtype), *factors),),
            ]
            y, given = normal(rng, ROWS, columns), GivenRows(np.array([1, 8, 21], np.int32), normal(rng, 3, columns))
            site = site_of(kernels, SiteKind.EMBEDDING, [shape], entries)
            for scale in (1.0, 6.1):
                for rows in (None, given):
                    step = begin(kernels, SOME, given=rows)
                    fields = {**step, **site_fields(entries), "y": y, "scale": scale}
                    yield "adapt embedding", {**fields, "changed": kernels.adapt_embedding(y, site, scale)}


ACTIVATIONS = (
    SILU, Activation("silu", 1.7), Activation("gelu"), Activation("gelu_tanh"), Activation("relu2"),
    replace(SILU, limit=0.75),
)  # fmt: skip


def activations(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of activations, gates, and scaled and capped logits."""
    kernels = ReferenceKernels()
    for rows, columns in ((1, 1), (3, 37), (2, 256)):
        x, others = wild(rng, rows, columns), 3 * normal(rng, rows, columns)
        for each in ACTIVATIONS:
            limit = {} if each.limit is None else {"limit": each.limit}
            curve = {"curve": each.kind, "slope": each.sharpness, **limit, "x": x}
            yield "activate", {**curve, "others": others, "y": kernels.gate(x, others, each)}
            if each.limit is None:
                yield "activate", {**curve, "y": kernels.activate(x, each)}
        yield "activate", {"x": x, "curve": "scaled", "slope": 0.3, "y": kernels.scale_logits(x, 0.3)}
        for scale, cap in ((1.0, 5.0), (0.5, 30.0)):
            curve = {"curve": "capped", "slope": 2 * scale / cap, "top": cap, "span": 2 * cap, "x": x}
            yield "activate", {**curve, "y": kernels.scale_logits(x, scale, cap)}


def experts(rng: np.random.Generator) -> Iterator[Case]:
    """Write cases of experts with the adapters of their site, and without."""
    for routing, dtype in zip(ROUTINGS.values(), FLOATS, strict=True):
        for format in (dtype, BLOCKS[0]):
            yield expert_case(rng, SOME, routing, (INNER, HIDDEN), format, expert_changes(rng, 5, dtype))


def strips(rng: np.random.Generator) -> Iterator[Case]:
    """Write a case of experts whose results are more than a strip."""
    inner, outer = (32, 2080), (2080, 32)
    changes = tuple(Change(low_rank(rng, shape, 4, groups=8)) for shape in (inner, inner, outer))
    yield expert_case(rng, uses((0, 1.0, range(3, 130))), Routing(8, 8), inner, FLOATS[-1], [changes], rows=130)


def expert_case(
    rng: np.random.Generator,
    adapters: tuple[AdapterRows, ...],
    routing: Routing,
    shape: tuple[int, int],
    format: Any,
    entries: Sequence[Changes],
    rows: int = ROWS,
) -> Case:
    """Return a case of experts with gates of this shape, with the adapters of their site, and without."""
    kernels, count, (inner, hidden) = ReferenceKernels(), routing.num_experts, shape
    sizes = (count * inner, hidden), (count * inner, hidden), (count * hidden, inner)
    step, site = begin(kernels, adapters, rows), site_of(kernels, SiteKind.EXPERTS, sizes, entries, count)
    x, scores = normal(rng, rows, hidden), np.round(4 * normal(rng, rows, count)) / np.float32(2)
    chosen = {name: int(value) if isinstance(value, bool) else value for name, value in asdict(routing).items()}
    fields = {**step, **site_fields(entries), **chosen, "x": x, "scores": scores}
    weights, biases = list[Weight](), [normal(rng, size[0]) for size in sizes]
    for name, size, bias in zip(("gate", "up", "down"), sizes, biases, strict=True):
        weight, more = matrix(rng, name, size, format)
        weights.append(weight)
        fields |= {**more, f"{name} bias": bias}
    given = x, scores, routing, *weights, replace(SILU, limit=0.75), None, None, *biases
    results = {"plain": kernels.experts(*given), "changed": kernels.experts(*given, site)}
    return "experts", {**fields, "curve": "silu", "limit": 0.75, **results}


ADAPTERS = products, linears, ranks, extremes, logits_and_heads, embeddings, activations, experts, strips
