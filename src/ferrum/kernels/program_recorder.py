"""Recording of a network as a flat program that each step replays.

The network runs with a `Recorder` in place of kernels: each operation appends an `Op`, each result is a symbolic
`Value`. `record` then plans the memory of all values by liveness. A `Program` has every size except the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferrum.kernels.interface import Network, NetworkOutput
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
    output = network(recorder)
    buffers, placement = _plan(recorder.ops, output)
    return Program(tuple(recorder.ops), buffers, placement, output)


def _plan(ops: list[Op], output: NetworkOutput) -> tuple[tuple[tuple[Extent, int], ...], dict[Value, int]]:
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
