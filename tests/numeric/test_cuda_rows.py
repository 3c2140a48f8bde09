"""Row operations on the emulated CUDA device: the bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_twin import CudaTwin
from ferrum.kernels.op_attributes import SILU, Activation
from native_twin import normal, tables_of

EPS = 1e-6
SCALES = np.float32(2.0) ** np.array([0, 60, 3, -127, 125, 1], np.float32)


def rows(rng: np.random.Generator, columns: int) -> np.ndarray:
    """Return ordinary, huge and tiny rows, some numbers of which are not finite."""
    x = normal(rng, 6, columns) * SCALES[:, None]
    x[2, 0], x[-1, -1] = np.inf, np.nan
    return x


@pytest.fixture(scope="module")
def twin():
    return CudaTwin()


@pytest.mark.parametrize("columns", [1, 40, 200, 1003])
def test_norms_equal_the_reference(twin, columns):
    rng = np.random.default_rng(columns)
    x, y, weight, bias = rows(rng, columns), rows(rng, columns)[::-1].copy(), *normal(rng, 2, columns)
    twin.same("norm", x, twin.vector(weight), EPS)
    twin.same("norm", x[:1], twin.vector(weight), EPS, twin.vector(bias), True)
    twin.same("add_norm", x, y, twin.vector(weight), EPS)
    twin.same("add_norm", x, y, twin.vector(weight), EPS, twin.vector(bias), True, 0.22)


def test_norms_of_rows_beyond_shared_memory_equal_the_reference(twin):
    rng = np.random.default_rng(1)
    x, y, weight = *(normal(rng, 2, 16500) for _ in range(2)), normal(rng, 16500)
    for centred in (False, True):
        twin.same("norm", x, twin.vector(weight), EPS, None, centred)
        twin.same("add_norm", x, y, twin.vector(weight), EPS, None, centred, 0.3)


@pytest.mark.parametrize("columns", [1, 300])
def test_sums_and_products_of_rows_equal_the_reference(twin, columns):
    rng = np.random.default_rng(columns)
    x, y, gate = rows(rng, columns), rows(rng, columns)[::-1].copy(), 20 * normal(rng, 6, 1)
    twin.same("add", x, y)
    twin.same("add", x, y, 0.22, 0.3)
    twin.same("add", x, y, gate=gate)
    twin.same("multiply", x, y)


def test_activations_equal_the_reference(twin):
    rng = np.random.default_rng(0)
    x, y = (np.concatenate([rows(rng, 70), 8 * normal(rng, 3, 70)]) for _ in range(2))
    for activation in (
        SILU, Activation("silu", 1.7, 0.75), Activation("gelu"), Activation("gelu_tanh"), Activation("relu2"),
        Activation("sigmoid"),
    ):  # fmt: skip
        twin.same("activate", x, activation)
        twin.same("gate", x, y, activation)
    for scale, softcap in ((1.0, None), (0.5, None), (2.0, 3.0)):
        twin.same("scale_logits", x, scale, softcap)


def test_selected_rows_equal_the_reference(twin):
    rng = np.random.default_rng(0)
    x = normal(rng, 13, 300)
    twin.begin(tables_of(rng, [(0, 3), (5, 2), (0, 8)], (), logit_rows=(0, 5, 12), hidden_rows=(2,)))
    twin.same("gather", x)
    twin.same("gather_hidden", x)
    x[4, 9], x[12, 299] = np.nan, -np.inf
    assert twin.same("finite", x)[0].ravel().tolist() == [True, False, False]


@pytest.mark.parametrize("columns", [1, 1000, 20000])
def test_best_tokens_are_the_lowest_of_the_greatest(twin, columns):
    rng = np.random.default_rng(columns)
    logits = np.rint(2 * normal(rng, 11, columns))
    logits[1], logits[2], logits[3, -1], logits[4, 0] = 0, np.float32(-3e38), np.nan, np.inf
    logits[5, columns // 2] = -np.inf
    logits[6, ::2] = -0.0
    logits[7, -1] = 100
    twin.same("best", logits)
