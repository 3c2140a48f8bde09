"""Products of rows by matrices on the device: what kernels of all formats take, `ProductArgs` of products.hpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ferrum.kernels.cuda.device_weights import DeviceVector, DeviceWeight
from ferrum.kernels.cuda.launches import Operand
from ferrum.kernels.curves import Curve, curve_values
from ferrum.kernels.group_weights import PANEL


class Product(NamedTuple):
    """A product of rows: activation(x w^T + bias), with `up` times x up^T + up_bias.

    Attributes:
        weight, up: matrices of one format; up is None without a gate.
        bias, up_bias: of their outputs, or None.
        out: rows of results.
    """

    weight: DeviceWeight
    up: DeviceWeight | None
    bias: DeviceVector | None
    up_bias: DeviceVector | None
    out: Operand


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a product, each with its part of the matrix: heads of a row, or experts.

    Attributes:
        count: number of groups.
        bounds: address of int32 [count + 1]: group g has the rows bounds[g] to bounds[g + 1] of the results. 0: each
            row has all groups as heads, one after another.
        row_of: address of the rows of inputs that the rows of results read, int32 [bounds[count]]; 0: their own.
        rows: the most rows of a group.
    """

    count: int
    bounds: int
    row_of: int
    rows: int


def product_values(
    x: Operand, row: int, product: Product, panel_bytes: int, curve: Curve | None, groups: Groups | None
) -> tuple[int | float, ...]:
    """Return the fields of `ProductArgs`.

    Args:
        x: inputs as the kernel reads them.
        row: bytes of a row of them, of all heads.
        panel_bytes: of a panel of the matrix.
    """
    count = 1 if groups is None else groups.count
    bounds, row_of = (0, 0) if groups is None else (groups.bounds, groups.row_of)
    outputs, heads = product.weight.shape[0] // count, count > 1 and not bounds
    vectors = (0 if each is None else each.address for each in (product.bias, product.up_bias))
    return (
        *(x.count, bounds, row_of, x.address),
        *(product.weight.panels, 0 if product.up is None else product.up.panels, *vectors, product.out.address),
        *(product.weight.shape[1], outputs, row, row // count if heads else 0),
        *(outputs // PANEL * panel_bytes, product.out.columns, outputs if heads else 0, outputs if count > 1 else 0),
        *curve_values(curve),
    )
