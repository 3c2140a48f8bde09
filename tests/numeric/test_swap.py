"""Swapping: what makes room is copied while that pays, within the bytes allowed, and comes back once."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from ferrum.cache.page_hashes import NamedPage
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.tiered_restore import Wanted
from ferrum.core.config import EngineConfig, ModelConfig
from ferrum.core.errors import ConfigError
from ferrum.kernels.interface import Bytes, PoolGroup
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime.kv_tiers.swap import AGAIN, SwapTier

GROUP = PoolGroup("main", 4, 8, num_layers=2, num_kv_heads=1, key_dim=4, value_dim=4, format="float32")


class Clock:
    """Stands still but for what is due: the seconds of the next copies."""

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
    """Whether a page of that name comes back, to the place of another one."""
    future = swap.fetch([Wanted("main", page, name, needed=True)])
    assert future.done()
    (there,) = future.result()
    return there


def test_what_was_evicted_is_found_once_and_fills_any_page() -> None:
    swap, kernels = keeper(4)
    swap.evicted("main", NamedPage(2, b"two"))
    assert brought(swap, b"two") and not brought(swap, b"two", page=1)
    np.testing.assert_array_equal(kernels.read_page("main", 0), kernels.read_page("main", 2))


def test_the_buffers_hold_the_last_pages_that_fit() -> None:
    swap, _ = keeper(2)
    for page in (0, 1, 1, 2):
        swap.evicted("main", NamedPage(page, bytes([page])))
    assert [brought(swap, bytes([page])) for page in range(4)] == [False, True, True, False]
    nothing, _ = keeper(0)
    nothing.evicted("main", NamedPage(0, b"x"))
    assert not brought(nothing, b"x")


def test_a_page_that_finds_no_memory_for_a_buffer_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    swap, kernels = keeper(4)

    def no_memory(group: str, page: int) -> Bytes:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(kernels, "read_page", no_memory)
        swap.evicted("main", NamedPage(1, b"one"))
    swap.evicted("main", NamedPage(2, b"two"))
    assert not brought(swap, b"one") and brought(swap, b"two")


@pytest.mark.parametrize(("recompute", "kept"), [(1e-12, False), (1e12, True), (0.0, True)])
def test_pages_are_copied_while_that_takes_less_than_computing_them(recompute: float, kept: bool) -> None:
    swap, _ = keeper(4, recompute)
    swap.evicted("main", NamedPage(0, b"first"))
    assert brought(swap, b"first"), "one copy tells what a copy takes"
    swap.evicted("main", NamedPage(1, b"second"))
    assert brought(swap, b"second") is kept


def test_one_slow_copy_ends_nothing_and_slow_ones_are_not_for_ever() -> None:
    clock = Clock()
    swap, _ = keeper(4, recompute=2.5, clock=clock)

    def is_kept(seconds: float) -> bool:
        clock.copies = [seconds]
        swap.evicted("main", NamedPage(0, b"page"))
        return brought(swap, b"page")

    assert all(is_kept(seconds) for seconds in (1, 1, 100, 1))
    assert [is_kept(2) for _ in range(4)] == [True] * 2 + [False] * 2, "then most of them were slow"
    tried = [is_kept(1) for _ in range(2 * AGAIN)]
    assert not any(tried[: AGAIN - 3]), "half of them were slow"
    assert all(tried[AGAIN - 3 :]), "one in a while is copied all the same, and tells that they are fast again"


def test_pages_that_nobody_asks_for_again_are_not_copied_for_long() -> None:
    clock = Clock()
    swap, _ = keeper(1000, recompute=20.0, clock=clock)

    def leave(number: int) -> None:
        clock.copies = [1.0]
        swap.evicted("main", NamedPage(0, b"%d" % number))

    for number in range(100):
        leave(number)
    found = [brought(swap, b"%d" % number) for number in range(100)]
    assert found[:18] == [True] * 18 and sum(found[18:]) == 1, "one in 19 has to come back, and none has; one is tried"
    leave(100)
    assert brought(swap, b"100"), "all but that one were asked for by now"


def test_pages_that_come_and_go_by_turns_are_copied_each_time() -> None:
    clock = Clock()
    swap, _ = keeper(1000, recompute=20.0, clock=clock)
    for _ in range(5):
        found = []
        for number in range(100):
            found.append(brought(swap, b"%d" % number))
            clock.copies = [1.0]
            swap.evicted("main", NamedPage(0, b"%d" % number))
    assert all(found), "each of them is asked for again"


def test_it_needs_the_prefix_cache() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model=ModelConfig(model="m"), prefix_cache=False, swap_gib=1)
    assert caught.value.param == "swap_gib"
