"""Every operation on the emulated CUDA device has the known answers of the self-check, in any order of warps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from emulated_cuda import EmulatedDriver, emulated_kernels
from ferrum.core.errors import Unsupported
from ferrum.kernels.cuda.cuda_kernels import CudaKernels
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.runtime.known_answers import answers, hash_of
from ferrum.runtime.self_check import TABLE

KNOWN = json.loads(TABLE.read_text())["answers"]
REFUSED = (
    *("adapters", "adapters of heads and experts", "norms of adapters", "states"),
    *("attention among all rows", "places and added rows"),
)

SMOKE = (
    "products of bfloat16",
    "products of q8_0",
    "products of q4_k",
    "attention over bfloat16",
    "attention over int8",
)
"""Those that `make test` checks; with the operations that are quick."""
QUICK = ("norms", "sums and centred norms", "rotation", "selection of rows", "activations", "experts by softmax (0)")

REPRESENTATIVE = tuple(
    name
    for name in KNOWN
    if name not in REFUSED
    and not name.startswith("quantisation")
    and name.removeprefix("products of ") not in {*BLOCK_FORMATS} - {"q8_0", "q4_k", "q6_k", "iq2_xs", "nf4", "fp8"}
)
"""One of each kernel: products of most formats differ in what a lane reads, and not in what threads exchange."""
ORDERS = 200


@cache
def kernels() -> CudaKernels:
    return emulated_kernels()


@cache
def checks() -> dict[str, Callable[[], Sequence[Any]]]:
    return dict(answers(kernels()))


def answer(name: str) -> str:
    with np.errstate(all="ignore"):
        return hash_of([kernels().host(array) for array in checks()[name]()])


@pytest.mark.parametrize("name", SMOKE)
def test_an_operation_has_the_known_answer(name: str) -> None:
    assert answer(name) == KNOWN[name]


@pytest.mark.cuda
@pytest.mark.parametrize("name", [name for name in KNOWN if name not in (*SMOKE, *REFUSED)])
def test_every_operation_has_the_known_answer(name: str) -> None:
    assert answer(name) == KNOWN[name]


@pytest.mark.parametrize("name", REFUSED)
def test_other_operations_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="cuda does not compute"):
        answer(name)


@pytest.mark.cuda
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_no_order_of_warps_changes_an_answer(name: str) -> None:
    driver = kernels().driver
    assert isinstance(driver, EmulatedDriver)
    for seed in range(ORDERS):
        driver.seed(seed)
        assert answer(name) == KNOWN[name], seed
