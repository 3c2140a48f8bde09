"""Lets device="cuda" be the emulated device of tests in this process."""

from __future__ import annotations

import ferrum.kernels.cuda.driver
import ferrum.runtime.backend
from emulated_cuda import EmulatedDriver, EmulatedImages, driver_library
from ferrum.kernels.cuda.cuda_kernels import Platform


def use_emulated_device() -> None:
    """Open the emulated device from now on."""
    ferrum.kernels.cuda.driver.default_library = lambda: str(driver_library())
    ferrum.runtime.backend.open_platform = lambda ordinal: Platform(EmulatedDriver(ordinal), EmulatedImages())
