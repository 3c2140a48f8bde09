"""Elementary functions in float64, for rope tables and frequencies: IEEE operations only, nothing fused.

The functions of C and numpy promise no last bits, these do. `docs/numerics.md` states the steps and coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Number = TypeVar("Number", float, F64)

_PERIOD: Final = 2.0**24
_TWO_BY_PI: Final = float.fromhex("0x1.45f306dc9c883p-1")
# pi / 2 in three parts (Cody and Waite): products of the first two with whole numbers below 2^24 are exact.
_HALF_PI: Final = tuple(map(float.fromhex, ("0x1.921fb54p+0", "0x1.10b461p-30", "0x1.a62633145c06ep-58")))
_SINE: Final = tuple(sign / math.factorial(k) for k, sign in zip(range(17, 1, -2), (1, -1) * 4, strict=True))
_COSINE: Final = tuple(sign / math.factorial(k) for k, sign in zip(range(18, 2, -2), (-1, 1) * 4, strict=True))

_LOG2_E: Final = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH: Final = float.fromhex("0x1.62e42feep-1")
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_LOG: Final = tuple(2 / k for k in range(21, 1, -2))
_EXP: Final = tuple(1 / math.factorial(k) for k in range(13, -1, -1))
_SQRT_HALF: Final = float.fromhex("0x1.6a09e667f3bcdp-1")
_SPLIT: Final = 134217729.0  # 2^27 + 1


def _horner(x: Number, coefficients: Sequence[float]) -> Number:
    """Evaluate a polynomial, highest power first."""
    total = x * 0.0 + coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def cosine_and_sine(angles: F64) -> tuple[F64, F64]:
    """Compute the cosine and the sine of angles in radians, of any shape.

    Within 2 units in the last place of float64 up to 2^24. Beyond, the angle counts modulo 2^24: two float32 angles
    are then more than a quarter turn apart.
    """
    x = angles - _PERIOD * np.trunc(angles * (1 / _PERIOD))
    n = np.rint(x * _TWO_BY_PI)
    r = ((x - n * _HALF_PI[0]) - n * _HALF_PI[1]) - n * _HALF_PI[2]
    z = r * r
    sine = r + (r * z) * _horner(z, _SINE)
    cosine = (1.0 - 0.5 * z) + (z * z) * _horner(z, _COSINE)
    quarter = n.astype(np.int64) & 3
    odd = quarter & 1 == 1
    turned_cosine, turned_sine = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    turned_cosine = np.where((quarter == 1) | (quarter == 2), -turned_cosine, turned_cosine)
    return turned_cosine, np.where(quarter >= 2, -turned_sine, turned_sine)


def logarithm(x: float) -> float:
    """Compute the natural logarithm of a positive finite number.

    Raises:
        ValueError: x is not positive or not finite.
    """
    high, low = _logarithm_parts(x)
    return high + low


def power(x: float, y: float) -> float:
    """Compute x^y of a positive finite number.

    Raises:
        ValueError: x is not positive or not finite, or y is not finite.
        OverflowError: the result is not finite.
    """
    high, low = _logarithm_parts(x)
    product, error = _exact_product(y, high)
    rest = error + y * low
    total = product + rest
    rest = (product - total) + rest
    n = float(round(total * _LOG2_E))
    r = ((total - n * _LN2_HIGH) - n * _LN2_LOW) + rest
    return math.ldexp(_horner(r, _EXP), int(n))


def _logarithm_parts(x: float) -> tuple[float, float]:
    """Return the natural logarithm as a sum of two numbers, the first with trailing zero bits."""
    if not 0 < x < math.inf:
        raise ValueError(f"the logarithm of {x} is not a number")
    mantissa, exponent = math.frexp(x)
    if mantissa < _SQRT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    f = mantissa - 1.0
    s = f / (mantissa + 1.0)
    z = s * s
    half = 0.5 * (f * f)
    t = z * _horner(z, _LOG)
    return exponent * _LN2_HIGH, f - (half - (s * (half + t) + exponent * _LN2_LOW))


def _exact_product(a: float, b: float) -> tuple[float, float]:
    """Return a product and its rounding error. Source: Dekker 1971, "A floating-point technique"."""
    product = a * b
    a_high, b_high = _high_half(a), _high_half(b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _high_half(x: float) -> float:
    """Return the upper 26 bits of a number."""
    scaled = _SPLIT * x
    return scaled - (scaled - x)
