"""Launches of attention: rotation, the write to the pool, and the softmax over the keys in it.

The kernels are in `native/cuda`: `store.cu`, `attention.cu` and `attention_spread.cu`, in one module for each format
of the pool.
"""

# ruff: noqa: ARG001, D103 - `Operations` states what each operation does, and with what arguments

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ferrum.kernels.adapters import AdapterSite
from ferrum.kernels.cuda.device_weights import DeviceRope, DeviceVector
from ferrum.kernels.cuda.driver import THREADS
from ferrum.kernels.cuda.ground import Ground
from ferrum.kernels.cuda.launches import Launch, Operand, blocks_for
from ferrum.kernels.cuda.row_launches import address
from ferrum.kernels.curves import curve_values, scaling
from ferrum.kernels.op_attributes import AttentionShape
from ferrum.kernels.reference.page_layout import PageLayout
from ferrum.kernels.reference.reference_attention import STEP
from ferrum.kernels.reference.reference_math import LOG2_E

_WARPS: Final = THREADS // 32

_NUMBERS: Final = 2304
"""Numbers of the queries of a tile, and of its results; kNumbers in attention.cu."""

_SLOT: Final = 4 * (STEP + 4)
"""Bytes between the kernels of attention of few rows, per row, query head and step; kSlot in attention_spread.cu."""

_MOST_STEPS: Final = 2048
"""Steps of a row of these kernels; kMostSteps."""

_SLOTS: Final = 256 << 20
"""Most bytes of all slots. Beyond, and for more rows, one kernel computes all of attention."""

_FEW_ROWS: Final = 64

_BLOCKS: Final = 1024
"""Blocks over which scores are spread: some for each multiprocessor."""


def _pages(ground: Ground, shape: AttentionShape) -> tuple[int, ...]:
    """Return the fields of `Pages` of native/cuda/pages.hpp."""
    pool, tables = ground.pools[shape.group], ground.tables
    group = pool.group
    sizes = group.num_layers, shape.layer, group.num_kv_heads, group.page_size, pool.block, pool.blocks_per_page
    words = pool.key_padded * PageLayout(group).item // 4
    layout = pool.key_side, words, pool.value_padded, pool.key_bytes, pool.value_bytes
    of_rows = tables.positions, tables.row_span, tables.positions if shape.causal else tables.last_seen
    return pool.address, *sizes, *layout, *tables.pages[shape.group], *of_rows


def _rope(rope: DeviceRope | None) -> tuple[int, int, int]:
    return (0, 0, 0) if rope is None else (rope.cosines, rope.sines, rope.pairs)


def _stores(
    ground: Ground, shape: AttentionShape, kernel: str, heads: int, q: Operand, values: tuple[int | float, ...]
) -> list[Launch]:
    grid = blocks_for(heads, _WARPS), q.capacity, 1
    format = ground.pools[shape.group].group.format
    return [Launch(f"store:{format}", kernel, grid, (q.count, *values, *_pages(ground, shape)))]


def rope_store(
    ground: Ground,
    q: Operand,
    k: Operand | None,
    v: Operand | None,
    shape: AttentionShape,
    rope: DeviceRope | None,
    q_norm: DeviceVector | None,
    k_norm: DeviceVector | None,
    eps: float,
    v_norm: DeviceVector | None,
    norm_last: bool,
    temperature: DeviceVector | None,
    site: AdapterSite | None,
    axes: tuple[int, ...],
    out: Operand,
) -> list[Launch]:
    rows = q.address, address(k), address(v), out.address
    sizes = shape.num_heads, shape.head_dim, ground.pools[shape.group].group.value_dim
    vectors = address(q_norm), address(k_norm), address(v_norm), address(temperature)
    values = *rows, *sizes, *_rope(rope), *vectors, float(eps), int(norm_last)
    heads = shape.num_heads + (0 if k is None else 2 * shape.num_kv_heads)
    return _stores(ground, shape, "rope_store", heads, q, values)


def latent_store(
    ground: Ground,
    q: Operand,
    q_rope: Operand,
    latent: Operand,
    k_rope: Operand,
    shape: AttentionShape,
    rope: DeviceRope,
    out: Operand,
) -> list[Launch]:
    rows = q.address, q_rope.address, latent.address, k_rope.address, out.address
    values = *rows, shape.num_heads, latent.columns, k_rope.columns, *_rope(rope)
    return _stores(ground, shape, "latent_store", shape.num_heads + 1, q, values)


def attention(
    ground: Ground, q: Operand, shape: AttentionShape, sinks: DeviceVector | None, out: Operand
) -> list[Launch]:
    steps = _most_steps(ground, shape)
    slots = q.capacity * shape.num_heads * steps * _SLOT
    if q.capacity > _FEW_ROWS or steps > _MOST_STEPS or slots > _SLOTS:
        return _attend(ground, q, shape, sinks, out)
    return _attend_spread(ground, q, shape, sinks, out)


def _attend(
    ground: Ground, q: Operand, shape: AttentionShape, sinks: DeviceVector | None, out: Operand
) -> list[Launch]:
    """Return the launch for many rows: each block goes over all keys of a tile."""
    width = max(shape.head_dim + 3, ground.pools[shape.group].value_padded, _value_dim(shape))
    rows = next((rows for rows in (16, 8) if rows * width <= _NUMBERS), 4)
    grid, values = _attention_values(ground, q, shape, sinks, out, rows, (0, 0, 0, 0))
    return [Launch(f"attention:{ground.pools[shape.group].group.format}", "attend", (*grid, 1), values)]


def _attend_spread(
    ground: Ground, q: Operand, shape: AttentionShape, sinks: DeviceVector | None, out: Operand
) -> list[Launch]:
    """Return the launches for few rows: the keys of a tile are spread over blocks."""
    steps, heads = _most_steps(ground, shape), shape.num_heads
    slots = ground.scratch("steps of attention", q.capacity * heads * steps * _SLOT)
    totals = ground.scratch("totals of attention", q.capacity * heads * 4)
    tiles = q.capacity * shape.num_kv_heads
    blocks = min(steps, blocks_for(_BLOCKS, tiles))
    grid, values = _attention_values(ground, q, shape, sinks, out, 8, (slots, totals, steps, blocks))
    parts = blocks_for(_value_dim(shape), 32)
    grids = {"score_steps": (*grid, blocks), "weigh_steps": (q.capacity, heads, 1), "mix_steps": (*grid, parts)}
    module = f"attention_spread:{ground.pools[shape.group].group.format}"
    return [Launch(module, kernel, each, values) for kernel, each in grids.items()]


def _attention_values(
    ground: Ground,
    q: Operand,
    shape: AttentionShape,
    sinks: DeviceVector | None,
    out: Operand,
    rows: int,
    spread: tuple[int, int, int, int],
) -> tuple[tuple[int, int], tuple[int | float, ...]]:
    """Return the grid of tiles of up to a number of rows, and the fields of `AttentionArgs`."""
    share = shape.num_heads // shape.num_kv_heads
    heads = min(rows, share)
    sizes = shape.num_heads, shape.head_dim, _value_dim(shape), shape.window or 0, shape.chunk or 0
    values = (
        *(q.count, ground.tables.span_rows, q.address, address(sinks), out.address),
        *(*sizes, rows // heads, heads, *spread),
        *curve_values(scaling(shape.scale, shape.softcap, float(LOG2_E))),
        *_pages(ground, shape),
    )
    return (q.capacity, shape.num_kv_heads * blocks_for(share, heads)), values


def _most_steps(ground: Ground, shape: AttentionShape) -> int:
    """Return the most steps of 64 keys that a row sees, rounded up to a power of two.

    Page rows grow with the sequences, and scratch memory of every size is kept: so it is at most double the largest.
    """
    pages = ground.tables.pages[shape.group].stride * ground.pools[shape.group].group.page_size
    seen = min(each for each in (shape.window, shape.chunk, pages) if each is not None)
    # Rows of a block see up to its end, which may be as many positions after them as there are rows.
    steps = min(blocks_for(pages, STEP), blocks_for(seen + _FEW_ROWS, STEP) + 1)
    return 1 << (steps - 1).bit_length()


def _value_dim(shape: AttentionShape) -> int:
    return shape.head_dim if shape.value_dim is None else shape.value_dim


LOWERINGS: Final[dict[str, Callable[..., list[Launch]]]] = {
    each.__name__: each for each in (rope_store, latent_store, attention)
}
