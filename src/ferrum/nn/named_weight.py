"""Matrices with the names that a checkpoint gives them, and where a network holds them.

What is attached to a weight (calibration, an adapter, a shard) finds its place here, without a list of kinds of parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ferrum.kernels.operations import Array, Weight


@dataclass(frozen=True, slots=True, eq=False)
class NamedWeight:
    """A matrix of a network. Parts hold it, and give its weight to operations.

    Attributes:
        name: in the checkpoint, `model.layers.0.mlp.down_proj.weight`; of a view (`models/tensor_views.py`), its own.
        weight: in the form of the backend.
    """

    name: str
    weight: Weight


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
