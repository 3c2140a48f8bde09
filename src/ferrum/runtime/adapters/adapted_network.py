"""A network whose results adapters can change: the program of steps with adapters.

Steps without adapters run the network itself. Its products are fused with activations, which come after an adapter's
change, so here they are separate operations. Rows without an adapter have the same bits in both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import zip_longest
from typing import Any

from ferrum.core.errors import FerrumError
from ferrum.core.snapshots import LoraMetricsSnapshot
from ferrum.core.step import Span
from ferrum.kernels.adapters import AdapterSite, AdapterSites, SiteKind
from ferrum.kernels.interface import Kernels, Network, NetworkOutput, Replay
from ferrum.kernels.op_attributes import SILU, Activation
from ferrum.kernels.op_spec import Extent, OpSpec
from ferrum.kernels.operations import Array, Operations, Vector, Weight
from ferrum.kernels.recorded_program import record
from ferrum.models.rank_cuts import MatrixPart
from ferrum.models.tensor_names import HEAD
from ferrum.nn.linear import norm_names, weight_names
from ferrum.runtime.adapters.adapter_slots import AdapterSlots, OtherRanks


class AdaptedNetwork:
    """A `Network` that runs another one and adds the adapters of each row.

    Args:
        network: holds its matrices in dataclasses.

    Attributes:
        sites: found while it runs.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._names, self._norms = weight_names(network), norm_names(network)
        self.sites = AdapterSites()

    def __call__(self, kernels: Operations, states: list[Array] | None = None) -> NetworkOutput:
        """Run one step."""
        return self._network(_AdaptedOperations(kernels, self._names, self._norms, self.sites), states)


class _AdaptedOperations(Operations):
    """Operations of kernels, with what adapters change of their results.

    Args:
        kernels: compute or record.
        names, norms: of matrices, and of the weights of norms, by their ids.
        sites: the network's.
    """

    def __init__(self, kernels: Operations, names: dict[int, str], norms: dict[int, str], sites: AdapterSites) -> None:
        self._kernels, self._names, self._norms, self._sites = kernels, names, norms, sites

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        if "site" in spec.operands:
            given = dict(zip(spec.operands, arguments, strict=True))
            assert given["site"] is None, "the network knows no adapters"
            given["site"] = self._site_of(spec.name, given)
            arguments = tuple(given.values())
        method = getattr(self._kernels, spec.name, None)
        return self._kernels.compute(spec, arguments) if method is None else method(*arguments)

    def linear(
        self,
        x: Array,
        weights: tuple[Weight, ...],
        biases: tuple[Vector | None, ...],
        activation: Activation | None = None,
        site: AdapterSite | None = None,
    ) -> tuple[Array, ...]:
        assert site is None, "the network knows no adapters"
        site = self._site(SiteKind.LINEAR, weights, biases)
        ys = self._kernels.linear(x, weights, biases, None, site)
        return ys if activation is None else tuple(self._kernels.activate(y, activation) for y in ys)

    def gated_linear(
        self,
        x: Array,
        gate: Weight,
        up: Weight,
        activation: Activation = SILU,
        gate_bias: Vector | None = None,
        up_bias: Vector | None = None,
    ) -> Array:
        one, other = self.linear(x, (gate, up), (gate_bias, up_bias))
        return self._kernels.gate(one, other, activation)

    def head(self, x: Array, weight: Weight, scale: float = 1.0, softcap: float | None = None) -> Array:
        site = self._sites.site(SiteKind.HEAD, (HEAD,), ((weight, None),))
        (logits,) = self._kernels.linear(x, (weight,), (None,), None, site)
        return logits if (scale, softcap) == (1.0, None) else self._kernels.scale_logits(logits, scale, softcap)

    def embed(self, table: Weight, scale: float = 1.0, stride: int = 1, offset: int = 0) -> Array:
        rows = self._kernels.embed(table, scale, stride, offset)
        if stride != 1:
            return rows
        return self._kernels.adapt_embedding(rows, self._site(SiteKind.EMBEDDING, (table,)), scale)

    def join(
        self,
        x: Array,
        starts: tuple[int, ...],
        tiles: int = 1,
        rounded: bool = False,  # noqa: ARG002 - adapters take inputs that are not rounded
    ) -> Array:
        return self._kernels.join(x, starts, tiles)

    def head_linear(self, x: Array, weight: Weight, heads: int) -> Array:
        site = self._site(SiteKind.HEADS, (weight,), groups=heads)
        return self._kernels.adapt(x, (self._kernels.head_linear(x, weight, heads),), site)[0]

    def _site_of(self, name: str, given: Mapping[str, Any]) -> AdapterSite | None:
        """Return the site of an operation that changes its own results, from its arguments by operand."""
        match name:
            case "norm" | "add_norm":
                return self._norm_site(given["weight"])
            case "rope_store":
                return self._norm_site(given["q_norm"], given["k_norm"])
            case "experts":
                weights, biases = ([given[f"{each}{end}"] for each in ("gate", "up", "down")] for end in ("", "_bias"))
                return self._site(SiteKind.EXPERTS, tuple(weights), tuple(biases), given["routing"].num_experts)
        raise AssertionError(f"{name} has a site that nothing finds")

    def _norm_site(self, *weights: Vector | None) -> AdapterSite | None:
        """Return the site of norms, or None if no checkpoint has their weights."""
        given = [each for each in weights if each is not None]
        named = {self._norms[id(each)]: len(each) for each in given if id(each) in self._norms}
        if not named:
            return None
        assert weights[0] is not None and len(named) == len(given), "a site's norms are known by their places"
        return self._sites.norms(tuple(named), tuple(named.values()))

    def _site(
        self,
        kind: SiteKind,
        weights: tuple[Weight, ...],
        biases: tuple[Vector | None, ...] = (),
        groups: int = 1,
    ) -> AdapterSite:
        names = tuple(self._names[id(weight)] for weight in weights)
        return self._sites.site(kind, names, tuple(zip_longest(weights, biases)), groups)


# ---- `AdaptedSteps`: the program of a model's steps with adapters, made with the first adapter ----


class AdaptedSteps:
    """Steps with adapters of one model. Until `load` nothing is recorded, and no buffer allocated.

    Args:
        network, kernels: of the model.
        limits: rows of a pass; None walks the network at each step.

    Attributes:
        network, replay: of steps with adapters.
        others: see `AdapterSlots`; set before `load`.
        slots: the adapters; None before `load`.
    """

    def __init__(self, network: Network, kernels: Kernels, limits: Mapping[Extent, int] | None) -> None:
        self.network = network
        self._kernels, self._limits = kernels, limits
        self.replay: Replay | None = None
        self.others: OtherRanks | None = None
        self.slots: AdapterSlots | None = None

    def load(self) -> AdapterSlots:
        """Return the adapters. The first call records the program and allocates its buffers."""
        if self.slots is None:
            network = AdaptedNetwork(self.network)
            program = record(network)
            self.replay = None if self._limits is None else self._kernels.prepare(program, self._limits)
            parts: Mapping[str, MatrixPart] = getattr(self.network, "parts", {})
            self.slots = AdapterSlots(self._kernels, network.sites.found.values(), parts, self.others)
            self.network = network
        return self.slots

    def refuse(self, span: Span) -> FerrumError | None:
        """Return why a span cannot use its adapters, or None."""
        return self.load().refuse(span.adapters)

    def snapshot(self, used: Collection[str]) -> LoraMetricsSnapshot:
        """Return the counters; `used` are the keys of all sequences' adapters."""
        slots = self.slots
        if slots is None:
            return LoraMetricsSnapshot()
        active = tuple(key for key in slots.keys if key in used)
        return LoraMetricsSnapshot(loaded=slots.keys, active=active, nbytes=slots.nbytes)
