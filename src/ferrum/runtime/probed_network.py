"""A network that shows the inputs of matrices by name, for calibration and tests.

`nn/linear.py` says which matrices a network holds. The backend computes every result, with unchanged bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ferrum.kernels.interface import Network, NetworkOutput
from ferrum.kernels.op_attributes import Routing
from ferrum.kernels.op_spec import Kind, OpSpec
from ferrum.kernels.operations import F32, Array, Int32, Operations, Weight
from ferrum.kernels.reference.reference_experts import add_experts, route
from ferrum.nn.linear import weight_names

Probe: TypeAlias = Callable[[tuple[str, ...], F32], object]
"""Called with the names of the matrices that multiply an input, and the input [R, K]. Look-ups have no input."""

Show: TypeAlias = Callable[[tuple[Weight, ...], F32], None]
"""Called with matrices, and the input [R, K] that they multiply."""


class ProbedNetwork:
    """A `Network` that runs another one and shows inputs. It is not replayed from a recorded program.

    Args:
        network: runs, and holds the matrices in its dataclasses.
        host: `Kernels.host` of the backend that it runs on.
        probe: called before each product of a named matrix.
        names: of the matrices to probe.

    Raises:
        ValueError: the network holds no matrix of a name.
    """

    def __init__(self, network: Network, host: Callable[[Array], F32], probe: Probe, names: Collection[str]) -> None:
        held = weight_names(network)
        unknown = set(names) - set(held.values())
        if unknown:
            raise ValueError(f"the network holds no matrix {', '.join(sorted(unknown))}")
        self._network, self._host, self._probe = network, host, probe
        self._names = {key: name for key, name in held.items() if name in names}

    def __call__(self, kernels: Operations, states: list[Array] | None = None) -> NetworkOutput:
        """Run one step."""
        return self._network(_Watched(kernels, self._host, self._show, self._names), states)

    def _show(self, weights: tuple[Weight, ...], x: F32) -> None:
        names = tuple(self._names[id(weight)] for weight in weights if id(weight) in self._names)
        if names:
            self._probe(names, x)


class _Watched(Operations):
    """Operations of kernels that show the inputs of every product of a probed matrix.

    Args:
        kernels: compute.
        host: returns the numbers of their arrays.
        show: called with matrices and their input.
        probed: ids of the matrices to show.
    """

    def __init__(
        self,
        kernels: Operations,
        host: Callable[[Array], F32],
        show: Show,
        probed: Collection[int],
    ) -> None:
        self._kernels, self._host, self._show, self._probed = kernels, host, show, probed

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        matrices = spec.pick(arguments, Kind.MATRIX)
        if any(id(weight) in self._probed for weight in matrices):
            if spec.name == Operations.experts.__name__:
                self._show_experts(*arguments)
            else:
                (x,) = spec.pick(arguments, Kind.VALUE)
                # A product of heads multiplies each head [R, K] of its input.
                self._show(matrices, self._host(x).reshape(-1, matrices[0].shape[1]))
        return getattr(self._kernels, spec.name)(*arguments)

    def _show_experts(self, x: Array, scores: Array, routing: Routing, *rest: Any) -> None:
        """Show the inputs of each expert's rows. Only computing the experts gives those of the last matrix."""
        gate, up, down, activation, *vectors, _ = rest
        selection, scale, *biases = (None if each is None else self._host(each) for each in vectors)
        routed = route(self._host(scores), routing, selection, scale)
        one, two, three = (_Shown(each, each, self._show) for each in (gate, up, down))
        first, second, third = biases
        add_experts(self._host(x), routed, (one, two, three), (first, second, third), activation, routing)


@dataclass(frozen=True, slots=True)
class _Shown:
    """Rows of a matrix that shows the inputs of its products."""

    matrix: Weight
    inner: Weight
    show: Show

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    @property
    def format(self) -> str:
        return self.inner.format

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    def matmul(self, x: F32) -> F32:
        self.show((self.matrix,), x)
        return self.inner.matmul(x)

    def rows(self, ids: Int32) -> F32:
        return self.inner.rows(ids)

    def part(self, begin: int, end: int) -> Weight:
        return replace(self, inner=self.inner.part(begin, end))

    def dequantize(self) -> F32:
        return self.inner.dequantize()
