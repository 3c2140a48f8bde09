"""A model with a recurrent part, which no family has: the proof that states are kept right, whatever a step does.

    c[t] = w0 x[t-2] + w1 x[t-1] + w2 x[t],   s[t] = s[t-1] / (1 + |g[t]|) + c[t],   y[t] = s[t]

per channel, where x and g are products of the input. A row that is applied twice, skipped or out of order shows in all
later results. Other kinds of the model have layers of the declared operations, which native kernels compute, too: short
convolutions and the gated delta rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pytest

from ferrum.core.config import ModelConfig
from ferrum.core.state_shape import StateShape
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import PoolGroup, StatePool, StepTables
from ferrum.kernels.op_attributes import SILU, DeltaShape
from ferrum.kernels.op_spec import Extent, OpSpec, Program
from ferrum.kernels.operations import F32, Array, Operations, Vector
from ferrum.kernels.recorded_program import Interpreter
from ferrum.kernels.reference import ReferenceKernels
from ferrum.kernels.reference.reference_states import StateMemory
from ferrum.models.attention_spec import AttentionSpec
from ferrum.models.builder import Builder, NormSpec, PartSpec, Slot
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm
from ferrum.models.tensor_names import EMBEDDING
from ferrum.nn.linear import Linear
from ferrum.runtime.backend import ChosenKernels
from ferrum.runtime.load import build_executor
from ferrum.sources.random_checkpoint import RandomCheckpoint
from ferrum.verbs.load_executor import LocalExecutor
from toy_backend import ToyKernels

HIDDEN: Final = 48
CHANNELS: Final = 32
VOCABULARY: Final = 131
CONTEXT: Final = 1024
COLUMNS: Final = 3
"""Columns of the convolution."""
DELTA: Final = DeltaShape(0, 0, num_heads=4, num_key_heads=2, key_dim=8, value_dim=12)
KINDS: Final = {
    "recurrent": "rr",
    "recurrent with attention": "rar",
    "recurrent with a window": "rwa",
    "recurrent operations": "cdcd",
    "recurrent operations with attention": "cad",
    "feed-forward only": "mm",
}
"""Layers by kind of model: scans, convolutions, delta rules, attention, attention in a window, and none that stores."""


def scan(_: Any, x: Array, gate: Array, weight: Vector, slot: tuple[int, int]) -> Array:
    """Advance the state of a layer by x and gate, [R, CHANNELS] each, and return it after each row."""
    return x.like()


SCAN: Final = OpSpec(scan)


def advance(state: F32, row: F32, weight: F32) -> F32:
    """Apply a row [2 * CHANNELS] to a state [COLUMNS * CHANNELS]: s, and the columns before this one."""
    s, *before = np.split(state, COLUMNS)
    x, gate = np.split(row, 2)
    columns = (*before, x)
    c = sum(w * column for w, column in zip(weight.reshape(COLUMNS, -1), columns, strict=True))
    state[:] = np.concatenate([s / (np.float32(1) + np.abs(gate)) + c, *columns[1:]])
    return state[:CHANNELS].copy()


class Scans:
    """The operation, for kernels whose arrays are numpy's.

    Attributes:
        fault: called before each scan and delta rule with the layer and the tables; raises to inject a fault.
    """

    states: Any
    tables: Any
    fault: Callable[[int, StepTables], None] | None = None

    def scan(self, x: F32, gate: F32, weight: F32, slot: tuple[int, int]) -> F32:
        self.may_fail(slot[1])
        rows = np.concatenate([x, gate], axis=1)
        return self.states.advance(*slot, self.tables, rows, lambda state, row: advance(state, row, weight))

    def may_fail(self, layer: int) -> None:
        if self.fault is not None:
            self.fault(layer, self.tables)


class ReferenceScans(Scans, ReferenceKernels):
    def delta_rule(self, x: F32, a: F32, b: F32, decay: F32, shift: F32, shape: DeltaShape) -> F32:
        self.may_fail(shape.layer)
        return super().delta_rule(x, a, b, decay, shift, shape)

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        return getattr(self, spec.name)(*arguments)


class NativeScans(Scans, NativeKernels):
    """Native kernels that replay a program operation by operation, with states in numpy: the library has no scan."""

    def allocate(self, groups: tuple[PoolGroup, ...], states: StatePool | None = None) -> None:
        super().allocate(groups)
        self.states = None if states is None else StateMemory(states)

    def begin(self, tables: StepTables) -> None:
        if tables.states is not None:
            self.states.check(tables)
        super().begin(tables._replace(states=None))
        self._tables = tables

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        return self.scan(*arguments) if spec is SCAN else super().compute(spec, arguments)

    def prepare(self, program: Program, limits: Mapping[Extent, int]) -> Interpreter:
        return Interpreter(program, limits)


class NativeStates(Scans, NativeKernels):
    """Native kernels whose faults come when every layer has run and written its states."""

    def run(self, program: Any, operations: int) -> None:
        super().run(program, operations)
        for layer in range(2):  # as many as a kind has scans or delta rules
            self.may_fail(layer)


class ToyScans(ToyKernels):
    def __init__(self) -> None:
        super().__init__()
        self._inner = ReferenceScans()


@dataclass(frozen=True, slots=True)
class Recurrent:
    inputs: Linear
    output: Linear
    weight: Array
    slot: Slot

    def __call__(self, kernels: Operations, x: Array) -> Array:
        x, gate = self.inputs(kernels, x)
        (y,) = self.output(kernels, kernels.compute(SCAN, SCAN.bind(x, gate, self.weight, self.slot)))
        return y


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    def stored(self) -> StateShape:
        return StateShape(COLUMNS * CHANNELS, 2 * CHANNELS)

    def build(self, make: Builder) -> Recurrent:
        return Recurrent(
            inputs=make.linear(("in_proj", "gate_proj"), (CHANNELS, CHANNELS), make.hidden_size),
            output=make.linear(("out_proj",), (make.hidden_size,), CHANNELS),
            weight=make.vector("conv.weight", COLUMNS * CHANNELS),
            slot=make.state_slot(self),
        )


@dataclass(frozen=True, slots=True)
class Convolution:
    inputs: Linear
    output: Linear
    weight: Array
    bias: Array
    slot: Slot

    def __call__(self, kernels: Operations, x: Array) -> Array:
        (x,) = self.inputs(kernels, x)
        (y,) = self.output(kernels, kernels.short_conv(x, self.weight, self.slot, self.bias, SILU))
        return y


@dataclass(frozen=True, slots=True)
class ConvolutionSpec:
    def stored(self) -> StateShape:
        return StateShape((COLUMNS - 1) * CHANNELS, CHANNELS)

    def build(self, make: Builder) -> Convolution:
        return Convolution(
            inputs=make.linear(("in_proj",), (CHANNELS,), make.hidden_size),
            output=make.linear(("out_proj",), (make.hidden_size,), CHANNELS),
            weight=make.vector("conv.weight", COLUMNS * CHANNELS),
            bias=make.vector("conv.bias", CHANNELS),
            slot=make.state_slot(self),
        )


@dataclass(frozen=True, slots=True)
class Delta:
    inputs: Linear
    output: Linear
    decay: Array
    shift: Array
    norm: Array
    shape: DeltaShape

    def __call__(self, kernels: Operations, x: Array) -> Array:
        x, a, b, gate = self.inputs(kernels, x)
        y = kernels.delta_rule(x, a, b, self.decay, self.shift, self.shape)
        (y,) = self.output(kernels, kernels.gated_norm(y, gate, self.norm, 1e-6, self.shape.num_heads))
        return y


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    def stored(self) -> StateShape:
        return StateShape(DELTA.state_numbers, DELTA.input_columns + 2 * DELTA.num_heads)

    def build(self, make: Builder) -> Delta:
        heads, columns = DELTA.num_heads, DELTA.output_columns
        names, sizes = ("in_proj", "a_proj", "b_proj", "gate_proj"), (DELTA.input_columns, heads, heads, columns)
        group, layer = make.state_slot(self)
        return Delta(
            inputs=make.linear(names, sizes, make.hidden_size),
            output=make.linear(("out_proj",), (make.hidden_size,), columns),
            decay=make.vector("decay", heads, factor=-1.0),
            shift=make.vector("shift", heads),
            norm=make.vector("norm.weight", DELTA.value_dim),
            shape=replace(DELTA, group=group, layer=layer),
        )


def spec_of(config: FamilyConfig) -> DecoderSpec:
    parts: dict[str, PartSpec] = {
        "r": RecurrentSpec(),
        "c": ConvolutionSpec(),
        "d": DeltaSpec(),
        "a": AttentionSpec(4, 2, 16, rope=None),
        "w": AttentionSpec(4, 2, 8, rope=None, window=9),
        "m": MlpSpec(HIDDEN),
    }
    layers = tuple(KINDS.values())[config.integer("kind", minimum=0)]
    return DecoderSpec(
        family="recurrent",
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        max_sequence_length=config.integer("context"),
        norms=NormSpec(1e-6),
        tied_head=False,
        layers=tuple(pre_norm(parts[kind], MlpSpec(HIDDEN)) for kind in layers),
    )


def kernels_of(kind: str, name: str, isa: str = "auto", threads: int | None = None, **options: Any) -> Any:
    """Return the kernels of a model: a native program runs declared operations only."""
    made = {"reference": ReferenceScans, "auto": ToyScans}
    if name in made:
        return made[name]()
    return (NativeScans if "r" in KINDS[kind] else NativeStates)(isa, threads, **options)


@contextmanager
def recurrent_family(kind: str) -> Iterator[None]:
    """Load models with recurrent parts in this context."""

    def chosen(
        _device: str,
        name: str,
        isa: str,
        threads: int | None,
        *,
        graphs: bool,
        **options: Any,
    ) -> ChosenKernels:
        return ChosenKernels(kernels_of(kind, name, isa, threads, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrum.runtime.load.choose_kernels", chosen)
        FAMILIES.add("RecurrentForCausalLM", spec_of)
        try:
            yield
        finally:
            FAMILIES.pop("RecurrentForCausalLM")


class Weights(RandomCheckpoint):
    """Random weights large enough that every layer matters.

    Attributes:
        poison: a token whose embedding has a NaN, or None.
    """

    poison: int | None = None

    def read(self, name: str) -> Any:
        values = super().read(name)
        if name.endswith(("conv.weight", "conv.bias", "shift")):
            return np.random.default_rng(len(name)).normal(size=values.shape).astype(values.dtype)
        if values.ndim == 2:
            values = values * values.dtype.type(8)
        if name == EMBEDDING and self.poison is not None:
            values[self.poison] = np.nan
        return values


def load(
    kind: str,
    kernels: str,
    *,
    page_size: int = 16,
    max_rows: int = 64,
    run_ahead: int = 0,
    poison: int | None = None,
    **options: Any,
) -> LocalExecutor:
    """Load a model of `KINDS` on these kernels or "toy"; the other options are those of `ModelConfig`."""
    values = {"architectures": ["RecurrentForCausalLM"], "kind": list(KINDS).index(kind), "context": CONTEXT}
    chosen = {"kernels": "auto" if kernels == "toy" else kernels, "dtype": "float32", "kv_dtype": "float32"}
    with recurrent_family(kind):
        weights = Weights(kind, values)
        weights.poison = poison
        return build_executor(
            LocalExecutor,
            ModelConfig(model=kind, **chosen | options),
            checkpoint=weights,
            page_size=page_size,
            max_rows=max_rows,
            run_ahead=run_ahead,
        )


class Fault:
    """A fault of one layer, in the first step from now on that has several spans.

    Args:
        layer: counts down with each scan.
        seen: counts the faults.
    """

    def __init__(self, layer: int, seen: Counter[str]) -> None:
        self._left, self._seen = layer, seen

    def __call__(self, _layer: int, tables: StepTables) -> None:
        if len(tables.span_rows) > 2:
            self._left -= 1
        if self._left == -1:
            self._left = -2
            self._seen["faults"] += 1
            raise RuntimeError("a fault of a layer")
