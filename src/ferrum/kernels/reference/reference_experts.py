"""Routing and experts of the reference kernels, see `op_attributes.Routing`, and products of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.group_weights import rows_of_group
from ferrum.kernels.op_attributes import Activation, Routing
from ferrum.kernels.operations import F32, Weight
from ferrum.kernels.reference.fused_sums import fused, ordered_sum
from ferrum.kernels.reference.reference_adapters import ExpertChanges
from ferrum.kernels.reference.reference_math import exp, log
from ferrum.kernels.reference.reference_rows import biased, gated, sigmoid

Int64 = NDArray[np.int64]


class Routed(NamedTuple):
    """The experts of each row [R, top_k], ascending, and the weights of their results."""

    experts: Int64
    weights: F32


def route(scores: F32, routing: Routing, selection_bias: F32 | None, expert_scale: F32 | None) -> Routed:
    """Choose the experts of rows with these scores [R, experts]."""
    finite: NDArray[np.bool_] = np.all(np.isfinite(scores), axis=1)
    raw = np.where(finite[:, None], scores, np.float32(0))
    values = raw if routing.late else scored(raw, routing.score)
    experts = _chosen(biased(values, selection_bias), routing)
    experts[~finite] = np.arange(routing.top_k)
    weights = np.take_along_axis(values, experts, axis=1)
    if routing.late:
        weights = scored(weights, routing.score)
    if routing.renormalise:
        total = ordered_sum(weights.T) + np.float32(routing.eps)
        weights = weights / np.maximum(total, np.float32(routing.least))[:, None]
    weights = weights * np.float32(routing.factor)
    if expert_scale is not None:
        weights = weights * expert_scale[experts]
    weights[~finite] = np.nan
    return Routed(experts, weights)


def scored(x: F32, score: str) -> F32:
    """Apply `Routing.score` to finite numbers [R, n]. The sum of a softmax is of ascending experts."""
    if score == "softmax":
        raised = exp(x - x.max(axis=1, keepdims=True))
        y: F32 = raised / ordered_sum(raised.T)[:, None]
        return y
    return sigmoid(x) if score == "sigmoid" else np.sqrt(softplus(x))


def softplus(x: F32) -> F32:
    """Compute log(1 + e^x) as max(x, 0) + log(1 + t) with t = e^-|x|.

    With u the rounded 1 + t, log(1 + t) is log(u) + (t - (u - 1)) / u (Kahan).
    """
    t = exp(-np.abs(x))
    u = np.float32(1) + t
    y: F32 = np.where(x > 0, x, np.float32(0)) + (log(u) + (t - (u - np.float32(1))) / u)
    return y


def _chosen(values: F32, routing: Routing) -> Int64:
    """Return the experts with the best values [R, experts] in the best groups -> [R, top_k], ascending."""
    rows, groups = len(values), routing.groups
    outside = np.zeros((rows, groups, routing.num_experts // groups), np.bool_)
    if groups > 1:
        best = -np.sort(-values.reshape(outside.shape), axis=2)[..., : routing.group_best]
        kept = _best(ordered_sum(best.transpose(2, 0, 1)), np.zeros((rows, groups), np.bool_), routing.kept_groups)
        outside[:] = True
        np.put_along_axis(outside, kept[..., None], False, axis=1)
    return np.sort(_best(values, outside.reshape(values.shape), routing.top_k), axis=1)


def _best(values: F32, outside: NDArray[np.bool_], count: int) -> Int64:
    """Return the columns of the greatest values that are not outside, of equals those of lower number; NaN is least."""
    ranked = np.where(np.isnan(values), np.float32(-np.inf), values)
    order: Int64 = np.lexsort((-ranked, outside), axis=1)  # a stable sort
    return order[:, :count]


def add_experts(
    x: F32,
    routed: Routed,
    weights: tuple[Weight, Weight, Weight],
    biases: tuple[F32 | None, F32 | None, F32 | None],
    activation: Activation,
    routing: Routing,
    changes: ExpertChanges | None = None,
    join: Callable[[F32], F32] | None = None,
) -> F32:
    """Add the weighted results of each row's experts in ascending order.

    Args:
        x: [R, H].
        weights: gate, up and down of all experts.
        biases: those of their products.
        changes: of adapters, or None.
        join: returns the inner columns of all ranks, from the own ones; None: there are no others.

    Returns: [R, outputs of a down].
    """
    sizes = [rows_of_group(weight, routing.num_experts, "experts") for weight in weights]
    out = np.zeros((len(x), sizes[2]), np.float32)
    for expert in np.unique(routed.experts):
        rows, at = np.nonzero(routed.experts == expert)
        shares = routed.weights[rows, at][:, None]
        parts = [slice(expert * size, (expert + 1) * size) for size in sizes]

        def product(matrix: int, of: F32) -> F32:
            part, bias = parts[matrix], biases[matrix]  # noqa: B023 - called in this round only
            weight = weights[matrix].part(part.start, part.stop)
            y = biased(weight.matmul(of), None if bias is None else bias[part])
            return y if changes is None else changes.change(matrix, int(expert), rows, of, y)  # noqa: B023

        inputs = x[rows] * shares if routing.on_input else x[rows]
        hidden = gated(product(0, inputs), product(1, inputs), activation)
        results = product(2, hidden if join is None else join(hidden))
        out[rows] = fused(results, np.ones_like(shares) if routing.on_input else shares, out[rows])
    return out


def multiply_heads(x: F32, weight: Weight, heads: int) -> F32:
    """Multiply each head of x [R, heads x K] by its rows of the weight [heads x N, K] -> [R, heads x N]."""
    size, inputs = rows_of_group(weight, heads, "heads"), weight.shape[1]
    products = [
        weight.part(head * size, (head + 1) * size).matmul(x[:, head * inputs : (head + 1) * inputs])
        for head in range(heads)
    ]
    return np.concatenate(products, axis=1)
