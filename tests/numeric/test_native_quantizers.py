"""Native quantisers: the bits of the numpy reference in every tier, and its refusals."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

from ferrum.core.errors import ConfigError
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.quant.backend_quantizer import quantize, quantizer_of
from ferrum.quant.block_quantizers import QUANTIZERS
from ferrum.quant.scale_search import QUICK, THOROUGH
from native_twin import TIERS, require_native


@pytest.fixture(autouse=True, scope="module")
def native_library() -> None:
    require_native()


def weights(outputs, inputs) -> np.ndarray:
    """Return normal, heavy-tailed, shifted, zero, large and very small rows."""
    rng = np.random.default_rng(inputs)
    w = rng.standard_normal((outputs, inputs)).astype(np.float32)
    w[1::7] = rng.standard_t(3, w[1::7].shape)
    w[2::7] = w[2::7] * np.float32(0.1) + np.float32(0.3)
    w[3::7] = 0
    w[4::7] *= np.float32(300)
    w[5::7] *= np.float32(1e-6)
    w[6::7, ::3] = -0.0
    w[8] *= np.float32(1e-20)
    return w


@pytest.mark.parametrize("search", [QUICK, THOROUGH], ids=["quick", "thorough"])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_panels_equal_the_reference_in_every_tier(name, search) -> None:
    quantizers = {tier: quantizer_of(NativeKernels(tier, 2), search) for tier in TIERS}
    for inputs, dtype in product((256, 200, 544), (np.float32, np.float16, ml_dtypes.bfloat16)):
        w = weights(70, inputs).astype(dtype)
        importance = np.exp(np.random.default_rng(1).standard_normal(inputs)).astype(np.float32)
        for known in (None, importance):
            theirs = quantize(name, w, known, search).panels
            for tier, quantizer in quantizers.items():
                ours = quantizer(name, w, known).panels
                assert np.array_equal(ours, theirs), (tier, inputs, dtype, known is None)


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("tier", TIERS)
def test_weights_without_scales_are_refused(tier, name) -> None:
    quantizer = quantizer_of(NativeKernels(tier, 2))
    for wrong, reason in ((np.nan, "not finite"), (-np.inf, "not finite"), (3e38, "too large"), (-3e38, "too large")):
        w = weights(70, 256)
        w[69, 130] = wrong
        with pytest.raises(ConfigError, match=reason):
            quantizer(name, w)
