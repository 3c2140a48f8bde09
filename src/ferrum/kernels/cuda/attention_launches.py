"""Launches of attention: rotation, the write to the pool, and the softmax over the keys in it.

The kernels are in `native/cuda/store.cu` and `native/cuda/attention.cu`, in one module for each format of the pool.
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
from ferrum.kernels.reference.reference_math import LOG2_E

_WARPS: Final = THREADS // 32

_NUMBERS: Final = 2304
"""Numbers of the queries of a tile, and of its results; kNumbers in attention.cu."""


def _pages(ground: Ground, shape: AttentionShape) -> tuple[int, ...]:
    """Return the fields of `Pages` of native/cuda/pages.hpp."""
    pool, tables = ground.pools[shape.group], ground.tables
    group = pool.group
    sizes = group.num_layers, shape.layer, group.num_kv_heads, group.page_size, pool.block, pool.blocks_per_page
    words = pool.key_padded * PageLayout(group).item // 4
    layout = pool.key_side, words, pool.value_padded, pool.key_bytes, pool.value_bytes
    return pool.address, *sizes, *layout, *tables.pages[shape.group], tables.positions, tables.row_span


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
    tile = _tile(ground, shape)
    runs = blocks_for(shape.num_heads // shape.num_kv_heads, tile[1])
    grid = q.capacity, shape.num_kv_heads * runs, 1
    sizes = shape.num_heads, shape.head_dim, _value_dim(shape), shape.window or 0, shape.chunk or 0
    values = (
        *(q.count, ground.tables.span_rows, q.address, address(sinks), out.address, *sizes, *tile),
        *(0, 0, 0),
        *curve_values(scaling(shape.scale, shape.softcap, float(LOG2_E))),
        *_pages(ground, shape),
    )
    return [Launch(f"attention:{ground.pools[shape.group].group.format}", "attend", grid, values)]


def _value_dim(shape: AttentionShape) -> int:
    return shape.head_dim if shape.value_dim is None else shape.value_dim


def _tile(ground: Ground, shape: AttentionShape) -> tuple[int, int]:
    """Return the most positions and query heads of a tile: 16, 8 or 4 rows, whose numbers fit in shared memory."""
    width = max(shape.head_dim + 3, ground.pools[shape.group].value_padded, _value_dim(shape))
    rows = next((rows for rows in (16, 8) if rows * width <= _NUMBERS), 4)
    heads = min(rows, shape.num_heads // shape.num_kv_heads)
    return rows // heads, heads


LOWERINGS: Final[dict[str, Callable[..., list[Launch]]]] = {
    each.__name__: each for each in (rope_store, latent_store, attention)
}
