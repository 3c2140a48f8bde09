"""Operations on single rows in the reference kernels: activations, norms and rope tables; see docs/numerics.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from ferrum.kernels.adapters import AdapterSite, Change
from ferrum.kernels.interface import AdapterRows
from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.operations import F32, Int32
from ferrum.kernels.reference.double_math import cosine_and_sine
from ferrum.kernels.reference.fused_sums import fused
from ferrum.kernels.reference.reference_math import exp, horner, lanes_sum, squares_sum

_GELU: Final = np.float32(1.5957691216057308)  # 2 sqrt(2 / pi)
_GELU_CUBIC: Final = np.float32(1.5957691216057308 * 0.044715)

# erf(z) = 1 - (a1 t + ... + a5 t^5) exp(-z^2), t = 1 / (1 + 0.3275911 z), within 1.5e-7 (Abramowitz and Stegun 1964,
# 7.1.26)
_ERF_T: Final = np.float32(0.3275911)
_ERF: Final = tuple(np.float32(a) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))
_ROOT_HALF: Final = np.float32(0.7071067811865476)


def sigmoid(x: F32) -> F32:
    """Compute 1 / (1 + exp(-x))."""
    y: F32 = np.float32(1) / (np.float32(1) + exp(-x))
    return y


def activated(x: F32, activation: Activation) -> F32:
    """Apply an activation to each number."""
    if activation.kind == "silu":
        y: F32 = x / (np.float32(1) + exp(-(x * np.float32(activation.sharpness))))
    elif activation.kind == "gelu_tanh":
        y = x / (np.float32(1) + exp(-(x * fused(x * x, _GELU_CUBIC, np.full_like(x, _GELU)))))
    elif activation.kind == "gelu":
        y = x * _normal_mass(x)
    elif activation.kind == "sigmoid":
        y = sigmoid(x)
    elif activation.kind == "clip":
        least, most = np.float32(activation.least), np.float32(activation.most)
        y = np.where(x > most, most, x)
        y = np.where(y < least, least, y)
    else:
        y = x * np.where(x > 0, x, np.float32(0))
    return y


def _normal_mass(x: F32) -> F32:
    """Return the mass of the normal distribution below x."""
    z = np.abs(x) * _ROOT_HALF
    t = np.float32(1) / fused(z, _ERF_T, np.ones_like(z))
    tail: F32 = np.float32(0.5) * (horner(t, _ERF) * t * exp(-(z * z)))
    return np.where(x > 0, np.float32(1) - tail, tail)


def gated(gate: F32, up: F32, activation: Activation) -> F32:
    """Multiply the activated gate by the other factor, limited as the activation says."""
    if activation.limit is None:
        return activated(gate, activation) * up
    limit = np.float32(activation.limit)
    gate, up = np.where(gate > limit, limit, gate), np.where(up > limit, limit, np.where(up < -limit, -limit, up))
    return activated(gate, activation) * (up + np.float32(1))


def biased(x: F32, bias: F32 | None) -> F32:
    """Add a bias, if there is one."""
    return x if bias is None else x + bias


def capped(x: F32, scale: float, softcap: float, factor: float = 1.0) -> F32:
    """Compute factor x softcap x tanh(scale x / softcap), by tanh(v) = 1 - 2 / (1 + exp(2 v))."""
    inner, top = np.float32(2 * scale / softcap), np.float32(factor * softcap)
    y: F32 = top - np.float32(2 * factor * softcap) / (np.float32(1) + exp(x * inner))
    return y


# ---- Norms of the reference kernels, with those that adapters replace: docs/numerics.md ----


def normed(x: F32, weight: F32, eps: float, bias: F32 | None = None, centred: bool = False) -> F32:
    """Norm the last axis of x; see `Operations.norm`. The weight may be one of each row."""
    count = np.float32(x.shape[-1])
    if centred:
        x = x - (lanes_sum(x) / count)[..., None]
    mean = squares_sum(x) / count
    inverse: F32 = np.float32(1) / np.sqrt(mean + np.float32(eps))
    y = x * inverse[..., None] * weight
    return y if bias is None else y + bias


class NormChanges(NamedTuple):
    """Adapters of norms of a step.

    Attributes:
        adapters: of the rows of the step.
        site: of the norms.
    """

    adapters: Sequence[AdapterRows]
    site: AdapterSite

    def of(self, index: int) -> Iterator[tuple[Int32, Change]]:
        """Yield rows and their changes of a norm of the site."""
        for each in self.adapters:
            entry = self.site.entries.get(each.slot)
            if entry is not None and entry[index] is not None:
                yield each.rows, entry[index]

    def change(self, x: F32, y: F32, weight: F32, eps: float, bias: F32 | None, centred: bool) -> F32:
        """Return norms y of x [R, H] with those of adapters."""
        for rows, change in self.of(0):
            own = weight if change.replaced is None else change.replaced.values[:, 0]
            y[rows] = normed(x[rows], own, eps, bias if change.bias is None else change.bias, centred)
        return y

    def weights(self, weight: F32, index: int, count: int) -> F32:
        """Return the weights of the heads of each row [count, 1, dim]."""
        found = np.repeat(weight[None, None], count, axis=0)
        for rows, change in self.of(index):
            if change.replaced is not None:
                found[rows] = change.replaced.values[:, 0]
        return found


# ---- Rows of rope tables ----

_PIECE: Final = 1 << 14
"""Angles computed at a time, so that temporary arrays stay in the second-level cache."""


def rope_rows(frequencies: tuple[float, ...], scaling: float, begin: int, end: int) -> tuple[F32, F32]:
    """Compute cos and sin of position x frequency, times `scaling`, for positions `begin` to `end` - 1.

    Angles are f32 products, as in the training of the checkpoints. The bits of a row depend only on its position.

    Returns: [positions, pairs] each.
    """
    by_pair = np.asarray(frequencies, np.float32)
    cosines, sines = (np.empty((end - begin, len(by_pair)), np.float32) for _ in range(2))
    step = max(1, _PIECE // max(1, len(by_pair)))
    for first in range(begin, end, step):
        angles = np.arange(first, min(first + step, end)).astype(np.float32)[:, None] * by_pair
        rows = slice(first - begin, first - begin + len(angles))
        cosine, sine = cosine_and_sine(angles.astype(np.float64))
        cosines[rows], sines[rows] = cosine * scaling, sine * scaling
    return cosines, sines
