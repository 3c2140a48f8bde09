"""Launches of products with weights of floats: native/cuda/float_products.cu."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import Final

from ferrum.core.errors import Unsupported
from ferrum.kernels.cuda.launches import Launch, Operand, blocks_for
from ferrum.kernels.cuda.products import Groups, Product, product_values
from ferrum.kernels.curves import Curve
from ferrum.kernels.group_weights import PANEL

FLOATS: Final = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "fp8": "fp8", "nf4": "nf4"}
"""Formats whose products add floats, and their structures in float_formats.hpp."""

_FEW_ROWS: Final = {"fp8": 16}
"""Rows of a block of product_few, if not 32: kFewRows in float_few.hpp."""

_MANY_ROWS: Final = 64
_MANY_OUTPUTS: Final = 128
"""The tile of product_many: float_many.hpp."""

_FILLED: Final = 132
"""Blocks of threads that fill a device. With fewer large tiles than this, small ones are faster."""

_MOST: Final = 4
"""Products of a launch: kMostProducts in float_terms.hpp."""


def float_products(
    ground: object,  # noqa: ARG001 - all products take it
    x: Operand,
    products: Sequence[Product],
    curve: Curve | None,
    groups: Groups | None = None,
) -> list[Launch]:
    """Multiply rows by matrices of floats, by those of a format at once. Either all have an `up`, or none.

    Raises:
        Unsupported: a matrix has an order of inputs, which no file of floats has.
    """
    for product in products:
        if product.weight.order:
            raise Unsupported("device=cuda", f"an order of inputs (act-order) of {product.weight.format} weights")
    launches = []
    for format, several in groupby(sorted(products, key=_format), key=_format):
        alike = list(several)
        launches += [
            _launch(format, x, alike[begin : begin + _MOST], curve, groups) for begin in range(0, len(alike), _MOST)
        ]
    return launches


def _format(product: Product) -> str:
    return FLOATS[product.weight.format]


def _launch(format: str, x: Operand, products: Sequence[Product], curve: Curve | None, groups: Groups | None) -> Launch:
    """Return the launch of up to four products by matrices of one format."""
    count, rows = (1, x.capacity) if groups is None else (groups.count, groups.rows)
    width = _MANY_OUTPUTS if products[0].up is None else _MANY_OUTPUTS // 2
    many = _grid(products, width, _MANY_ROWS, rows, count)
    few = _grid(products, PANEL, _FEW_ROWS.get(format, 32), rows, count)
    fills = rows > _MANY_ROWS and prod(many) >= _FILLED
    kernel, grid = ("product_many", many) if fills else ("product_few", few)
    values: list[int | float] = []
    for product in products:
        panel = product.weight.nbytes // blocks_for(product.weight.shape[0], PANEL)
        values += product_values(x, 4 * x.columns, product, panel, curve, groups)
    lacking = len(values) // len(products) * (_MOST - len(products))
    return Launch(f"float_products:{format}", kernel, grid, (*values, *(0,) * lacking, len(products)))


def _grid(products: Sequence[Product], outputs: int, height: int, rows: int, groups: int) -> tuple[int, int, int]:
    """Return the grid of tiles of some outputs and rows."""
    tiles = sum(blocks_for(product.weight.shape[0] // groups, outputs) for product in products)
    return tiles, blocks_for(rows, height), groups
