"""Specification of a mixture of experts as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.group_weights import PANEL
from ferrum.kernels.op_attributes import SILU, Activation, Routing
from ferrum.kernels.operations import Array
from ferrum.models.builder import Builder
from ferrum.models.spec import MlpSpec
from ferrum.models.tensor_names import Runs, View
from ferrum.nn.block import Experts
from ferrum.nn.linear import NamedWeight, Norm, Starts

MAX_EXPERTS: Final = 4096
"""Limit of the experts of a layer, whose names are listed before any tensor is read; released models have up to 512."""

_MATRICES: Final = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Fused:
    """A checkpoint's tensors of all experts: gate and up together, and down.

    Attributes:
        gate_up, down: names of the tensors [experts, outputs, inputs].
        transposed: they are [experts, inputs, outputs].
        interleaved: the outputs of gate and up alternate, else all of gate come first.
    """

    gate_up: str = "experts.gate_up_proj"
    down: str = "experts.down_proj"
    transposed: bool = False
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A feed-forward of experts.

    Attributes:
        intermediate_size: of an expert.
        router: name of the router.
        router_bias, bias: the router, the experts have biases.
        selection_bias, expert_scale: names of such vectors in checkpoints, or None.
        fused: how the checkpoint holds all experts in two tensors; None: each expert has its own, or, as the store has
            it, all are in two tensors in the order of `Fused()`.
        shared: a feed-forward that every row takes, and its name.
        shared_gate: name of the gate of the shared feed-forward, or None.
        norm: name of a norm of the experts' inputs, or None.
        router_norm: name of the weight, times the hidden size's root, of a norm of the router's inputs, or None.
    """

    routing: Routing
    intermediate_size: int
    activation: Activation = SILU
    router: str = "gate"
    router_bias: bool = False
    selection_bias: str | None = None
    expert_scale: str | None = None
    bias: bool = False
    fused: Fused | None = None
    shared: MlpSpec | None = None
    shared_name: str = "shared_experts"
    shared_gate: str | None = None
    norm: str | None = None
    router_norm: str | None = None

    def __post_init__(self) -> None:
        if self.routing.num_experts > MAX_EXPERTS:
            count = self.routing.num_experts
            raise CheckpointError(f"config.json: {count} experts in a layer, more than the {MAX_EXPERTS} that are read")
        routing, size = self.routing, self.routing.num_experts // self.routing.groups
        uneven = routing.num_experts % routing.groups or routing.kept_groups > routing.groups
        if uneven or routing.top_k > routing.kept_groups * size:
            raise CheckpointError(
                f"config.json: {routing.num_experts} experts in {routing.groups} groups, of which "
                f"{routing.kept_groups} are kept, do not allow a row to choose {routing.top_k}"
            )

    def build(self, make: Builder) -> Experts:
        """Return the part with its parameters."""
        count, hidden = self.routing.num_experts, make.hidden_size
        cuts = {name: make.cut(f"experts.{name}", self._sizes(make, name)[0]) for name in _MATRICES}
        if hidden % PANEL or self.intermediate_size % PANEL:
            what = f"config.json: experts from {hidden} numbers to {self.intermediate_size}"
            raise Unsupported(what, f"both must be multiples of {PANEL}")
        gate = None
        if self.shared_gate is not None:
            gate = make.linear((self.shared_gate,), (1,), hidden, exact=True, whole=True)
        return Experts(
            router=make.linear((self.router,), (count,), hidden, bias=self.router_bias, exact=True, whole=True),
            routing=self.routing,
            gate=self._matrix(make, "gate_proj", cuts),
            up=self._matrix(make, "up_proj", cuts),
            down=self._matrix(make, "down_proj", cuts),
            activation=self.activation,
            selection_bias=self._vector(make, "selection_bias", self.selection_bias),
            expert_scale=self._vector(make, "expert_scale", self.expert_scale),
            biases=(
                self._bias(make, "gate_proj", cuts),
                self._bias(make, "up_proj", cuts),
                self._bias(make, "down_proj", cuts),
            ),
            shared=None if self.shared is None else self.shared.build(make.under(self.shared_name)),
            shared_gate=gate,
            norm=None if self.norm is None else make.norm(self.norm),
            router_norm=self._router_norm(make),
            inner=cuts["up_proj"] or (),
            join=cuts["down_proj"],
        )

    def _router_norm(self, make: Builder) -> Norm | None:
        if self.router_norm is None:
            return None
        return Norm(make.vector(self.router_norm, make.hidden_size, factor=make.hidden_size**-0.5), make.norms.eps)

    def _vector(self, make: Builder, name: str, source: str | None) -> Array | None:
        return None if source is None else make.vector(name, self.routing.num_experts, View((source,)))

    def _sizes(self, make: Builder, name: str) -> tuple[int, int]:
        """Return outputs and inputs of an expert's matrix."""
        sizes = make.hidden_size, self.intermediate_size
        return sizes if name == "down_proj" else (sizes[1], sizes[0])

    def _matrix(self, make: Builder, name: str, cuts: Mapping[str, Starts | None]) -> NamedWeight:
        outputs, inputs = self._sizes(make, name)
        shape, view = (self.routing.num_experts * outputs, inputs), self._view(name, "weight", "")
        return make.matrix(f"experts.{name}.weight", shape, view, part=self._part(make, cuts[name]))

    def _bias(self, make: Builder, name: str, cuts: Mapping[str, Starts | None]) -> Array | None:
        if not self.bias:
            return None
        count = self.routing.num_experts * self._sizes(make, name)[0]
        view = self._view(name, "bias", "_bias")
        return make.vector(f"experts.{name}.bias", count, view, part=self._part(make, cuts[name]))

    def _part(self, make: Builder, cut: Starts | None) -> Runs | None:
        """Return the outputs of this rank, the same ones of each expert; None: all."""
        if cut is None:
            return None
        own = make.ranks.own(cut)
        return Runs(self.routing.num_experts, cut[-1], own.start, own.stop - own.start)

    def _view(self, name: str, kind: str, suffix: str) -> View:
        """Return where all experts' numbers of a matrix or a bias are: in a tensor of each, or in a fused one."""
        if self.fused is not None:
            return self._fused_view(self.fused, name, suffix)
        own = tuple(f"experts.{expert}.{name}.{kind}" for expert in range(self.routing.num_experts))
        return View(own, otherwise=self._fused_view(Fused(), name, suffix))

    def _fused_view(self, fused: Fused, name: str, suffix: str) -> View:
        count, inner = self.routing.num_experts, self.intermediate_size
        transposed = fused.transposed and not suffix
        parts = count if transposed else 0
        if name == "down_proj":
            return View((fused.down + suffix,), transposed=parts)
        first = name == "gate_proj"
        if transposed:
            begin = 0 if first else (1 if fused.interleaved else inner)
            columns = slice(begin, None, 2) if fused.interleaved else slice(begin, begin + inner)
            return View((fused.gate_up + suffix,), columns=columns, transposed=parts)
        begin, step = (0 if first else 1, 2) if fused.interleaved else (0 if first else inner, 1)
        return View((fused.gate_up + suffix,), Runs(count, 2 * inner, begin, inner, step))
