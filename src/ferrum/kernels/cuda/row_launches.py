"""Launches of operations on rows: norms, sums, activations, selections, checks and the best tokens.

The kernels are in `native/cuda/rows.cu`.
"""

# ruff: noqa: ARG001, D103 - `Operations` states what each operation does, and with what arguments

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ferrum.kernels.adapters import AdapterSite
from ferrum.kernels.cuda.device_weights import DeviceVector
from ferrum.kernels.cuda.driver import THREADS
from ferrum.kernels.cuda.ground import Ground
from ferrum.kernels.cuda.launches import Launch, Operand, blocks_for
from ferrum.kernels.curves import Curve, curve, curve_values, scaling
from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.op_spec import Extent

_PART: Final = 8192
"""Logits of a block that seeks the best token; kPart in rows.cu."""

_WARPS: Final = THREADS // 32


def _launch(kernel: str, grid: tuple[int, int], *values: int | float) -> Launch:
    return Launch("rows", kernel, (*grid, 1), values)


def _by_number(kernel: str, out: Operand, *values: int | float) -> Launch:
    """Return a launch with a thread for each number of a result; the count of rows comes before the values."""
    return _launch(kernel, (blocks_for(out.columns, THREADS), out.capacity), out.count, *values)


def address(vector: DeviceVector | Operand | None) -> int:
    """Return the address of a vector or of rows, 0 without one."""
    return 0 if vector is None else vector.address


def norm(
    ground: Ground,
    x: Operand,
    weight: DeviceVector,
    eps: float,
    bias: DeviceVector | None,
    centred: bool,
    site: AdapterSite | None,
    out: Operand,
) -> list[Launch]:
    vectors = weight.address, address(bias)
    rest = out.columns, 1.0, float(eps), int(centred)
    results = 0, out.address, ground.rounded.get(out.address, 0)
    return [_launch("norm_rows", (x.capacity, 1), x.count, x.address, 0, *vectors, *results, *rest)]


def add_norm(
    ground: Ground,
    residual: Operand,
    delta: Operand,
    weight: DeviceVector,
    eps: float,
    bias: DeviceVector | None,
    centred: bool,
    factor: float,
    site: AdapterSite | None,
    total: Operand,
    out: Operand,
) -> list[Launch]:
    inputs = residual.address, delta.address, weight.address, address(bias)
    rest = out.columns, float(factor), float(eps), int(centred)
    grid = residual.capacity, 1
    results = total.address, out.address, ground.rounded.get(out.address, 0)
    return [_launch("norm_rows", grid, residual.count, *inputs, *results, *rest)]


def add(
    ground: Ground,
    x: Operand,
    y: Operand,
    factor: float,
    scale: float,
    gate: Operand | None,
    out: Operand,
) -> list[Launch]:
    inputs = x.address, y.address, address(gate)
    return [_by_number("add_rows", out, *inputs, out.address, out.columns, float(factor), float(scale))]


def multiply(ground: Ground, x: Operand, y: Operand, out: Operand) -> list[Launch]:
    return [_by_number("multiply_rows", out, x.address, y.address, out.address, out.columns)]


def _activated(x: Operand, others: Operand | None, given: Curve | None, out: Operand) -> list[Launch]:
    values = x.address, address(others), out.address, out.columns, *curve_values(given)
    return [_by_number("activate_rows", out, *values)]


def activate(ground: Ground, x: Operand, activation: Activation, out: Operand) -> list[Launch]:
    return _activated(x, None, curve(activation), out)


def gate(ground: Ground, x: Operand, y: Operand, activation: Activation, out: Operand) -> list[Launch]:
    return _activated(x, y, curve(activation), out)


def scale_logits(
    ground: Ground,
    x: Operand,
    scale: float,
    softcap: float | None,
    out: Operand,
) -> list[Launch]:
    return _activated(x, None, scaling(scale, softcap), out)


def gather(ground: Ground, x: Operand, out: Operand) -> list[Launch]:
    return [_gathered(x, ground.tables.logit_rows, out)]


def gather_hidden(ground: Ground, x: Operand, out: Operand) -> list[Launch]:
    return [_gathered(x, ground.tables.hidden_rows, out)]


def _gathered(x: Operand, row_of: int, out: Operand) -> Launch:
    return _by_number("gather_rows", out, row_of, x.address, out.address, out.columns)


def best(ground: Ground, logits: Operand, out: Operand) -> list[Launch]:
    parts = blocks_for(logits.columns, _PART)
    size = 4 * logits.capacity * parts
    scratch = ground.scratch("greatest logits", size), ground.scratch("ids of the greatest logits", size)
    values = logits.count, logits.address, *scratch, out.address, logits.columns, parts
    return [
        _launch("best_parts", (parts, logits.capacity), *values),
        _launch("best_rows", (blocks_for(logits.capacity, _WARPS), 1), *values),
    ]


def finite(ground: Ground, x: Operand, out: Operand) -> list[Launch]:
    flags, tables = ground.scratch("finite rows", 4 * x.capacity), ground.tables
    spans = tables.count(Extent.SPANS), tables.span_rows
    return [
        _launch("finite_rows", (x.capacity, 1), x.count, x.address, flags, x.columns),
        _launch("finite_spans", (out.capacity, 1), *spans, flags, out.address),
    ]


LOWERINGS: Final[dict[str, Callable[..., list[Launch]]]] = {
    each.__name__: each
    for each in (
        norm, add_norm, add, multiply, activate, gate, scale_logits, gather, gather_hidden, best, finite
    )
}  # fmt: skip
