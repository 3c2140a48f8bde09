"""Named matrices, linear layers (several weights over one input, with or without biases), and norms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

from ferrum.kernels.exchange import ROUNDED
from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.operations import Array, Operations, Weight

Starts: TypeAlias = tuple[int, ...]
"""The first column of each rank, and the number of all columns."""

# ---- Matrices with the names that a checkpoint gives them ----
#
# What is attached to a weight (calibration, an adapter, a shard) finds its place here, without a list of kinds of
# parts.


@dataclass(frozen=True, slots=True, eq=False)
class NamedWeight:
    """A matrix of a network. Parts hold it, and give its weight to operations.

    Attributes:
        name: in the checkpoint, `model.layers.0.mlp.down_proj.weight`; of a view (`models/tensor_names.py`), its own.
        weight: in the form of the backend.
        rounds: its products round 32 adjacent inputs to bytes with one scale.
    """

    name: str
    weight: Weight
    rounds: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class NamedNorm:
    """The weight of a norm, which operations hold.

    Attributes:
        name: in the checkpoint, `model.layers.0.input_layernorm.weight`.
        weight: in the form of the backend.
        offset: what is added to the numbers of the Hugging Face layout.
    """

    name: str
    weight: Array
    offset: float


def named_weights(part: Any) -> Iterator[NamedWeight]:
    """Yield the matrices that a network or a part holds, each time that it is held.

    Args:
        part: a dataclass whose fields hold parts and matrices, also in tuples.
    """
    if isinstance(part, NamedWeight):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from named_weights(each)
    elif is_dataclass(part):
        for field in fields(part):
            yield from named_weights(getattr(part, field.name))


def weight_names(network: Any) -> dict[int, str]:
    """Return the names of a network's matrices by the `id` of the weight, as operations and recorded programs hold it.

    The ids are valid as long as the network exists.
    """
    return {id(each.weight): each.name for each in named_weights(network)}


def norm_names(network: Any) -> dict[int, str]:
    """Return the names of a network's norms in the same way. They are in its field `norms`, if it has one."""
    norms: tuple[NamedNorm, ...] = getattr(network, "norms", ())
    return {id(each.weight): each.name for each in norms}


@dataclass(frozen=True, slots=True)
class Linear:
    """A group of linear layers with a common input: y_i = activation(x W_i^T + b_i), [R, K] -> [R, N_i] each.

    Attributes:
        biases: one for each weight, or none at all.
        joins: where the parts of ranks begin in each result (`Operations.join`), or none at all.
    """

    weights: tuple[NamedWeight, ...]
    biases: tuple[Array | None, ...] = ()
    activation: Activation | None = None
    joins: tuple[Starts | None, ...] = ()

    def __call__(self, kernels: Operations, x: Array) -> tuple[Array, ...]:
        """Return all products, in the order of the weights."""
        weights = tuple(each.weight for each in self.weights)
        ys = kernels.linear(x, weights, self.biases or (None,) * len(weights), self.activation)
        return tuple(joined(kernels, y, starts) for y, starts in zip(ys, self.joins, strict=True)) if self.joins else ys


def joined(kernels: Operations, x: Array, starts: Starts | None, tiles: int = 1, then: Linear | None = None) -> Array:
    """Return the columns of all ranks, in each of equal runs; without parts, x.

    Args:
        then: what alone takes the result. If it rounds its inputs, ranks exchange rounded ones.
    """
    if starts is None:
        return x
    whole = all(start % ROUNDED == 0 for start in starts)
    rounded = whole and then is not None and all(each.rounds for each in then.weights)
    return kernels.join(x, starts, tiles, rounded=rounded)


# ---- RMSNorm and LayerNorm ----


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight + bias (Zhang and Sennrich 2019).

    Attributes:
        bias: None: nothing is added.
        centred: the mean of x is subtracted before: LayerNorm (Ba et al. 2016).
        factor: of what a part adds to the residual stream before this norm.
    """

    weight: Array
    eps: float
    bias: Array | None = None
    centred: bool = False
    factor: float = 1.0

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        return kernels.norm(x, self.weight, self.eps, self.bias, self.centred)

    def add(self, kernels: Operations, residual: Array, delta: Array | None) -> tuple[Array, Array]:
        """Return residual + factor x delta and its norm. A backend can fuse both into one pass over memory."""
        if delta is None:
            return residual, self(kernels, residual)
        return kernels.add_norm(residual, delta, self.weight, self.eps, self.bias, self.centred, self.factor)
