"""Lowering of an operation of the `Operations` protocol to an operation of the native library.

Eager kernels lower one operation and run it. A replayed program lowers all operations once. Both run the same native
code on the same shapes, so their results are bit for bit equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.cpu.weights import PackedWeight
from ferrum.kernels.interface import F32, Array, AttentionShape
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.reference.reference_math import LOG2_E

EXTENTS: Final = {Extent.ROWS: -1, Extent.LOGITS: -2, Extent.HIDDEN: -3, Extent.SPANS: -4}
"""Codes of the library for row counts that vary by step. A number from 0 up is a constant row count."""

Native = Any
"""An operation of the library."""


@dataclass(frozen=True, slots=True)
class Operand:
    """The memory of an operation's argument or result.

    Attributes:
        array: contiguous memory for `max_rows` rows of `columns`.
        extent: number of rows, or a code of `EXTENTS`.
        columns: width of a row.
        max_rows: capacity in rows.
    """

    array: NDArray[Any]
    extent: int
    columns: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class Lowering:
    """Factory of native operations: one method for each operation of `Operations`, by its name.

    A method takes arrays as operands, packed weights and constants, and then the results.

    Attributes:
        library: the compiled module.
        runtime: a `Runtime` of the library with its pool allocated.
    """

    library: Any
    runtime: Any

    def operation(self, name: str, arguments: tuple[Any, ...], results: Sequence[Operand]) -> Native:
        """Make the native form of an operation.

        Args:
            name: a method of `Operations`.
            arguments: arrays as operands, weights packed, constants unchanged.
            results: memory of the results.
        """
        method: Callable[..., Native] = getattr(self, name)
        return method(*arguments, *results)

    def embed(self, table: PackedWeight, out: Operand) -> Native:
        return self.library.embed(table.native, out.array, out.extent)

    def norm(self, x: Operand, weight: F32, eps: float, out: Operand) -> Native:
        return self.library.norm(x.array, None, weight, eps, None, out.array, x.extent)

    def add_norm(
        self, residual: Operand, delta: Operand, weight: F32, eps: float, total: Operand, out: Operand
    ) -> Native:
        return self.library.norm(residual.array, delta.array, weight, eps, total.array, out.array, residual.extent)

    def linear(
        self, x: Operand, weights: tuple[PackedWeight, ...], biases: tuple[F32 | None, ...], *outs: Operand
    ) -> Native:
        products = [(w.native, None, b, out.array) for w, b, out in zip(weights, biases, outs, strict=True)]
        return self.library.linear(self.runtime, x.array, products, x.extent, x.max_rows)

    def gated_linear(self, x: Operand, gate: PackedWeight, up: PackedWeight, out: Operand) -> Native:
        return self.library.linear(
            self.runtime, x.array, [(gate.native, up.native, None, out.array)], x.extent, x.max_rows
        )

    def head(self, x: Operand, weight: PackedWeight, out: Operand) -> Native:
        return self.linear(x, (weight,), (None,), out)

    def rope_store(
        self,
        q: Operand,
        k: Operand,
        v: Operand,
        shape: AttentionShape,
        rope: tuple[F32, F32] | None,
        q_norm: F32 | None,
        k_norm: F32 | None,
        eps: float,
        out: Operand,
    ) -> Native:
        tables = rope if rope is not None else (None, None)
        arrays = (q.array, k.array, v.array, out.array)
        return self.library.rope_store(self.runtime, *arrays, _sizes(shape), *tables, q_norm, k_norm, eps, q.extent)

    def attention(self, q: Operand, shape: AttentionShape, out: Operand) -> Native:
        scale = float(np.float32(shape.scale) * LOG2_E)
        return self.library.attention(self.runtime, q.array, out.array, _sizes(shape), scale, shape.window or 0)

    def gather(self, x: Operand, out: Operand) -> Native:
        return self.library.gather(x.array, out.array, x.columns, EXTENTS[Extent.LOGITS])

    def best(self, logits: Operand, out: Operand) -> Native:
        return self.library.best(self.runtime, logits.array, out.array, logits.columns, logits.extent, logits.max_rows)

    def gather_hidden(self, x: Operand, out: Operand) -> Native:
        return self.library.gather(x.array, out.array, x.columns, EXTENTS[Extent.HIDDEN])

    def finite(self, x: Operand, out: Operand) -> Native:
        return self.library.finite(x.array, out.array, x.columns)


def operand(array: Array) -> Operand:
    """Wrap an array [rows, columns], copied if it is not contiguous."""
    contiguous = np.ascontiguousarray(array)
    return Operand(contiguous, len(contiguous), contiguous.shape[1], len(contiguous))


def _sizes(shape: AttentionShape) -> tuple[int, int, int, int, int]:
    return shape.group, shape.layer, shape.num_heads, shape.num_kv_heads, shape.head_dim
