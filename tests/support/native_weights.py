"""Matrices of every format and input rows for the tests of native products."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ferrum.kernels.interface import Weight
from ferrum.quant.dense import DenseWeight
from ferrum.quant.formats import QUANTIZERS
from ferrum.quant.scale_groups import GROUPS
from native_twin import normal

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
INTEGERS = tuple(f"{name}/{group}" for name in QUANTIZERS for group in GROUPS)


def dense(rng, outputs, inputs, dtype) -> DenseWeight:
    return DenseWeight((normal(rng, outputs, inputs) / np.sqrt(inputs)).astype(dtype))


def weight_of(rng, outputs, inputs, format) -> Weight:
    """Return a weight of any format: a float dtype, or a quantiser with a group size."""
    if format in INTEGERS:
        name, group = format.split("/")
        return QUANTIZERS[name](normal(rng, outputs, inputs) / np.sqrt(inputs), int(group))
    return dense(rng, outputs, inputs, format)


def wild(rng, rows, inputs) -> np.ndarray:
    """Return rows of very different magnitudes, with zeros and a block of zeros."""
    x = normal(rng, rows, inputs) * np.exp(8 * rng.standard_normal((rows, 1))).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = 0
    x[:, : inputs // 3 : 2] *= np.float32(1e-20)
    x[rows // 2 :, 128:256] = 0
    return x


def bound(x: np.ndarray, weight: DenseWeight) -> np.ndarray:
    """Return how much two orders of summing K terms may differ: K ulp of the magnitudes (Higham 2002, section 4.2).

    bfloat16 pairs are summed in hardware, subnormal terms flushed: within the same bound. Inputs round alike.
    """
    magnitudes = np.abs(x).astype(np.float64) @ np.abs(weight.dequantize()).astype(np.float64).T
    return magnitudes * weight.shape[1] * 2.0**-23 + 1e-30
