"""Swapping: what makes room is copied while that pays, within the bytes allowed, and comes back once."""

from __future__ import annotations

import numpy as np
import pytest

from ferrum.cache.names import NamedPage
from ferrum.cache.pages import PageGroup, PageTable
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.errors import ConfigError
from ferrum.kernels.interface import PoolGroup
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime.swap import SwapKeeper

GROUP = PoolGroup("main", 4, 8, num_layers=2, num_kv_heads=1, key_dim=4, value_dim=4, format="float32")


def keeper(capacity_pages: int, recompute: float = 0.0) -> tuple[SwapKeeper, ReferenceKernels]:
    kernels = ReferenceKernels()
    kernels.allocate((GROUP,))
    size = kernels.page_bytes("main")
    for page in range(GROUP.num_pages):
        kernels.write_page("main", page, np.full(size, page, np.uint8))
    pages = PageTable([PageGroup("main", GROUP.num_pages, GROUP.page_size)])
    return SwapKeeper(pages, kernels, capacity_pages * size, lambda: recompute), kernels


def test_what_was_evicted_is_found_once_and_fills_any_page() -> None:
    swap, kernels = keeper(4)
    swap.evicted("main", NamedPage(2, b"two"))
    content = swap.find("main", b"two")
    assert content is not None and swap.find("main", b"two") is None
    swap.fill("main", 0, content)
    np.testing.assert_array_equal(kernels.read_page("main", 0), kernels.read_page("main", 2))


def test_the_buffers_hold_the_last_pages_that_fit() -> None:
    swap, _ = keeper(2)
    for page in (0, 1, 1, 2):
        swap.evicted("main", NamedPage(page, bytes([page])))
    assert [swap.find("main", bytes([page])) is not None for page in range(4)] == [False, True, True, False]
    nothing, _ = keeper(0)
    nothing.evicted("main", NamedPage(0, b"x"))
    assert nothing.find("main", b"x") is None


@pytest.mark.parametrize(("recompute", "kept"), [(1e-12, False), (1e12, True), (0.0, True)])
def test_pages_are_copied_while_that_takes_less_than_computing_them(recompute: float, kept: bool) -> None:
    swap, _ = keeper(4, recompute)
    swap.evicted("main", NamedPage(0, b"first"))
    assert swap.find("main", b"first") is not None, "one copy tells what a copy takes"
    swap.evicted("main", NamedPage(1, b"second"))
    assert (swap.find("main", b"second") is not None) is kept


def test_it_needs_the_prefix_cache() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model=ModelConfig(model="m"), prefix_cache=False, swap_gib=1)
    assert caught.value.param == "swap_gib"
