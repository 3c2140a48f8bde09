"""A network whose results adapters can change: the program of steps with adapters.

Steps without adapters run the network itself. Its products are fused with activations, which come after an adapter's
change, so here they are separate operations. Rows without an adapter have the same bits in both.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from ferrum.kernels.adapters import AdapterSite, AdapterSites, SiteKind
from ferrum.kernels.interface import Network, NetworkOutput
from ferrum.kernels.op_attributes import SILU, Activation, AttentionShape, Routing
from ferrum.kernels.op_spec import OpSpec
from ferrum.kernels.operations import Array, Operations, Vector, Weight
from ferrum.models.tensor_names import HEAD
from ferrum.nn.named_weight import norm_names, weight_names


class AdaptedNetwork:
    """A `Network` that runs another one with an operation for adapters at each site.

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
    """Operations of kernels, each followed by what adapters change of its results.

    Args:
        kernels: compute or record.
        names, norms: of matrices, and of the weights of norms, by their ids.
        sites: the network's.
    """

    def __init__(self, kernels: Operations, names: dict[int, str], norms: dict[int, str], sites: AdapterSites) -> None:
        self._kernels, self._names, self._norms, self._sites = kernels, names, norms, sites

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
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
        (logits,) = self._kernels.adapt(x, (self._kernels.head(x, weight),), site)
        return logits if (scale, softcap) == (1.0, None) else self._kernels.scale_logits(logits, scale, softcap)

    def embed(self, table: Weight, scale: float = 1.0, stride: int = 1, offset: int = 0) -> Array:
        rows = self._kernels.embed(table, scale, stride, offset)
        if stride != 1:
            return rows
        return self._kernels.adapt_embedding(rows, self._site(SiteKind.EMBEDDING, (table,)), scale)

    def head_linear(self, x: Array, weight: Weight, heads: int) -> Array:
        site = self._site(SiteKind.HEADS, (weight,), groups=heads)
        return self._kernels.adapt(x, (self._kernels.head_linear(x, weight, heads),), site)[0]

    def experts(
        self,
        x: Array,
        scores: Array,
        routing: Routing,
        gate: Weight,
        up: Weight,
        down: Weight,
        activation: Activation = SILU,
        selection_bias: Vector | None = None,
        expert_scale: Vector | None = None,
        gate_bias: Vector | None = None,
        up_bias: Vector | None = None,
        down_bias: Vector | None = None,
        site: AdapterSite | None = None,
    ) -> Array:
        assert site is None, "the network knows no adapters"
        weights, biases = (gate, up, down), (gate_bias, up_bias, down_bias)
        site = self._site(SiteKind.EXPERTS, weights, biases, routing.num_experts)
        vectors = selection_bias, expert_scale, *biases
        return self._kernels.experts(x, scores, routing, *weights, activation, *vectors, site)

    def norm(
        self,
        x: Array,
        weight: Vector,
        eps: float,
        bias: Vector | None = None,
        centred: bool = False,
        site: AdapterSite | None = None,
    ) -> Array:
        assert site is None, "the network knows no adapters"
        return self._kernels.norm(x, weight, eps, bias, centred, self._norm_site(weight))

    def add_norm(
        self,
        residual: Array,
        delta: Array,
        weight: Vector,
        eps: float,
        bias: Vector | None = None,
        centred: bool = False,
        factor: float = 1.0,
        site: AdapterSite | None = None,
    ) -> tuple[Array, Array]:
        assert site is None, "the network knows no adapters"
        site = self._norm_site(weight)
        return self._kernels.add_norm(residual, delta, weight, eps, bias, centred, factor, site)

    def rope_store(
        self,
        q: Array,
        k: Array | None,
        v: Array | None,
        shape: AttentionShape,
        rope: Vector | None,
        q_norm: Vector | None,
        k_norm: Vector | None,
        eps: float,
        v_norm: Vector | None = None,
        norm_last: bool = False,
        temperature: Vector | None = None,
        site: AdapterSite | None = None,
    ) -> Array:
        assert site is None, "the network knows no adapters"
        site = self._norm_site(q_norm, k_norm)
        return self._kernels.rope_store(q, k, v, shape, rope, q_norm, k_norm, eps, v_norm, norm_last, temperature, site)

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
