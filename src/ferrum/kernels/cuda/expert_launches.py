"""Launches of experts: routing, rows of each expert, products, and the sums of rows. native/cuda/experts.cu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ferrum.core.errors import Unsupported
from ferrum.kernels.adapters import AdapterSite
from ferrum.kernels.cuda.device_weights import DeviceVector, DeviceWeight
from ferrum.kernels.cuda.driver import THREADS
from ferrum.kernels.cuda.ground import Ground
from ferrum.kernels.cuda.launches import Launch, Operand, blocks_for
from ferrum.kernels.cuda.product_launches import products
from ferrum.kernels.cuda.products import Groups, Product
from ferrum.kernels.cuda.row_launches import address, gate
from ferrum.kernels.curves import curve
from ferrum.kernels.group_weights import rows_of_group
from ferrum.kernels.op_attributes import Activation, Routing

_SCORES: Final = ("softmax", "sigmoid", "sqrt_softplus")
_MOST_EXPERTS, _MOST_GROUPS, _MOST_CHOSEN = 1024, 128, 32
"""kMostExperts and kMostGroups of experts.cu; a lane has a chosen expert."""

_WARPS: Final = THREADS // 32


@dataclass(frozen=True, slots=True)
class _Places:
    """The results of the experts of all rows, expert after expert.

    Attributes:
        groups: the places of each expert.
        count: address of the number of places.
        capacity: the most places.
        weights, shares: addresses of the weights by row, and by place.
        of_rows: address of the places of a row's experts, int32 [rows, top_k].
    """

    groups: Groups
    count: int
    capacity: int
    weights: int
    shares: int
    of_rows: int


def experts(
    ground: Ground,
    x: Operand,
    scores: Operand,
    routing: Routing,
    gate_weight: DeviceWeight,
    up: DeviceWeight,
    down: DeviceWeight,
    activation: Activation,
    selection_bias: DeviceVector | None,
    expert_scale: DeviceVector | None,
    gate_bias: DeviceVector | None,
    up_bias: DeviceVector | None,
    down_bias: DeviceVector | None,
    site: AdapterSite | None,  # noqa: ARG001 - this backend has no adapters
    inner: tuple[int, ...],  # noqa: ARG001 - nor ranks
    out: Operand,
) -> list[Launch]:
    """Return the launches of `Operations.experts`.

    Raises:
        Unsupported: more experts than the kernel has memory for, or matrices that are not whole panels.
    """
    sizes = [rows_of_group(weight, routing.num_experts, "experts") for weight in (gate_weight, up, down)]
    launches, places = _routed(ground, x, scores, routing, selection_bias, expert_scale)
    inputs, groups = x, places.groups
    if routing.on_input:
        inputs, groups = _rows(ground, "shares of inputs", x.columns, places), replace(groups, row_of=0)
        values = places.count, places.groups.row_of, places.shares, x.address, inputs.address, x.columns
        launches.append(Launch("experts", "share_inputs", _grid(x.columns, places.capacity), values))
    hidden = _rows(ground, "hidden rows of experts", sizes[0], places)
    results = _rows(ground, "results of experts", sizes[2], places)
    launches += _gated(ground, inputs, groups, Product(gate_weight, up, gate_bias, up_bias, hidden), activation, places)
    launches += products(
        ground, hidden, [Product(down, None, down_bias, None, results)], None, replace(groups, row_of=0)
    )
    weights = 0 if routing.on_input else places.weights
    summed = x.count, places.of_rows, weights, results.address, out.address, routing.top_k, out.columns
    return [*launches, Launch("experts", "sum_experts", _grid(out.columns, out.capacity), summed)]


def _grid(columns: int, rows: int) -> tuple[int, int, int]:
    return blocks_for(columns, THREADS), rows, 1


def _rows(ground: Ground, name: str, columns: int, places: _Places) -> Operand:
    """Return memory for a row of each place."""
    return Operand(ground.scratch(name, 4 * places.capacity * columns), columns, places.count, places.capacity)


def _routed(
    ground: Ground,
    x: Operand,
    scores: Operand,
    routing: Routing,
    selection_bias: DeviceVector | None,
    expert_scale: DeviceVector | None,
) -> tuple[list[Launch], _Places]:
    """Return the launches that choose experts and order rows by them."""
    count, top_k = routing.num_experts, routing.top_k
    if count > _MOST_EXPERTS or routing.groups > _MOST_GROUPS or top_k > _MOST_CHOSEN:
        sizes = f"{count} experts in {routing.groups} groups, {top_k} for a row"
        raise Unsupported(
            "device=cuda", f"{sizes}: at most {_MOST_EXPERTS}, {_MOST_GROUPS} and {_MOST_CHOSEN}: use device=cpu"
        )
    capacity = x.capacity * top_k
    names = ("experts of rows", "weights of rows", "rows of experts", "shares of experts", "places of rows")
    chosen, weights, row_of, shares, of_rows = (ground.scratch(name, 4 * capacity) for name in names)
    bounds = ground.scratch("bounds of experts", 4 * (count + 1))
    vectors = address(selection_bias), address(expert_scale)
    route: tuple[int | float, ...] = (
        *(x.count, scores.address, *vectors, chosen, weights, count, top_k, _SCORES.index(routing.score)),
        *(int(routing.late), routing.groups, routing.kept_groups, routing.group_best, int(routing.renormalise)),
        *(float(routing.eps), float(routing.least), float(routing.factor)),
    )
    group = x.count, chosen, weights, bounds, row_of, shares, of_rows, top_k, count
    launches = [
        Launch("experts", "route_rows", (blocks_for(x.capacity, _WARPS), 1, 1), route),
        Launch("experts", "group_rows", (count, 1, 1), group),
    ]
    groups = Groups(count, bounds, row_of, x.capacity)
    return launches, _Places(groups, bounds + 4 * count, capacity, weights, shares, of_rows)


def _gated(
    ground: Ground, x: Operand, groups: Groups, product: Product, activation: Activation, places: _Places
) -> list[Launch]:
    """Return the launches of gate and up: one product, or two if their formats differ."""
    up = product.up
    assert up is not None, "a gated product"
    if (product.weight.format, product.weight.order) == (up.format, up.order):
        return products(ground, x, [product], curve(activation), groups)
    gates, ups = (_rows(ground, name, product.out.columns, places) for name in ("gates of experts", "ups of experts"))
    both = [Product(product.weight, None, product.bias, None, gates), Product(up, None, product.up_bias, None, ups)]
    return products(ground, x, both, None, groups) + gate(ground, gates, ups, activation, product.out)


LOWERINGS: Final[dict[str, Callable[..., list[Launch]]]] = {"experts": experts}
