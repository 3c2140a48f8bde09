"""The swap tier: evicted pages are copied while that pays, within the limit, and restored once."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.pool import HashedPage
from ferrum.cache.tiered_restore import WantedPage
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.errors import ConfigError
from ferrum.kernels.interface import PoolGroup
from ferrum.kernels.operations import Bytes
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime.kv_tiers.swap import AGAIN, SwapTier

GROUP = PoolGroup("main", 4, 8, num_layers=2, num_kv_heads=1, key_dim=4, value_dim=4, format="float32")


class Clock:
    """A clock that advances by the given seconds of the next copies."""

    def __init__(self) -> None:
        self.now = 0.0
        self.copies: list[float] = []
        self.within = False

    def __call__(self) -> float:
        if self.within and self.copies:
            self.now += self.copies.pop(0)
        self.within = not self.within
        return self.now


def keeper(
    capacity_pages: int, recompute: float = 0.0, clock: Callable[[], float] = time.perf_counter
) -> tuple[SwapTier, ReferenceKernels]:
    kernels = ReferenceKernels()
    kernels.allocate((GROUP,))
    size = kernels.page_bytes("main")
    for page in range(GROUP.num_pages):
        kernels.write_page("main", page, np.full(size, page, np.uint8))
    pages = PageTable([PageGroup("main", GROUP.num_pages, GROUP.page_size)])
    return SwapTier(pages, kernels, capacity_pages * size, lambda: recompute, clock=clock), kernels


def brought(swap: SwapTier, name: bytes, page: int = 0) -> bool:
    """Whether a page of that name is restored to another place."""
    future = swap.fetch([WantedPage("main", page, name, needed=True)])
    assert future.done()
    (there,) = future.result()
    return there


def test_an_evicted_page_is_restored_once_to_any_place() -> None:
    swap, kernels = keeper(4)
    swap.evicted("main", HashedPage(2, b"two"))
    assert brought(swap, b"two") and not brought(swap, b"two", page=1)
    np.testing.assert_array_equal(kernels.read_page("main", 0), kernels.read_page("main", 2))


def test_the_buffers_hold_the_last_pages_that_fit() -> None:
    swap, _ = keeper(2)
    for page in (0, 1, 1, 2):
        swap.evicted("main", HashedPage(page, bytes([page])))
    assert [brought(swap, bytes([page])) for page in range(4)] == [False, True, True, False]
    nothing, _ = keeper(0)
    nothing.evicted("main", HashedPage(0, b"x"))
    assert not brought(nothing, b"x")


def test_a_failed_buffer_allocation_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    swap, kernels = keeper(4)

    def no_memory(group: str, page: int) -> Bytes:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(kernels, "read_page", no_memory)
        swap.evicted("main", HashedPage(1, b"one"))
    swap.evicted("main", HashedPage(2, b"two"))
    assert not brought(swap, b"one") and brought(swap, b"two")


@pytest.mark.parametrize(("recompute", "kept"), [(1e-12, False), (1e12, True), (0.0, True)])
def test_pages_are_copied_while_copying_is_faster_than_computing(recompute: float, kept: bool) -> None:
    swap, _ = keeper(4, recompute)
    swap.evicted("main", HashedPage(0, b"first"))
    assert brought(swap, b"first"), "one copy gives the first estimate"
    swap.evicted("main", HashedPage(1, b"second"))
    assert brought(swap, b"second") is kept


def test_copying_stops_after_many_slow_copies_and_is_retried() -> None:
    clock = Clock()
    swap, _ = keeper(4, recompute=2.5, clock=clock)

    def is_kept(seconds: float) -> bool:
        clock.copies = [seconds]
        swap.evicted("main", HashedPage(0, b"page"))
        return brought(swap, b"page")

    assert all(is_kept(seconds) for seconds in (1, 1, 100, 1))
    assert [is_kept(2) for _ in range(4)] == [True] * 2 + [False] * 2, "then most of them were slow"
    tried = [is_kept(1) for _ in range(2 * AGAIN)]
    assert not any(tried[: AGAIN - 3]), "half of them were slow"
    assert all(tried[AGAIN - 3 :]), "an occasional copy shows that copies are fast again"


def test_swapping_needs_the_prefix_cache() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model=ModelConfig(model="m"), prefix_cache=False, swap_gib=1)
    assert caught.value.param == "swap_gib"
