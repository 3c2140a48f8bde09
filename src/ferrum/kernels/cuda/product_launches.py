"""Launches of products: of weights in blocks here, by native/cuda/products.cu, and of floats by `float_launches`."""

# ruff: noqa: ARG001, D103 - `Operations` states what each operation does, and with what arguments

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from ferrum.kernels.adapters import AdapterSite
from ferrum.kernels.codebooks import CODEBOOKS, packed_points
from ferrum.kernels.cuda.device_weights import DeviceVector, DeviceWeight
from ferrum.kernels.cuda.float_launches import FLOATS, float_products
from ferrum.kernels.cuda.ground import Ground
from ferrum.kernels.cuda.launches import Launch, Operand, blocks_for
from ferrum.kernels.cuda.products import Groups, Product, product_values
from ferrum.kernels.cuda.row_launches import gate
from ferrum.kernels.curves import Curve, curve, scaling
from ferrum.kernels.group_weights import PANEL, rows_of_group
from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.op_spec import Op, Program, Value

_MOST: Final = 4
"""Products of a launch: kMostProducts in block_products.hpp."""

_CHUNK: Final = 256
_CHUNK_UNITS: Final = 8
_UNIT_BYTES: Final = 48
"""Inputs and units of a chunk, and bytes of a unit of rounded inputs: rounded_rows.hpp."""

_UNITS_ROUNDED: Final = 8
"""Units of a block of round_rows."""

HALVES: Final = ("q2_k", "q3_k", "q6_k", "iq2_xs", "iq2_s", "iq1_m", "nvfp4", "nvfp4_scaled")
"""Formats with groups of 16 inputs; the others have groups of 32."""

_FEW_TILES: Final = 4
"""Blocks of product_few that may share a panel: more would read it from the L2 cache more often than is quick."""

_TILE_ROWS: Final = 64
_TILE_OUTPUTS: Final = 64
"""The tile of product_many: many_rows.hpp."""


def products(
    ground: Ground, x: Operand, every: Sequence[Product], given: Curve | None, groups: Groups | None = None
) -> list[Launch]:
    """Multiply rows by matrices of any formats. A matrix and its `up` have one format and one order of inputs."""
    floats = [each for each in every if each.weight.format in FLOATS]
    blocks = [each for each in every if each.weight.format not in FLOATS]
    launches = block_products(ground, x, blocks, given, groups) if blocks else []
    return launches + (float_products(ground, x, floats, given, groups) if floats else [])


def block_products(
    ground: Ground, x: Operand, every: Sequence[Product], given: Curve | None, groups: Groups | None = None
) -> list[Launch]:
    """Multiply rows by matrices in blocks: round the rows once, and multiply by all matrices of a format at once."""
    heads = groups.count if groups is not None and not groups.bounds else 1
    launches: list[Launch] = []
    rounded: dict[int, Operand] = {}  # by order
    depth = every[0].weight.shape[1]
    row_bytes = heads * rounded_bytes(depth)
    for order in sorted({each.weight.order for each in every}):
        if order == 0 and heads == 1 and x.address in ground.rounded:
            rounded[order] = replace(x, address=ground.rounded[x.address])
            continue
        rows = ground.scratch(f"rounded rows {len(rounded)}", x.capacity * row_bytes)
        rounded[order] = replace(x, address=rows)
        grid = blocks_for(x.capacity * row_bytes // _UNIT_BYTES, _UNITS_ROUNDED), 1, 1
        launches.append(Launch("rounding", "round_rows", grid, (x.count, x.address, order, rows, depth, heads)))
    for format, several in groupby(sorted(every, key=_format), key=_format):
        alike = list(several)
        for begin in range(0, len(alike), _MOST):
            part = [(rounded[each.weight.order], each) for each in alike[begin : begin + _MOST]]
            launches.append(_launch(ground, format, part, row_bytes, given, groups))
    return launches


def rounded_bytes(depth: int) -> int:
    """Return the bytes of a rounded row: rounded_rows.hpp."""
    return blocks_for(depth, _CHUNK) * _CHUNK_UNITS * _UNIT_BYTES


def rounded_values(program: Program, capacity: Callable[[Value], int]) -> set[Value]:
    """Return the values that the operation before a product rounds for it.

    Args:
        capacity: the most rows of a value.
    """
    read, written = set(), set()
    for op in program.ops:
        if op.name in ("linear", "gated_linear", "head", "experts") and any(map(_rounds, op.weights())):
            read.add(op.operands()[0])
        if op.name in ("norm", "add_norm") or (op.name == "gated_linear" and _rounds_results(op, capacity)):
            written.add(op.results[-1])
    return read & written


def _rounds(weight: DeviceWeight) -> bool:
    return weight.format not in FLOATS and weight.order == 0


def _rounds_results(op: Op, capacity: Callable[[Value], int]) -> bool:
    """Whether a gated product is one of few rows."""
    gate, up = op.weights()
    together = (gate.format, gate.order) == (up.format, up.order) and gate.format not in FLOATS
    return together and not _many(gate.format, capacity(op.results[0]))


def _few_rows(format: str) -> int:
    """Return the rows of a block of product_few: few_rows.hpp."""
    return 2 if format in HALVES else 4


def _many(format: str, rows: int) -> bool:
    return rows > _FEW_TILES * _few_rows(format)


def _format(product: Product) -> str:
    return product.weight.format


def _launch(
    ground: Ground,
    format: str,
    several: Sequence[tuple[Operand, Product]],
    row_bytes: int,
    given: Curve | None,
    groups: Groups | None,
) -> Launch:
    """Return the launch of up to four products of rounded rows by matrices of one format."""
    count, rows = (1, several[0][0].capacity) if groups is None else (groups.count, groups.rows)
    many = _many(format, rows)
    tile, width = (_TILE_ROWS, _TILE_OUTPUTS) if many else (_few_rows(format), PANEL)
    rounded = 0 if many or groups is not None else ground.rounded.get(several[0][1].out.address, 0)
    values: list[int | float] = []
    for x, product in several:
        panel_bytes = product.weight.nbytes // blocks_for(product.weight.shape[0], PANEL)
        values += product_values(x, row_bytes, product, panel_bytes, given, groups)
    lacking = (len(values) // len(several)) * (_MOST - len(several))
    tiles = sum(blocks_for(product.weight.shape[0] // count, width) for _, product in several)
    kernel = "product_many" if many else "product_few"
    grid = blocks_for(rows, tile), tiles, count
    return Launch(
        f"products:{format}", kernel, grid, (*values, *(0,) * lacking, len(several), codebook(ground, format), rounded)
    )


def codebook(ground: Ground, format: str) -> int:
    """Return the address of a format's codebook, or 0."""
    book = "iq1_s" if format == "iq1_m" else format
    return ground.constant(f"codebook {book}", lambda: packed_points(book)) if book in CODEBOOKS else 0


# ---- Operations ----


def linear(
    ground: Ground,
    x: Operand,
    weights: tuple[DeviceWeight, ...],
    biases: tuple[DeviceVector | None, ...],
    activation: Activation | None,
    site: AdapterSite | None,
    *outs: Operand,
) -> list[Launch]:
    every = [Product(w, None, b, None, out) for w, b, out in zip(weights, biases, outs, strict=True)]
    return products(ground, x, every, None if activation is None else curve(activation))


def gated_linear(
    ground: Ground,
    x: Operand,
    gate_weight: DeviceWeight,
    up: DeviceWeight,
    activation: Activation,
    gate_bias: DeviceVector | None,
    up_bias: DeviceVector | None,
    out: Operand,
) -> list[Launch]:
    if (gate_weight.format, gate_weight.order) == (up.format, up.order):
        return products(ground, x, [Product(gate_weight, up, gate_bias, up_bias, out)], curve(activation))
    size = 4 * out.capacity * out.columns
    gates, ups = (replace(out, address=ground.scratch(name, size)) for name in ("products of gate", "products of up"))
    every = [Product(gate_weight, None, gate_bias, None, gates), Product(up, None, up_bias, None, ups)]
    return products(ground, x, every, None) + gate(ground, gates, ups, activation, out)


def head(
    ground: Ground, x: Operand, weight: DeviceWeight, scale: float, softcap: float | None, out: Operand
) -> list[Launch]:
    return products(ground, x, [Product(weight, None, None, None, out)], scaling(scale, softcap))


def head_linear(ground: Ground, x: Operand, weight: DeviceWeight, heads: int, out: Operand) -> list[Launch]:
    rows_of_group(weight, heads, "heads")
    groups = Groups(heads, 0, 0, x.capacity)
    return products(ground, x, [Product(weight, None, None, None, out)], None, groups)


LOWERINGS: Final[dict[str, Callable[..., list[Launch]]]] = {
    each.__name__: each for each in (linear, gated_linear, head, head_linear)
}
