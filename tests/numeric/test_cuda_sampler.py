"""Draws on the emulated CUDA device are those of the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from emulated_cuda import emulated_kernels
from ferrum.kernels.cpu.library import load, tiers
from ferrum.kernels.cpu.native_kernels import NativeRowSampler
from ferrum.kernels.cuda.cuda_kernels import CudaKernels
from ferrum.kernels.cuda.device_memory import DeviceRows
from ferrum.kernels.cuda.row_sampler import CudaRowSampler
from ferrum.kernels.services import Draw, Question

TEMPERATURES = (0.0, 1.0, 0.7, 1e-3, 50.0, 1e-30, 1e30)


@pytest.fixture(scope="module")
def kernels() -> CudaKernels:
    return emulated_kernels()


@pytest.fixture(scope="module")
def host() -> NativeRowSampler:
    library = load()
    return NativeRowSampler(library, library.Runtime(tiers()[0], 1))


def draws(logits: np.ndarray) -> list[Draw]:
    """Return draws from rows, with other temperatures and keys for each."""
    return [
        Draw(row, TEMPERATURES[i % len(TEMPERATURES)], 0, 1.0, 0.0, (i * 0x9E3779B97F4A7C15) % 2**64, 3 * i, i % 4)
        for i, row in enumerate(logits)
    ]


def assert_same(kernels: CudaKernels, host: NativeRowSampler, rows: list[Draw]) -> None:
    on_device = DeviceRows.of(kernels.memory, np.stack([each.logits for each in rows]))
    sampler = CudaRowSampler(kernels.memory, kernels.launcher, kernels.ground, host)
    moved = [each._replace(logits=on_device[i]) for i, each in enumerate(rows)]
    assert list(sampler.draw(moved)) == list(host.draw(rows))


@pytest.mark.parametrize("size", [1, 31, 8192, 20001])
def test_draws_equal_those_of_the_host(kernels: CudaKernels, host: NativeRowSampler, size: int) -> None:
    logits = np.random.default_rng(size).standard_normal((14, size)).astype(np.float32)
    assert_same(kernels, host, draws(4 * logits))
    assert_same(kernels, host, draws(np.rint(logits)))  # with equal logits


def test_forbidden_and_broken_rows_equal_those_of_the_host(kernels: CudaKernels, host: NativeRowSampler) -> None:
    logits = np.random.default_rng(0).standard_normal((14, 9000)).astype(np.float32)
    logits[:, ::3] = -np.inf
    logits[2:4] = -np.inf
    logits[2:4, 8500] = 1.0
    logits[4:6], logits[7:9, 8600], logits[9:11, 5] = -np.inf, np.nan, np.inf
    assert_same(kernels, host, draws(logits))


def test_rows_with_other_rules_and_edited_rows_go_to_the_host(kernels: CudaKernels, host: NativeRowSampler) -> None:
    logits = np.random.default_rng(1).standard_normal((6, 500)).astype(np.float32)
    rows = draws(logits)
    rows[1:4] = [rows[1]._replace(top_k=3), rows[2]._replace(top_p=0.5), rows[3]._replace(min_p=0.1)]
    assert_same(kernels, host, rows)
    sampler = CudaRowSampler(kernels.memory, kernels.launcher, kernels.ground, host)
    assert list(sampler.draw(rows)) == list(host.draw(rows))
    on_device = DeviceRows.of(kernels.memory, logits)
    (found,), (expected,) = (
        each.standings([Question(row, 7, 3)]) for each, row in ((sampler, on_device[2]), (host, logits[2]))
    )
    assert found[:4] == expected[:4]
    assert np.array_equal(found.best, expected.best)


@pytest.mark.cuda
def test_no_order_of_warps_changes_a_draw(kernels: CudaKernels, host: NativeRowSampler) -> None:
    logits = np.random.default_rng(2).standard_normal((7, 9000)).astype(np.float32)
    for seed in range(100):
        kernels.driver.seed(seed)
        assert_same(kernels, host, draws(np.rint(2 * logits)))
