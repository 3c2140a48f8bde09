"""Recording of a network as a flat program that each step replays, and the interpreter for arrays of numpy.

The network runs with a `Recorder` in place of kernels: each operation appends an `Op`, each result is a symbolic
`Value`. `record` then plans the memory of all values by liveness. A `Program` has every size except the number of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import Kernels, Network, NetworkOutput, Replay, StepTables, output_of, row_counts
from ferrum.kernels.op_spec import Extent, Op, OpSpec, Program, Value, as_tuple
from ferrum.kernels.operations import Operations


class Recorder(Operations):
    """`Operations` that record their calls. All shapes follow from the weights."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        made = spec.results(arguments)
        self.ops.append(Op(spec, arguments, as_tuple(made)))
        return made


def record(network: Network) -> Program:
    """Record a network and plan its memory."""
    recorder = Recorder()
    made = network(recorder)
    output = (made.logits, made.best, made.hidden, made.finite, *made.others)
    buffers, placement = _plan(recorder.ops, output)
    return Program(tuple(recorder.ops), buffers, placement, output)


def _plan(ops: list[Op], output: tuple[Value, ...]) -> tuple[tuple[tuple[Extent, int], ...], dict[Value, int]]:
    """Assign each value a buffer that no live value uses. Results share no buffer with operands, unless in place.

    Greedy in program order: take the free buffer of the same extent whose width fits best.
    """
    last_use = {value: index for index, op in enumerate(ops) for value in (*op.results, *op.operands())}
    last_use.update(dict.fromkeys(output, len(ops)))
    widths: list[int] = []
    extents: list[Extent] = []
    free: list[int] = []
    placement: dict[Value, int] = {}
    for index, op in enumerate(ops):
        overwritten = op.spec.overwritten(op.arguments)
        for value, operand in zip(op.results, overwritten, strict=False):
            assert last_use[operand] == index, f"{op.name} overwrites a value that is used later"
            placement[value] = placement[operand]
        for value in op.results[len(overwritten) :]:
            fitting = [buffer for buffer in free if extents[buffer] is value.extent]
            if fitting:
                chosen = min(fitting, key=_misfit(widths, value.row_bytes))
                free.remove(chosen)
                widths[chosen] = max(widths[chosen], value.row_bytes)
            else:
                chosen = len(widths)
                widths.append(value.row_bytes)
                extents.append(value.extent)
            placement[value] = chosen
        dying = {value for value in (*op.results, *op.operands()) if last_use[value] == index}
        free.extend(sorted(placement[value] for value in dying.difference(overwritten)))
    return tuple(zip(extents, widths, strict=True)), placement


def _misfit(widths: list[int], wanted: int) -> Callable[[int], tuple[int, int]]:
    """Rank buffers by how many bytes of a row they must grow, then by how many stay unused."""
    return lambda buffer: (max(0, wanted - widths[buffer]), max(0, widths[buffer] - wanted))


# ---- Replay of a recorded program by an interpreter, for any kernels whose arrays are numpy's ----


class Interpreter(Replay):
    """A recorded program with buffers for the largest step.

    Args:
        program: a recorded program.
        limits: maximum rows of each extent.
    """

    def __init__(self, program: Program, limits: Mapping[Extent, int]) -> None:
        self.program = program
        self._limits = dict(limits)
        self._memory = [np.zeros(self._limits[extent] * size, np.uint8) for extent, size in program.buffers]

    def nbytes(self, extent: Extent) -> int:
        buffers = zip(self.program.buffers, self._memory, strict=True)
        return sum(memory.nbytes for (kind, _), memory in buffers if kind is extent)

    def submit(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        return self.run_part(kernels, tables, range(len(self.program.ops)))

    @np.errstate(all="ignore")  # the finite flags report a NaN
    def run_part(self, kernels: Kernels, tables: StepTables, part: range) -> NetworkOutput:
        counts = row_counts(tables, self._limits)
        if part.start == 0:
            kernels.begin(tables)
        for op in self.program.ops[part.start : part.stop]:
            self._run(op, kernels, counts)
        return output_of([self._view(value, counts) for value in self.program.output])

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        counts = row_counts(tables, self._limits)
        kernels.begin(tables)
        seconds = []
        for op in self.program.ops:
            begun = time.perf_counter()
            self._run(op, kernels, counts)
            seconds.append(time.perf_counter() - begun)
        return seconds

    def _run(self, op: Op, kernels: Kernels, counts: Mapping[Extent, int]) -> None:
        arguments = op.spec.with_values(op.arguments, lambda value: self._view(value, counts))
        made = as_tuple(getattr(kernels, op.name)(*arguments))
        for value, array in zip(op.results, made, strict=True):
            view = self._view(value, counts)
            assert (array.shape, array.dtype) == (view.shape, view.dtype), f"{op.name} differs from its declaration"
            view[...] = array

    def _view(self, value: Value, counts: Mapping[Extent, int]) -> NDArray[Any]:
        rows = counts[value.extent]
        memory = self._memory[self.program.placement[value]][: rows * value.row_bytes]
        return memory.view(value.dtype).reshape(rows, value.columns)


@np.errstate(all="ignore")  # as in `Interpreter`
def run_eager(network: Network, kernels: Kernels, tables: StepTables, states: list[Any] | None = None) -> NetworkOutput:
    """Run a step without a recorded program. The results equal those of a replay bit for bit.

    Args:
        network, kernels, tables: of the step.
        states: collects the states of the layers, see `Network`.
    """
    kernels.begin(tables)
    return network(kernels) if states is None else network(kernels, states)
