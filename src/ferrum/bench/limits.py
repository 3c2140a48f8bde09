"""The limit of a step on this machine: what it would take if the machine did nothing but what it must.

    for each matrix max(its bytes / read bandwidth, operations / arithmetic peak), summed,
    and for each sequence and layer max(bytes of keys and values / bandwidth, attention operations / peak)

Every byte of a weight is read once a pass; norms, activations, writes and sampling count for nothing. The work is read
off the recorded program and the weights' true bytes, so that it is the same for every family and format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ferrum.bench.workloads import Pass
from ferrum.core.json_record import JsonRecord
from ferrum.kernels.interface import AttentionShape, Weight
from ferrum.kernels.program_recorder import Extent, Op, Program


@dataclass(frozen=True, slots=True)
class Rates(JsonRecord):
    """What a machine can do: bytes read per second, and operations per second (a multiply-add is two) by format.

    Those of int4 differ from int8's where no instruction adds products of bytes to sums of 32 bits (AVX2). Reports
    older than this difference say 0.
    """

    read: float
    float32: float
    bfloat16: float
    int8: float
    int4: float = 0.0


_PEAKS: Final = frozenset({"bfloat16", "int8", "int4"})
"""Formats with products of their own; the others multiply in float32."""


@dataclass(frozen=True, slots=True)
class Part:
    """Work that reading and arithmetic do side by side: `nbytes` read, `operations` at the peak of that name."""

    nbytes: float
    operations: float
    peak: str

    def seconds(self, rates: Rates) -> float:
        """The longer of the two."""
        peak: float = getattr(rates, self.peak)
        return max(self.nbytes / rates.read, self.operations / peak)


Work: TypeAlias = Mapping[Part, int]
"""Parts, and how often each is done."""


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
        """The parts of one operation in a pass; none for what a limit leaves out."""
        if op.name == "attention":
            return [self._attention(op.arguments[1], span.start, span.count) for span in spans]
        rows = sum(span.logits if _on_logits(op) else span.count for span in spans)
        return [_product(weight, rows) for weight in _weights(op)] if rows else []

    def _attention(self, shape: AttentionShape, start: int, count: int) -> Part:
        window = start + count if shape.window is None else shape.window
        stored = min(start + count, window + count - 1)
        pairs = sum(min(position + 1, window) for position in range(start, start + count))
        operations = 4.0 * shape.num_heads * shape.head_dim * pairs  # q . k and p . v, a multiply-add each
        return Part(stored * self.kv_bytes[shape.group], operations, self.kv_format)

    def work(self, passes: Iterable[Pass]) -> Work:
        """All parts of some passes, one after the other. Layers are alike, so there are few different ones."""
        work: Counter[Part] = Counter()
        for spans, times in Counter(passes).items():
            for op in self.program.ops:
                for part in self.of(op, spans):
                    work[part] += times
        return work

    def seconds(self, passes: Iterable[Pass], rates: Rates) -> float:
        """The limit of some passes, one after the other."""
        return seconds_of(self.work(passes), rates)


def seconds_of(work: Work, rates: Rates) -> float:
    """The limit of some work."""
    return sum(times * part.seconds(rates) for part, times in work.items())


def layer_kv_bytes(program: Program, group_bytes: Sequence[float]) -> tuple[float, ...]:
    """Bytes of a token's keys and values in one layer, by layer group, from those of all layers of each group."""
    layers = Counter(op.arguments[1].group for op in program.ops if op.name == "attention")
    return tuple(total / layers[group] for group, total in enumerate(group_bytes))


def weights(program: Program) -> tuple[Weight, ...]:
    """Every matrix of a program once, the embedding too."""
    found = [op.arguments[0] for op in program.ops if op.name == "embed"]
    found += [weight for op in program.ops for weight in _weights(op)]
    return tuple({id(weight): weight for weight in found}.values())


def label(op: Op) -> str:
    """An operation's name in a receipt: operations of one label do the same work."""
    weights = _weights(op)
    if not weights:
        return op.name
    outputs = "+".join(str(weight.shape[0]) for weight in weights)
    return f"{op.name} {weights[0].shape[1]}>{outputs}"


def _weights(op: Op) -> tuple[Weight, ...]:
    """The matrices that an operation multiplies by."""
    arguments: tuple[Any, ...] = op.arguments
    match op.name:
        case "linear":
            return tuple(arguments[1])
        case "gated_linear":
            return tuple(arguments[1:3])
        case "head":
            return (arguments[1],)
    return ()


def _on_logits(op: Op) -> bool:
    return any(value.extent is Extent.LOGITS for value in op.operands())


def _product(weight: Weight, rows: int) -> Part:
    outputs, inputs = weight.shape
    return Part(weight.nbytes, 2.0 * rows * outputs * inputs, weight.format if weight.format in _PEAKS else "float32")
