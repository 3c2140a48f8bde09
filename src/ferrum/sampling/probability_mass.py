"""Exponential, and probability mass as integers, for draws and log-probabilities.

They use IEEE operations on single elements and integer bit operations, so C++ without contraction gives the same bits.
A sum over the vocabulary is a sum of integers, which is exact in any order, vector width and number of threads.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import NonFiniteLogits
from ferrum.kernels.reference.reference_math import EXP, LN2_HIGH, LN2_LOW, LOG2_E, log

F32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

MASS_ONE: Final = 2**40
"""Mass of the most likely token. 2^22 such tokens add up within int64; half a unit is a fraction of 4.5e-13."""


def greatest(logits: F32) -> np.float32:
    """Return the greatest logit, which a softmax subtracts first. Minus infinity forbids a token.

    Raises:
        NonFiniteLogits: a logit is NaN or plus infinity, or all are minus infinity.
    """
    return checked(logits.max())


def checked(peak: np.float32) -> np.float32:
    """Return the greatest logit. Raises NonFiniteLogits if it is not finite."""
    if not np.isfinite(peak):
        raise NonFiniteLogits(f"the greatest logit is {peak}")
    return peak


def exp(x: F32) -> F32:
    """Compute e^x for f32 of any shape, within 2 units in the last place; NaN stays NaN.

    Unlike `reference_math.exp` it fuses nothing, and reaches 0 below 2^-126 and infinity.
    """
    bounded = np.clip(x, np.float32(-200), np.float32(200))
    n = np.rint(bounded * LOG2_E)
    r = (bounded - n * LN2_HIGH) - n * LN2_LOW
    total = np.full_like(r, EXP[0])
    for coefficient in EXP[1:]:
        total = total * r + coefficient
    return _scaled(total, n)


def _scaled(mantissa: F32, exponent: F32) -> F32:
    """Compute mantissa * 2^exponent by exponent bits: 0 for exponents below -126, infinity above 127."""
    finite = np.where(np.isnan(exponent), np.float32(0), exponent)  # the mantissa carries the NaN
    bits = (np.clip(finite, -126, 127).astype(np.int32) + 127) << 23
    scaled = mantissa * bits.view(np.float32)
    scaled = np.where(exponent < -126, np.float32(0), scaled)
    return np.where(exponent > 127, np.float32(np.inf), scaled).astype(np.float32)


def mass(below: F32) -> Int64:
    """Compute unnormalised probabilities exp(below) of logits given as their distance (<= 0) from the greatest.

    Each is rounded to a multiple of 1 / MASS_ONE: [..., V] f32 -> [..., V] int64.
    """
    masses: Int64 = np.rint(exp(below) * np.float32(MASS_ONE)).astype(np.int64)
    return masses


def log_total(masses: Int64) -> np.float32:
    """Compute log(sum(exp(below))) from `mass`, in f32, >= 0."""
    total = np.float32(int(masses.sum())) / np.float32(MASS_ONE)
    return np.float32(log(np.asarray(total, np.float32).reshape(1))[0])
