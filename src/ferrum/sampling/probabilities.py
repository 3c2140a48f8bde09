"""Probability mass as integers, the order of tokens by logits, and log-probabilities.

The exponential and the mass use IEEE operations on single elements and integer bit operations, so C++ without
contraction gives the same bits. A sum over the vocabulary is a sum of integers, which is exact in any order, vector
width and number of threads.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import NonFiniteLogits
from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import TokenLogprobs
from ferrum.kernels.reference.reference_math import EXP, LN2_HIGH, LN2_LOW, LOG2_E, log
from ferrum.kernels.services import Standing

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


# ---- The order of tokens: greater logits first, then lower ids. These functions do not sort the whole vocabulary ----


def top(logits: F32, count: int) -> Int64:
    """Return the indices of the first `count` of f32 [V] (at most V), best first."""
    size = logits.size
    if count >= size:
        return np.argsort(-logits, kind="stable")
    if count <= 0:
        return np.empty(0, np.int64)
    boundary = np.partition(logits, size - count)[size - count]
    above = np.flatnonzero(logits > boundary)
    level = np.flatnonzero(logits == boundary)[: count - above.size]
    return np.concatenate([above[np.argsort(-logits[above], kind="stable")], level])


def rank(logits: F32, token: int) -> int:
    """Return the rank of the token, 1 for the most likely."""
    greater = np.count_nonzero(logits > logits[token])
    return 1 + int(greater) + int(np.count_nonzero(logits[:token] == logits[token]))


# ---- Log-probabilities of a few tokens per row: the log-softmax of the raw logits, before any rule ----
#
# Results keep no array of the size of a row, so memory is proportional to the reported tokens.


@np.errstate(over="ignore")
def token_logprobs(logits: F32, token: int, count: int) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the `count` most likely tokens (or ALL_TOKENS) of a row f32 [V].

    Raises:
        NonFiniteLogits: as `probability_mass.greatest`.
    """
    peak = greatest(logits)
    best = top(logits, logits.size if count == ALL_TOKENS else count)
    normaliser = log_total(mass(logits - peak))
    return report(token, Standing(peak, normaliser, rank(logits, token), logits[token], best, logits[best]))


@np.errstate(over="ignore")
def report(token: int, found: Standing) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the best tokens."""
    values = (found.best_logits - found.peak) - found.normaliser
    return TokenLogprobs(
        token=token,
        logprob=float((found.logit - found.peak) - found.normaliser),
        rank=found.rank,
        top=tuple(zip(found.best.tolist(), values.tolist(), strict=True)),
    )
