"""The two functions behind every draw and log-probability: a logarithm, and probability mass as integers.

As in the reference kernels, only IEEE operations on single elements and integer bit operations occur, so C++ built
without contraction gives the same bits. A sum over the vocabulary is a sum of integers: exact, hence the same in any
order, with any vector width and over any number of threads.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import NonFiniteLogits
from ferrum.kernels.reference.reference_math import exp

F32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

MASS_ONE: Final = 2**40
"""The mass of the likeliest token. 2^22 tokens of it add up within an int64, and half a unit is 4.5e-13 of it."""

_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_FRACTION_BITS = np.int32(0x007FFFFF)
# ln 2 in two parts: the first has trailing zero bits, so that it times an exponent is exact.
_LN2_HIGH = np.float32(0.693145751953125)
_LN2_LOW = np.float32(1.4286068203094172e-06)
# (log(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f < sqrt(2), highest power first: fitted by Lawson's iteration
# (1961) for the least worst error of log(1 + f) / f, which is 7.3e-10.
_LOG1P = tuple(
    np.float32(c)
    for c in (
        0.06915425,
        -0.11789835,
        0.11872966,
        -0.12384343,
        0.14218658,
        -0.16669251,
        0.20002227,
        -0.24999987,
        0.3333331,
    )
)


def greatest(logits: F32) -> np.float32:
    """The greatest logit, which every softmax subtracts first. Minus infinity is a token that never comes.

    Raises:
        NonFiniteLogits: a NaN or plus infinity among the logits, or nothing but minus infinity.
    """
    return checked(logits.max())


def checked(peak: np.float32) -> np.float32:
    """The greatest logit, as it is. Raises NonFiniteLogits: no softmax can subtract it."""
    if not np.isfinite(peak):
        raise NonFiniteLogits(f"the greatest logit is {peak}")
    return peak


def log(x: F32) -> F32:
    """Natural logarithm of positive normal f32 of any shape, within one unit in the last place."""
    shifted = x.view(np.int32) - _SQRT_HALF_BITS
    exponent = (shifted >> np.int32(23)).astype(np.float32)
    f = ((shifted & _FRACTION_BITS) + _SQRT_HALF_BITS).view(np.float32) - np.float32(1)
    square = f * f
    tail = np.full_like(f, _LOG1P[0])
    for coefficient in _LOG1P[1:]:
        tail = tail * f + coefficient
    correction = ((f * square) * tail + exponent * _LN2_LOW) - np.float32(0.5) * square
    return (f + correction) + exponent * _LN2_HIGH


def mass(below: F32) -> Int64:
    """Unnormalised probabilities exp(below) of logits given as their distance (<= 0) below the greatest.

    Each is rounded to a multiple of 1 / MASS_ONE: [..., V] f32 -> [..., V] int64.
    """
    masses: Int64 = np.rint(exp(below) * np.float32(MASS_ONE)).astype(np.int64)
    return masses


def log_total(masses: Int64) -> np.float32:
    """Natural logarithm of the sum of `mass`, in units of the likeliest token: log(sum(exp(below))) in f32, >= 0."""
    total = np.float32(int(masses.sum())) / np.float32(MASS_ONE)
    return np.float32(log(np.asarray(total, np.float32).reshape(1))[0])
