"""A model with a recurrent part, which no family has: the proof that states are kept right, whatever a step does.

    c[t] = w0 x[t-2] + w1 x[t-1] + w2 x[t],   s[t] = s[t-1] / (1 + |g[t]|) + c[t],   y[t] = s[t]

per channel, where x and g are products of the input. A row that is applied twice, skipped or out of order shows in all
later results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest

from ferrum.core.config import ModelConfig
from ferrum.core.state_shape import StateShape
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import StepTables
from ferrum.kernels.interpreter import Interpreter
from ferrum.kernels.op_spec import Extent, OpSpec, Program
from ferrum.kernels.operations import F32, Array, Operations, Vector
from ferrum.kernels.reference import ReferenceKernels
from ferrum.models.attention_spec import AttentionSpec
from ferrum.models.builder import Builder, NormSpec, PartSpec, Slot
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm
from ferrum.models.tensor_names import EMBEDDING
from ferrum.nn.linear import Linear
from ferrum.runtime.backend import ChosenKernels
from ferrum.runtime.load import build_executor
from ferrum.runtime.local_executor import LocalExecutor
from ferrum.sources.random_checkpoint import RandomCheckpoint
from toy_backend import ToyKernels

HIDDEN: Final = 48
CHANNELS: Final = 32
VOCABULARY: Final = 131
CONTEXT: Final = 1024
COLUMNS: Final = 3
"""Columns of the convolution."""
KINDS: Final = {
    "recurrent": "rr",
    "recurrent with attention": "rar",
    "recurrent with a window": "rwa",
    "feed-forward only": "mm",
}
"""Layers by kind of model: recurrent, attention, attention in a window, and none that stores."""


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
        fault: called before each scan with the layer and the tables; raises to inject a fault.
    """

    states: Any
    tables: Any
    fault: Callable[[int, StepTables], None] | None = None

    def scan(self, x: F32, gate: F32, weight: F32, slot: tuple[int, int]) -> F32:
        if self.fault is not None:
            self.fault(slot[1], self.tables)
        rows = np.concatenate([x, gate], axis=1)
        return self.states.advance(*slot, self.tables, rows, lambda state, row: advance(state, row, weight))


class ReferenceScans(Scans, ReferenceKernels):
    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        return getattr(self, spec.name)(*arguments)


class NativeScans(Scans, NativeKernels):
    """Native kernels that replay a program operation by operation, since the library has no scan."""

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        return self.scan(*arguments) if spec is SCAN else super().compute(spec, arguments)

    def prepare(self, program: Program, limits: Mapping[Extent, int]) -> Interpreter:
        return Interpreter(program, limits)


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


def spec_of(config: FamilyConfig) -> DecoderSpec:
    parts: dict[str, PartSpec] = {
        "r": RecurrentSpec(),
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


def kernels_of(name: str, isa: str = "auto", threads: int | None = None, **options: Any) -> Any:
    made = {"reference": ReferenceScans, "auto": ToyScans}
    return made[name]() if name in made else NativeScans(isa, threads, **options)


@contextmanager
def recurrent_family() -> Iterator[None]:
    """Load models with recurrent parts in this context."""

    def chosen(_device: str, name: str, isa: str, threads: int | None, **options: Any) -> ChosenKernels:
        return ChosenKernels(kernels_of(name, isa, threads, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrum.runtime.assembly.choose_kernels", chosen)
        FAMILIES.add("RecurrentForCausalLM", spec_of)
        yield
        FAMILIES.pop("RecurrentForCausalLM")


class Weights(RandomCheckpoint):
    """Random weights large enough that every layer matters.

    Attributes:
        poison: a token whose embedding has a NaN, or None.
    """

    poison: int | None = None

    def read(self, name: str) -> Any:
        values = super().read(name)
        if name.endswith("conv.weight"):
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
    with recurrent_family():
        weights = Weights(kind, values)
        weights.poison = poison
        return build_executor(
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
