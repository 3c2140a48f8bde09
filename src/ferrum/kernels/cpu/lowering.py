"""From an operation of the Kernels Protocol to one of the native library.

Eager kernels lower an operation and run it; a replayed program lowers all of them once. Both thus run the same code on
the same shapes, and give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import Unsupported
from ferrum.kernels.cpu.weights import PackedWeight
from ferrum.kernels.interface import F32, Array, AttentionShape
from ferrum.kernels.program_recorder import Extent
from ferrum.kernels.reference.reference_math import LOG2_E

EXTENTS: Final = {Extent.ROWS: -1, Extent.LOGITS: -2, Extent.HIDDEN: -3, Extent.SPANS: -4}
"""The library's codes for row counts that a step decides; a number from 0 up is a constant."""

Native = Any
"""An operation of the library."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies.

    Attributes:
        array: its memory, contiguous, for `most_rows` rows of `columns`.
        extent: its number of rows, or a code of `EXTENTS`.
        columns: its width.
        most_rows: rows that there is room for.
    """

    array: NDArray[Any]
    extent: int
    columns: int
    most_rows: int


@dataclass(frozen=True, slots=True)
class Lowering:
    """Makes native operations.

    Attributes:
        library: the compiled module.
        runtime: a `Runtime` of it, with its pool allocated.
    """

    library: Any
    runtime: Any

    def operation(self, name: str, arguments: tuple[Any, ...], results: Sequence[Place]) -> Native:
        """The native form of an operation.

        Args:
            name: a method of `Operations`.
            arguments: its arguments, arrays as places, weights packed.
            results: where its results go.
        """
        return _LOWERED[name](self, *arguments, *results)


def placed(array: Array) -> Place:
    """An array [rows, columns] as it is, its number of rows a constant."""
    contiguous = np.ascontiguousarray(array)
    return Place(contiguous, len(contiguous), contiguous.shape[1], len(contiguous))


def _embed(to: Lowering, table: PackedWeight, out: Place) -> Native:
    return to.library.embed(table.native, out.array, out.extent)


def _norm(to: Lowering, x: Place, weight: F32, eps: float, out: Place) -> Native:
    return to.library.norm(x.array, None, weight, eps, None, out.array, x.extent)


def _add_norm(to: Lowering, residual: Place, delta: Place, weight: F32, eps: float, total: Place, out: Place) -> Native:
    return to.library.norm(residual.array, delta.array, weight, eps, total.array, out.array, residual.extent)


def _linear(
    to: Lowering, x: Place, weights: tuple[PackedWeight, ...], biases: tuple[F32 | None, ...], *outs: Place
) -> Native:
    products = [(w.native, None, b, out.array) for w, b, out in zip(weights, biases, outs, strict=True)]
    return to.library.linear(to.runtime, x.array, products, x.extent, x.most_rows)


def _gated_linear(to: Lowering, x: Place, gate: PackedWeight, up: PackedWeight, out: Place) -> Native:
    if gate.format != up.format:
        raise Unsupported(
            f"a gate in {gate.format} beside an up projection in {up.format}",
            "native kernels multiply with both at once: choose one dtype for all matrices",
        )
    return to.library.linear(to.runtime, x.array, [(gate.native, up.native, None, out.array)], x.extent, x.most_rows)


def _head(to: Lowering, x: Place, weight: PackedWeight, out: Place) -> Native:
    return _linear(to, x, (weight,), (None,), out)


def _rope_store(
    to: Lowering,
    q: Place,
    k: Place,
    v: Place,
    shape: AttentionShape,
    rope: tuple[F32, F32] | None,
    q_norm: F32 | None,
    k_norm: F32 | None,
    eps: float,
    out: Place,
) -> Native:
    tables = rope if rope is not None else (None, None)
    arrays = (q.array, k.array, v.array, out.array)
    return to.library.rope_store(to.runtime, *arrays, _sizes(shape), *tables, q_norm, k_norm, eps, q.extent)


def _attention(to: Lowering, q: Place, shape: AttentionShape, out: Place) -> Native:
    scale = float(np.float32(shape.scale) * LOG2_E)
    return to.library.attention(to.runtime, q.array, out.array, _sizes(shape), scale, shape.window or 0)


def _gather(to: Lowering, x: Place, out: Place) -> Native:
    return to.library.gather(x.array, out.array, x.columns, EXTENTS[Extent.LOGITS])


def _best(to: Lowering, logits: Place, out: Place) -> Native:
    return to.library.best(to.runtime, logits.array, out.array, logits.columns, logits.extent, logits.most_rows)


def _gather_hidden(to: Lowering, x: Place, out: Place) -> Native:
    return to.library.gather(x.array, out.array, x.columns, EXTENTS[Extent.HIDDEN])


def _finite(to: Lowering, x: Place, out: Place) -> Native:
    return to.library.finite(x.array, out.array, x.columns)


def _sizes(shape: AttentionShape) -> tuple[int, int, int, int, int]:
    return shape.group, shape.layer, shape.num_heads, shape.num_kv_heads, shape.head_dim


_LOWERED: Final[Mapping[str, Callable[..., Native]]] = {
    "embed": _embed,
    "norm": _norm,
    "add_norm": _add_norm,
    "linear": _linear,
    "gated_linear": _gated_linear,
    "head": _head,
    "rope_store": _rope_store,
    "attention": _attention,
    "gather": _gather,
    "best": _best,
    "gather_hidden": _gather_hidden,
    "finite": _finite,
}
