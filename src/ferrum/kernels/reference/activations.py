"""Activation functions of the reference kernels, see `op_attributes.Activation`."""

from __future__ import annotations

from typing import Final

import numpy as np

from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.operations import F32
from ferrum.kernels.reference.fused_sums import fused
from ferrum.kernels.reference.reference_math import exp, horner

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
