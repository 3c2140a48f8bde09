"""Launches of products with weights of floats: native/cuda/float_products.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ferrum.core.errors import Unsupported
from ferrum.kernels.cuda.launches import Launch, Operand, blocks_for
from ferrum.kernels.cuda.products import Groups, Product, product_values
from ferrum.kernels.curves import Curve
from ferrum.kernels.group_weights import PANEL

FLOATS: Final = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "fp8": "fp8", "nf4": "nf4"}
"""Formats whose products add floats, and their structures in float_formats.hpp."""

_FEW_ROWS: Final = 32
_MANY_ROWS: Final = 64
_MANY_OUTPUTS: Final = 128
"""Sizes of the tiles of both kernels."""

_FILLED: Final = 132
"""Blocks of threads that fill a device. With fewer large tiles than this, small ones are faster."""


def float_products(
    ground: object,  # noqa: ARG001 - all products take it
    x: Operand,
    products: Sequence[Product],
    curve: Curve | None,
    groups: Groups | None = None,
) -> list[Launch]:
    """Multiply rows by matrices of floats, all of one format.

    Raises:
        Unsupported: a matrix has an order of inputs, which no file of floats has.
    """
    launches = []
    for product in products:
        if product.weight.order:
            raise Unsupported("device=cuda", f"an order of inputs (act-order) of {product.weight.format} weights")
        count, rows = (1, x.capacity) if groups is None else (groups.count, groups.rows)
        outputs = product.weight.shape[0] // count
        tiles = blocks_for(outputs, _MANY_OUTPUTS if product.up is None else _MANY_OUTPUTS // 2)
        many = (tiles, blocks_for(rows, _MANY_ROWS), count)
        fills = rows > _MANY_ROWS and many[0] * many[1] * count >= _FILLED
        few = (blocks_for(outputs, PANEL), blocks_for(rows, _FEW_ROWS), count)
        kernel, grid = ("product_many", many) if fills else ("product_few", few)
        panel = product.weight.nbytes // blocks_for(product.weight.shape[0], PANEL)
        values = product_values(x, 4 * x.columns, product, panel, curve, groups)
        launches.append(Launch(f"float_products:{FLOATS[product.weight.format]}", kernel, grid, values))
    return launches
