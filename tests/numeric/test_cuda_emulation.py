"""The emulated device finds the faults that a real one may hide: races, late copies, accesses outside, contraction."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from emulated_cuda import EmulatedDriver, EmulatedImages
from ferrum.kernels.cuda.device_memory import DeviceMemory, DeviceRows
from ferrum.kernels.cuda.driver import DeviceError
from ferrum.kernels.cuda.launches import Launch, Launcher

FOLDER = Path(__file__).parents[1] / "data" / "cuda"
BLOCKS = 2
ORDERS = 5
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g")


def run(
    kernel: str, seed: int, flags: tuple[str, ...] = (), *, sanitized: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Run a kernel of planted.cu; return its input and its output [blocks, 256]."""
    driver = EmulatedDriver(flags=SANITIZED if sanitized else ())
    driver.seed(seed)
    memory = DeviceMemory(driver)
    x = np.random.default_rng(seed).standard_normal((BLOCKS, 256)).astype(np.float32)
    given, made = DeviceRows.of(memory, x), DeviceRows.empty(memory, x.shape)
    launcher = Launcher(driver, EmulatedImages((*flags, *(SANITIZED if sanitized else ())), FOLDER))
    launcher.run([Launch("planted", kernel, (BLOCKS, 1, 1), (given.address, made.address))])
    return x, made.host()


@pytest.mark.parametrize("kernel", ["careful", "late_copies"])
def test_a_kernel_without_faults_gives_the_same_in_every_order(kernel: str) -> None:
    for seed in range(ORDERS):
        x, y = run(kernel, seed)
        assert np.array_equal(y, x[:, ::-1])


@pytest.mark.parametrize("kernel", ["without_barrier", "fence_after_barrier"])
def test_a_missing_barrier_or_fence_shows_in_every_order(kernel: str) -> None:
    for seed in range(ORDERS):
        x, y = run(kernel, seed)
        assert not np.array_equal(y, x[:, ::-1])


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [("behind_shared", "behind an array of shared memory"), ("some_lanes", "some lanes of a warp exchange")],
)
def test_a_fault_within_a_block_ends_the_launch_with_its_reason(kernel: str, reason: str) -> None:
    code = f"import test_cuda_emulation as t; t.run({kernel!r}, 0)"  # the device is lost for its process
    done = _process(code)
    assert done.returncode != 0
    assert reason in done.stderr


def test_contraction_changes_bits() -> None:
    x, plain = run("contracted", 0)
    _, fused = run("contracted", 0, ("-O2", "-ffp-contract=fast", "-mfma"))
    assert np.array_equal(plain, x * x - x)
    assert not np.array_equal(plain, fused)


@pytest.mark.cuda
def test_a_read_behind_an_allocation_is_found_by_the_sanitizer() -> None:
    sanitizer = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    settings = {"LD_PRELOAD": sanitizer.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    found = {
        kernel: _process(f"import test_cuda_emulation as t; t.run({kernel!r}, 0, sanitized=True)", settings)
        for kernel in ("careful", "behind_input")
    }
    assert found["careful"].returncode == 0, found["careful"].stderr
    assert "heap-buffer-overflow" in found["behind_input"].stderr


def test_work_on_the_stream_is_done_when_the_host_waits_and_not_before() -> None:
    driver = EmulatedDriver()
    memory = DeviceMemory(driver)
    rows = DeviceRows.empty(memory, (1, 4))
    data = np.arange(4, dtype=np.float32)
    driver.call("cuMemcpyHtoDAsync_v2", rows.address, data.ctypes.data, data.nbytes, driver.stream)
    data[0] = 9  # too early
    assert rows.host().tolist() == [[9, 1, 2, 3]]


def test_a_launch_with_an_argument_of_another_size_is_refused() -> None:
    driver = EmulatedDriver()
    launcher = Launcher(driver, EmulatedImages((), FOLDER))
    with pytest.raises(DeviceError, match="another size"):
        launcher.run([Launch("planted", "careful", (1, 1, 1), (1, 2, 3))])


def _process(code: str, settings: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(__file__).parent), str(FOLDER.parents[1] / "support")])
    environment = {**os.environ, "PYTHONPATH": paths, **(settings or {})}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
