"""The code that NVRTC makes of the CUDA kernels: every fused operation is named, and no kernel grows unseen."""

from __future__ import annotations

import pytest

from cuda_code import fused_operations, modules, resources, table
from ferrum.core.errors import Unsupported

pytestmark = pytest.mark.cuda

REGISTERS = 255
SHARED = 48 << 10


@pytest.fixture(autouse=True, scope="module")
def nvrtc() -> None:
    try:
        fused_operations("step")
    except Unsupported as error:
        pytest.skip(f"no code for devices is compiled: {error}")


@pytest.mark.parametrize("module", modules())
def test_every_fused_operation_is_a_named_one(module: str) -> None:
    assert fused_operations(module, "--define-macro=FERRUM_WITHOUT_FUSED") == []


def test_contraction_would_show() -> None:
    assert fused_operations("rows", "--define-macro=FERRUM_WITHOUT_FUSED", "--fmad=true")


@pytest.mark.parametrize("module", modules())
def test_no_kernel_takes_more_of_a_processor_than_the_table_says(module: str) -> None:
    for kernel, used in resources(module).items():
        known = table()[module, kernel]
        assert used.spills == 0, kernel
        assert used.registers <= known.registers <= REGISTERS, kernel
        assert used.shared <= known.shared <= SHARED, kernel
