"""Recording of a network as a flat program that each step replays.

The network runs with a `Recorder` in place of kernels: each operation appends an `Op`, each result is a symbolic
`Value`. `record` then plans the memory of all values by liveness. A `Program` has every size except the number of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from ferrum.kernels.interface import Array, AttentionShape, Network, NetworkOutput, Operations, Weight


class Extent(Enum):
    """The kind of row count of a value. The count itself varies by step."""

    ROWS = "rows"
    LOGITS = "logit rows"
    HIDDEN = "hidden rows"
    SPANS = "spans"

    __hash__ = object.__hash__  # the hash of Enum runs Python code, a dozen times per step


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A result of an operation: [extent, columns] of bool for `Extent.SPANS`, else of f32 or int32."""

    extent: Extent
    columns: int
    dtype: type[np.generic] = np.float32


@dataclass(frozen=True, slots=True)
class Op:
    """An operation: a method of `Operations`, its arguments (values and constants), its results."""

    name: str
    arguments: tuple[Any, ...]
    results: tuple[Value, ...]

    def operands(self) -> tuple[Value, ...]:
        """Return the arguments that are values."""
        return tuple(argument for argument in self.arguments if isinstance(argument, Value))


@dataclass(frozen=True, slots=True)
class Program:
    """A recorded network.

    Attributes:
        ops: in order.
        buffers: per buffer its extent, and the columns of its widest value.
        placement: buffer number of each value.
        output: the results of the network.
    """

    ops: tuple[Op, ...]
    buffers: tuple[tuple[Extent, int], ...]
    placement: dict[Value, int]
    output: NetworkOutput


Rows = Extent | int
"""The row count of a result: an extent of the step, or a number."""


class ShapedOperations(Operations, ABC):
    """`Operations` with the shapes of all results, for the recorder and for eager native kernels."""

    @abstractmethod
    def _emit(
        self, name: str, arguments: tuple[Any, ...], *shapes: tuple[Rows, int], dtype: type[np.generic] = np.float32
    ) -> tuple[Any, ...]:
        """Record or run an operation whose results have these shapes."""

    @abstractmethod
    def _shape(self, x: Any) -> tuple[Rows, int]:
        """Return rows and columns of an argument."""

    def _like(self, name: str, x: Any, *constants: Any, columns: int | None = None) -> Any:
        rows, width = self._shape(x)
        return self._emit(name, (x, *constants), (rows, width if columns is None else columns))[0]

    def embed(self, table: Weight) -> Array:
        return self._emit("embed", (table,), (Extent.ROWS, table.shape[1]))[0]

    def norm(self, x: Array, weight: Array, eps: float) -> Array:
        return self._like("norm", x, weight, eps)

    def add_norm(self, residual: Array, delta: Array, weight: Array, eps: float) -> tuple[Array, Array]:
        shape = self._shape(residual)
        total, normed = self._emit("add_norm", (residual, delta, weight, eps), shape, shape)
        return total, normed

    def linear(self, x: Array, weights: tuple[Weight, ...], biases: tuple[Array | None, ...]) -> tuple[Array, ...]:
        return self._emit("linear", (x, weights, biases), *((self._shape(x)[0], weight.shape[0]) for weight in weights))

    def gated_linear(self, x: Array, gate: Weight, up: Weight) -> Array:
        return self._like("gated_linear", x, gate, up, columns=gate.shape[0])

    def rope_store(
        self,
        q: Array,
        k: Array,
        v: Array,
        shape: AttentionShape,
        rope: Array | None,
        q_norm: Array | None,
        k_norm: Array | None,
        eps: float,
    ) -> Array:
        return self._like("rope_store", q, k, v, shape, rope, q_norm, k_norm, eps)

    def attention(self, q: Array, shape: AttentionShape) -> Array:
        return self._like("attention", q, shape, columns=shape.output_columns)

    def gather(self, x: Array) -> Array:
        return self._emit("gather", (x,), (Extent.LOGITS, self._shape(x)[1]))[0]

    def head(self, x: Array, weight: Weight) -> Array:
        return self._like("head", x, weight, columns=weight.shape[0])

    def best(self, logits: Array) -> Array:
        return self._emit("best", (logits,), (self._shape(logits)[0], 1), dtype=np.int32)[0]

    def gather_hidden(self, x: Array) -> Array:
        return self._emit("gather_hidden", (x,), (Extent.HIDDEN, self._shape(x)[1]))[0]

    def finite(self, x: Array) -> Array:
        return self._emit("finite", (x,), (Extent.SPANS, 1), dtype=np.bool_)[0]


class Recorder(ShapedOperations):
    """`Operations` that record their calls. All shapes follow from the weights."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def _emit(
        self, name: str, arguments: tuple[Any, ...], *shapes: tuple[Rows, int], dtype: type[np.generic] = np.float32
    ) -> tuple[Value, ...]:
        results = tuple(Value(Extent(rows), columns, dtype) for rows, columns in shapes)
        self.ops.append(Op(name, arguments, results))
        return results

    def _shape(self, x: Value) -> tuple[Rows, int]:
        return x.extent, x.columns


def record(network: Network) -> Program:
    """Record a network and plan its memory."""
    recorder = Recorder()
    output = network(recorder)
    buffers, placement = _plan(recorder.ops, output)
    return Program(tuple(recorder.ops), buffers, placement, output)


def _plan(ops: list[Op], output: NetworkOutput) -> tuple[tuple[tuple[Extent, int], ...], dict[Value, int]]:
    """Assign each value a buffer that no live value uses. Results never share a buffer with operands.

    Greedy in program order: take the free buffer of the same extent whose width fits best.
    """
    last_use = {value: index for index, op in enumerate(ops) for value in (*op.results, *op.operands())}
    last_use.update(dict.fromkeys(output, len(ops)))
    widths: list[int] = []
    extents: list[Extent] = []
    free: list[int] = []
    placement: dict[Value, int] = {}
    for index, op in enumerate(ops):
        for value in op.results:
            fitting = [buffer for buffer in free if extents[buffer] is value.extent]
            if fitting:
                chosen = min(fitting, key=_misfit(widths, value.columns))
                free.remove(chosen)
                widths[chosen] = max(widths[chosen], value.columns)
            else:
                chosen = len(widths)
                widths.append(value.columns)
                extents.append(value.extent)
            placement[value] = chosen
        dying = {value for value in (*op.results, *op.operands()) if last_use[value] == index}
        free.extend(sorted(placement[value] for value in dying))
    return tuple(zip(extents, widths, strict=True)), placement


def _misfit(widths: list[int], columns: int) -> Callable[[int], tuple[int, int]]:
    """Rank buffers by how many columns they must grow, then by how many stay unused."""
    return lambda buffer: (max(0, columns - widths[buffer]), max(0, widths[buffer] - columns))
