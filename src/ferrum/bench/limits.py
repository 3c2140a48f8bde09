"""A lower bound on a step's time on this machine (roofline).

    for each matrix max(its bytes / read bandwidth, operations / arithmetic peak), summed,
    for each sequence and layer max(bytes of keys and values / bandwidth, attention operations / peak),
    and for each sequence and state max(bytes read and written / bandwidth, operations of its rows / peak)

Every byte of a weight is read once per pass; norms, activations, other writes, look-ups of embeddings and sampling
count as free. Of experts, only those count that rows chose, and only the products of rows with their own ones. The work
is taken from the recorded program and the weights' real bytes, so it is the same for every family and format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ferrum.bench.workloads import Pass
from ferrum.core.json_record import JsonRecord
from ferrum.kernels.op_attributes import AttentionShape, DeltaShape, Routing
from ferrum.kernels.op_spec import Extent, Kind, Op, Pool, Program
from ferrum.kernels.operations import Weight
from ferrum.quant.block_format import BLOCK_FORMATS


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


class StateWork(NamedTuple):
    """The work of an operation on the state of a sequence.

    Attributes:
        numbers: f32 numbers of the state.
        operations: of a row.
    """

    numbers: int
    operations: float


Work: TypeAlias = Mapping[Part, int]
"""Parts, and how often each occurs."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The work of a recorded program's operations.

    Attributes:
        program: the program.
        kv_format: format of keys and values.
        kv_bytes: per layer group the bytes of one token's keys and values in ONE layer.
        spread: experts that passes read, over those that uniform routing reads.
    """

    program: Program
    kv_format: str
    kv_bytes: tuple[float, ...]
    spread: float = 1.0

    def of(self, op: Op, spans: Pass) -> list[Part]:
        """Return the parts of one operation in a pass; empty for operations that count as free."""
        parts = [
            self._attention(shape, span.start, span.count)
            for shape in attention_shapes(op, Pool.READ)
            for span in spans
        ]
        parts += [self._state(work, span.count) for work in state_work(op) for span in spans]
        on_logits = any(value.extent is Extent.LOGITS for value in op.operands())
        rows = sum(span.logits if on_logits else span.count for span in spans)
        if not rows:
            return parts
        return parts + [self._product(weight, rows, routing_of(op)) for weight in matrices(op)]

    def _attention(self, shape: AttentionShape, start: int, count: int) -> Part:
        pairs = sum(position + 1 - _first_key(shape, position) for position in range(start, start + count))
        stored = start + count - _first_key(shape, start)
        # q . k and p . v, a multiply-add each
        operations = 2.0 * (shape.num_heads * shape.head_dim + shape.output_columns) * pairs
        return Part(stored * self.kv_bytes[shape.group], operations, self.kv_format)

    def _state(self, work: StateWork, count: int) -> Part:
        return Part(2 * 4.0 * work.numbers, work.operations * count, "float32")  # a slot is read, another one written

    def _product(self, weight: Weight, rows: int, routing: Routing | None) -> Part:
        outputs, inputs = weight.shape
        # The parts of the matrix that are read, and that a row is multiplied by.
        read, own = 1.0, 1.0
        if routing is not None:
            read = self.spread * distinct_experts(routing, rows) / routing.num_experts
            own = routing.top_k / routing.num_experts
        return Part(read * weight.nbytes, own * 2.0 * rows * outputs * inputs, _peak_of(weight.format))

    def expected_experts(self, passes: Iterable[Pass]) -> float:
        """Return the experts that passes read if routing is uniform, summed over layers."""
        routings = [routing for op in self.program.ops if (routing := routing_of(op)) is not None]
        rows = [sum(span.count for span in spans) for spans in passes]
        return sum(times * distinct_experts(each, count) for count, times in Counter(rows).items() for each in routings)

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


def state_work(op: Op) -> tuple[StateWork, ...]:
    """Return an operation's work on the state of its layer: at most one."""
    shape = next((each for each in op.arguments if isinstance(each, DeltaShape)), None)
    if shape is not None:  # of each number: a product by the decay, and three multiply-adds
        return (StateWork(shape.state_numbers, 7.0 * shape.state_numbers),)
    if op.name == "short_conv":
        numbers = len(op.arguments[1])
        return (StateWork(numbers - op.results[0].columns, 2.0 * numbers),)
    return ()


def routing_of(op: Op) -> Routing | None:
    """Return how an operation routes rows to experts; None for other operations."""
    return next((each for each in op.arguments if isinstance(each, Routing)), None)


def distinct_experts(routing: Routing, rows: int) -> float:
    """Return the expected number of different experts of rows that each choose uniformly and independently."""
    return routing.num_experts * (1 - (1 - routing.top_k / routing.num_experts) ** rows)


def weights(program: Program) -> tuple[Weight, ...]:
    """Return every matrix of a program once, including the embedding."""
    found = [weight for op in program.ops for weight in op.weights()]
    return tuple({id(weight): weight for weight in found}.values())


def matrices(op: Op) -> tuple[Weight, ...]:
    """Return the matrices an operation multiplies by."""
    return op.spec.pick(op.arguments, Kind.MATRIX)


def _first_key(shape: AttentionShape, position: int) -> int:
    """Return the position of the first key that a query sees."""
    in_window = 0 if shape.window is None else position + 1 - shape.window
    in_chunk = 0 if shape.chunk is None else position - position % shape.chunk
    return max(0, in_window, in_chunk)


def _peak_of(format: str) -> str:
    """Return the peak that products of a format cannot exceed, a field of `Rates`."""
    if format in ("float32", "float16"):
        return "float32"
    if format == "bfloat16":
        return format
    kind = BLOCK_FORMATS[format]
    if kind.floats:
        return "float32"
    if kind.float8:
        return "bfloat16"
    return "int8" if kind.signed_bytes else "int4"
