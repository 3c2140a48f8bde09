"""A lower bound on a step's time on this machine (roofline).

    for each matrix max(its bytes / read bandwidth, operations / arithmetic peak), summed,
    and for each sequence and layer max(bytes of keys and values / bandwidth, attention operations / peak)

Every byte of a weight is read once per pass; norms, activations, writes and sampling count as free. The work is taken
from the recorded program and the weights' real bytes, so it is the same for every family and format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ferrum.bench.workloads import Pass
from ferrum.core.json_record import JsonRecord
from ferrum.kernels.interface import AttentionShape, Weight
from ferrum.kernels.op_spec import Extent, Kind, Op, Pool, Program


@dataclass(frozen=True, slots=True)
class Rates(JsonRecord):
    """A machine's rates: bytes read per second, and operations per second (a multiply-add is two) by format.

    int4 differs from int8 where no instruction adds byte products to 32-bit sums (AVX2).
    """

    read: float
    float32: float
    bfloat16: float
    int8: float
    int4: float = 0.0


_BYTE_FORMATS: Final = frozenset({"q8_0", "iq4_nl", "iq4_xs", "mxfp4"})
"""Formats of signed bytes, as stored or after a table; other blocks have small integers without a sign."""


@dataclass(frozen=True, slots=True)
class Part:
    """Work whose reading and arithmetic overlap: `nbytes` read, `operations` at the peak of that name."""

    nbytes: float
    operations: float
    peak: str

    def seconds(self, rates: Rates) -> float:
        """Return the longer of the two."""
        peak: float = getattr(rates, self.peak)
        return max(self.nbytes / rates.read, self.operations / peak)


Work: TypeAlias = Mapping[Part, int]
"""Parts, and how often each occurs."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The work of a recorded program's operations.

    Attributes:
        program: the program.
        kv_format: format of keys and values.
        kv_bytes: per layer group the bytes of one token's keys and values in ONE layer.
    """

    program: Program
    kv_format: str
    kv_bytes: tuple[float, ...]

    def of(self, op: Op, spans: Pass) -> list[Part]:
        """Return the parts of one operation in a pass; empty for operations that count as free."""
        parts = [
            self._attention(shape, span.start, span.count)
            for shape in attention_shapes(op, Pool.READ)
            for span in spans
        ]
        on_logits = any(value.extent is Extent.LOGITS for value in op.operands())
        rows = sum(span.logits if on_logits else span.count for span in spans)
        return parts + [_product(weight, rows) for weight in matrices(op)] if rows else parts

    def _attention(self, shape: AttentionShape, start: int, count: int) -> Part:
        window = start + count if shape.window is None else shape.window
        stored = min(start + count, window + count - 1)
        pairs = sum(min(position + 1, window) for position in range(start, start + count))
        # q . k and p . v, a multiply-add each
        operations = 2.0 * (shape.num_heads * shape.head_dim + shape.output_columns) * pairs
        return Part(stored * self.kv_bytes[shape.group], operations, self.kv_format)

    def work(self, passes: Iterable[Pass]) -> Work:
        """Return all parts of consecutive passes. Layers are alike, so few parts differ."""
        work: Counter[Part] = Counter()
        for spans, times in Counter(passes).items():
            for op in self.program.ops:
                for part in self.of(op, spans):
                    work[part] += times
        return work


def seconds_of(work: Work, rates: Rates) -> float:
    """Return the lower bound of some work in seconds."""
    return sum(times * part.seconds(rates) for part, times in work.items())


def layer_kv_bytes(program: Program, group_bytes: Sequence[float]) -> tuple[float, ...]:
    """Return the bytes of a token's keys and values in one layer, by layer group, from each group's total."""
    shapes = [shape for op in program.ops for shape in attention_shapes(op, Pool.READ)]
    layers = Counter(group for group, _ in {(shape.group, shape.layer) for shape in shapes})  # some read the same one
    return tuple(total / layers[group] for group, total in enumerate(group_bytes))


def attention_shapes(op: Op, pool: Pool) -> tuple[AttentionShape, ...]:
    """Return the layers of the pool that an operation uses this way: at most one."""
    return tuple(a for a in op.arguments if isinstance(a, AttentionShape)) if op.spec.pool is pool else ()


def weights(program: Program) -> tuple[Weight, ...]:
    """Return every matrix of a program once, including the embedding."""
    found = [weight for op in program.ops for weight in op.spec.pick(op.arguments, Kind.TABLE, Kind.MATRIX)]
    return tuple({id(weight): weight for weight in found}.values())


def matrices(op: Op) -> tuple[Weight, ...]:
    """Return the matrices an operation multiplies by."""
    return op.spec.pick(op.arguments, Kind.MATRIX)


def _product(weight: Weight, rows: int) -> Part:
    outputs, inputs = weight.shape
    return Part(weight.nbytes, 2.0 * rows * outputs * inputs, _peak_of(weight.format))


def _peak_of(format: str) -> str:
    """Return the peak that products of a format cannot exceed, a field of `Rates`."""
    if format in ("float32", "float16"):
        return "float32"
    if format == "bfloat16":
        return format
    return "int8" if format in _BYTE_FORMATS else "int4"
