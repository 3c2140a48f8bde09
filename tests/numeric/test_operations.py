"""Every declared operation, on every backend: the declared shapes, and the reference's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench_kit import costs_of
from changed_sites import embedding, low_rank, replacement, site_of, uses
from ferrum.bench.limits import attention_shapes, matrices
from ferrum.bench.shapes import SHAPES
from ferrum.core.errors import Unsupported
from ferrum.core.state_shape import StateShape
from ferrum.kernels.adapters import Change, SiteKind
from ferrum.kernels.cpu.lowering import Lowering, Native, Operand
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.cpu.weights import NativeWeight
from ferrum.kernels.interface import Kernels, NetworkOutput, PoolGroup, StatePool, StateTables, StepTables, row_counts
from ferrum.kernels.op_attributes import SIGMOID, SILU, AttentionShape, DeltaShape, EncoderShape, Routing
from ferrum.kernels.op_spec import Extent, Kind, OpSpec, Pool, Value, as_tuple, declared, operation
from ferrum.kernels.operations import Array, Matrix, Operations, Weight
from ferrum.kernels.recorded_program import Interpreter, record, run_eager
from ferrum.kernels.reference import ReferenceKernels
from ferrum.quant.dense import DenseWeight
from native_twin import TIERS, group_of, normal, require_native, same_bits, shape_of, tables_of
from toy_backend import ToyKernels

HEADS, DIM, VOCABULARY = 4, 16, 50
HIDDEN = HEADS * DIM
GROUP = group_of(DIM, HEADS // 2, "float32", page_size=16)
SHAPE = shape_of(GROUP, 2)
LATENT = PoolGroup("latent", 40, 16, 1, 1, HIDDEN + DIM, 0, "float32")
LATENT_SHAPE = AttentionShape(1, 0, 2, 1, HIDDEN + DIM, 0.1, value_dim=HIDDEN)
CHANNELS, TAPS = 40, 3
DELTA = DeltaShape(1, 0, num_heads=4, num_key_heads=2, key_dim=6, value_dim=10)
STATES = StatePool(
    4, (StateShape((TAPS - 1) * CHANNELS, CHANNELS), StateShape(DELTA.state_numbers, DELTA.input_columns + 8)), 3
)
SLOTS = (-1, 0, -1), (1, 2, 3), (0, 3, 0), (0, 1, 2)
"""Slots that the spans of `outcome` read and write, rows that wait in them (zeros), and rows to keep."""
OPERATIONS = declared(Operations)
BACKENDS: dict[str, Callable[[], Any]] = {"toy": ToyKernels} | {
    tier: lambda tier=tier: NativeKernels(tier, 2) for tier in TIERS
}


def matrix(rng: np.random.Generator, outputs: int, inputs: int = HIDDEN) -> Weight:
    return DenseWeight(normal(rng, outputs, inputs) / np.float32(8))


class Case:
    """Arguments of an operation for one backend: `value` for rows of the step, `form` for parameters."""

    def __init__(self, kernels: Any, rng: np.random.Generator, tables: StepTables) -> None:
        self.kernels, self.rng, self.counts = kernels, rng, row_counts(tables)

    def value(self, columns: int = HIDDEN, extent: Extent = Extent.ROWS) -> np.ndarray:
        return normal(self.rng, self.counts[extent], columns)

    def weight(self, outputs: int) -> Any:
        return self.kernels.weight(matrix(self.rng, outputs))

    def vector(self, size: int = HIDDEN) -> Any:
        return self.kernels.vector(normal(self.rng, size))

    def rope(self) -> Any:
        return self.kernels.rope_table(tuple(10.0 ** -np.arange(DIM // 2)), 1.0, 64)

    def site(self, kind: SiteKind, *shapes: tuple[int, int], groups: int = 1) -> Any:
        """Return a site where slot 0 has a low-rank change of each matrix, or a new weight of each norm."""
        if kind is SiteKind.EMBEDDING:
            changes = tuple(Change(embedding(self.rng, shape, 3)) for shape in shapes)
        elif kind is SiteKind.NORM:
            changes = tuple(Change(replaced=replacement(self.rng, shape, None)) for shape in shapes)
        else:
            changes = tuple(Change(low_rank(self.rng, shape, 3)) for shape in shapes)
        return site_of(self.kernels, kind, shapes, [changes], groups)


CASES: dict[str, Callable[[Case], tuple[Any, ...]]] = {
    "embed": lambda case: (case.weight(VOCABULARY),),
    "add_given": lambda case: (case.value(), 5),
    "norm": lambda case: (
        *(case.value(), case.vector(), 1e-6, None, False),
        case.site(SiteKind.NORM, (HIDDEN, 1)),
    ),
    "add_norm": lambda case: (case.value(), case.value(), case.vector(), 1e-6),
    "multiply": lambda case: (case.value(), case.value()),
    "join": lambda case: ((x := case.value()), (0, x.shape[1])),
    "add": lambda case: (case.value(), case.value(), 1.0, 0.5, case.value(1)),
    "linear": lambda case: (case.value(), (case.weight(24), case.weight(33)), (case.vector(24), None)),
    "gated_linear": lambda case: (case.value(), case.weight(40), case.weight(40)),
    "head_linear": lambda case: (case.value(2 * HIDDEN), case.weight(64), 2),
    "experts": lambda case: (
        *(case.value(), case.value(3), Routing(3, 2), *(case.weight(3 * HIDDEN) for _ in range(3))),
        *(SILU, None, case.vector(3), None, None, case.vector(3 * HIDDEN)),
        case.site(SiteKind.EXPERTS, *[(HIDDEN, HIDDEN)] * 3, groups=3),
    ),
    "activate": lambda case: (case.value(), SILU),
    "gate": lambda case: (case.value(), case.value(), SILU),
    "scale_logits": lambda case: (case.value(VOCABULARY, Extent.LOGITS), 0.5, 30.0),
    "adapt": lambda case: (
        *(case.value(), (case.value(24), case.value(33))),
        case.site(SiteKind.LINEAR, (24, HIDDEN), (33, HIDDEN)),
    ),
    "adapt_embedding": lambda case: (case.value(), case.site(SiteKind.EMBEDDING, (VOCABULARY, HIDDEN)), 6.1),
    "rope_store": lambda case: (
        *(case.value(), case.value(HIDDEN // 2), case.value(HIDDEN // 2)),
        *(SHAPE, case.rope(), case.vector(DIM), case.vector(DIM), 1e-6, None, True, None),
        case.site(SiteKind.NORM, (DIM, 1), (DIM, 1)),
    ),
    "latent_store": lambda case: (
        *(case.value(2 * HIDDEN), case.value(2 * DIM), case.value(), case.value(DIM), LATENT_SHAPE, case.rope()),
    ),
    "attention": lambda case: (case.value(), SHAPE),
    "embed_positions": lambda case: (case.weight(VOCABULARY),),
    "rotate": lambda case: (case.value(), HEADS, case.rope()),
    "attend_all": lambda case: (case.value(), case.value(), case.value(), EncoderShape(HEADS, DIM, 0.3)),
    "short_conv": lambda case: (
        *(case.value(CHANNELS), case.vector(TAPS * CHANNELS), (0, 0), case.vector(CHANNELS), SILU),
    ),
    "delta_rule": lambda case: (
        *(case.value(DELTA.input_columns), case.value(4), case.value(4), case.vector(4), case.vector(4), DELTA),
    ),
    "gated_norm": lambda case: (case.value(), case.value(), case.vector(DIM), 1e-6, HEADS, SIGMOID),
    "gather": lambda case: (case.value(),),
    "head": lambda case: (case.value(extent=Extent.LOGITS), case.weight(VOCABULARY)),
    "best": lambda case: (case.value(VOCABULARY, Extent.LOGITS),),
    "gather_hidden": lambda case: (case.value(),),
    "finite": lambda case: (case.value(),),
}
"""Arguments of each operation. A new operation needs a case."""


def outcome(kernels: Any, name: str) -> tuple[np.ndarray, ...]:
    """Return the results of an operation on these kernels, after checking them against the declaration."""
    rng = np.random.default_rng(4)
    tables = tables_of(rng, [(0, 5), (3, 1), (0, 19)], (GROUP, LATENT), (4, 5, 6, 24), (0, 24), VOCABULARY)
    tables = tables._replace(adapters=uses((0, 0.7, [1, 3, 8, 24]), logit_rows=((2, 3),)))
    tables = tables._replace(states=StateTables(*(np.array(each, np.int32) for each in SLOTS)))
    kernels.allocate((GROUP, LATENT), STATES)
    case, spec = Case(kernels, rng, tables), OPERATIONS[name]
    if spec.pool is Pool.READ:  # what it reads
        stores = OPERATIONS["rope_store"]
        run(kernels, tables, stores, stores.bind(*CASES["rope_store"](case)))
    arguments = spec.bind(*CASES[name](case))
    found = run(kernels, tables, spec, arguments)
    extents = {count: extent for extent, count in case.counts.items()}
    symbols = spec.with_values(arguments, lambda x: Value(extents[len(x)], x.shape[1]))
    for array, value in zip(found, as_tuple(spec.results(symbols)), strict=True):
        assert (array.shape, array.dtype) == ((case.counts[value.extent], value.columns), value.dtype)
    return found


def run(kernels: Any, tables: StepTables, spec: OpSpec, arguments: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
    """Run one operation on rows of the host. The toy's own arrays come from its `vector`."""
    kernels.begin(tables)  # also fills the rope tables
    held = spec.with_values(arguments, kernels.vector if isinstance(kernels, ToyKernels) else np.asarray)
    return tuple(map(kernels.host, as_tuple(getattr(kernels, spec.name)(*held))))


def test_every_operation_has_a_case_and_no_other() -> None:
    assert CASES.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_equals_the_reference(backend: str, name: str) -> None:
    ours, theirs = outcome(BACKENDS[backend](), name), outcome(ReferenceKernels(), name)
    for array, expected in zip(ours, theirs, strict=True):
        same_bits(array, expected)


def test_kinds_of_operands_follow_from_the_signature() -> None:
    rope_store = OPERATIONS["rope_store"].operands
    vectors = ["rope", "q_norm", "k_norm", "v_norm", "temperature"]
    assert [name for name, kind in rope_store.items() if kind is Kind.VALUE] == ["q", "k", "v"]
    assert [name for name, kind in rope_store.items() if kind is Kind.VECTOR] == vectors
    assert OPERATIONS["embed"].operands == {
        "table": Kind.TABLE,
        **dict.fromkeys(("scale", "stride", "offset"), Kind.ATTRIBUTE),
    }
    assert set(OPERATIONS["linear"].operands.values()) == {Kind.VALUE, Kind.MATRIX, Kind.VECTOR, Kind.ATTRIBUTE}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_is_written_to_the_pool_before_it_is_read(shape: str) -> None:
    written = set()
    for op in costs_of(shape, "float32").program.ops:
        written |= set(attention_shapes(op, Pool.WRITE))
        assert set(attention_shapes(op, Pool.READ)) <= written


# A toy operation: one declaration, and one method for each backend.


@operation()
def repeat_linear(self: Operations, x: Array, weight: Matrix, times: int = 2) -> tuple[Array, ...]:
    """Multiply by one weight, several times over: [R, K] -> [R, N] each."""
    return tuple(x.like(weight.shape[0]) for _ in range(times))


def in_numpy(self: ReferenceKernels, x: np.ndarray, weight: Weight, times: int = 2) -> tuple[np.ndarray, ...]:
    return tuple(weight.matmul(x) for _ in range(times))


def in_the_library(self: Lowering, x: Operand, weight: NativeWeight, times: int, *outs: Operand) -> Native:
    return self.linear(x, (weight,) * times, (None,) * times, None, None, *outs)


def network_of(kernels: Any, weight: Weight) -> Callable[[Any], NetworkOutput]:
    table, doubled = kernels.weight(matrix(np.random.default_rng(0), VOCABULARY)), kernels.weight(weight)

    def network(to: Any) -> NetworkOutput:
        first, second = to.repeat_linear(to.embed(table), doubled)
        logits = to.head(to.gather(second), table)
        return NetworkOutput(logits, to.best(logits), to.gather_hidden(first), to.finite(first))

    return network


def test_a_new_operation_is_one_declaration_and_a_method_for_each_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    require_native()
    kernels: tuple[Kernels, ...] = (ReferenceKernels(), NativeKernels(threads=1), ToyKernels())
    monkeypatch.setattr(Operations, "repeat_linear", repeat_linear, raising=False)
    with pytest.raises(Unsupported, match="repeat_linear"):
        Operations.repeat_linear(ReferenceKernels(), None, None)
    monkeypatch.setattr(ReferenceKernels, "repeat_linear", in_numpy, raising=False)
    monkeypatch.setattr(Lowering, "repeat_linear", in_the_library, raising=False)
    assert "repeat_linear" in declared(Operations)
    tables = tables_of(np.random.default_rng(1), [(0, 5), (0, 2)], (), (4, 6), (0, 3), VOCABULARY)
    weight, limits = matrix(np.random.default_rng(2), HIDDEN), dict.fromkeys(Extent, 9)
    results = []
    for each in kernels:
        network = network_of(each, weight)
        program = record(network)
        (op,) = (op for op in program.ops if op.name == "repeat_linear")
        assert op.arguments[2] == 2 and len(matrices(op)) == 1
        assert len({program.placement[value] for value in (*op.results, *op.operands())}) == 3, "live together"
        replayed = each.prepare(program, limits).submit(each, tables)
        eager = run_eager(network, each, tables)[:4]  # no others
        for ours, theirs in zip(replayed[:4], eager, strict=True):
            np.testing.assert_array_equal(each.host(ours), each.host(theirs))
        results.append([each.host(array) for array in eager])
    for found in results[1:]:
        for array, expected in zip(found, results[0], strict=True):
            same_bits(array, expected)


def test_the_interpreter_refuses_results_that_differ_from_the_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operations, "repeat_linear", repeat_linear, raising=False)
    monkeypatch.setattr(
        ReferenceKernels, "repeat_linear", lambda *_: (np.zeros((7, 3), np.float32),) * 2, raising=False
    )
    kernels = ReferenceKernels()
    tables = tables_of(np.random.default_rng(1), [(0, 7)], (), vocabulary=VOCABULARY)
    program = record(network_of(kernels, matrix(np.random.default_rng(2), HIDDEN)))
    with pytest.raises(AssertionError, match="repeat_linear differs"):
        Interpreter(program, dict.fromkeys(Extent, 9)).submit(kernels, tables)
