"""Everything that sequences store, sized: the layer groups of the KV pool, and the slots of states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ferrum.cache.page_table import PageTable
from ferrum.cache.pool import PageGroup, capacity_tokens
from ferrum.cache.state_slots import StateSlots
from ferrum.core.kv_shape import KvShape
from ferrum.core.memory_plan import PoolPart, StatePart, longest_sequence, size
from ferrum.core.state_shape import StateShape
from ferrum.kernels.interface import Kernels, PoolGroup, StatePool
from ferrum.models.decoder import Inventory
from ferrum.runtime.memory import PoolLimits, free_memory, memory_for, pool_groups, pool_parts, sized_for_states

_ADDRESS_SPACE = 1 << 47
"""Bytes that a process can address (x86-64); larger pools are refused before sizes overflow 64 bits."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """What sequences store.

    Attributes:
        kv_layers, state_layers: what layers store per token and per sequence, by group.
        format: of keys and values.
        groups: the layer groups, sized.
        parts: the same as the memory plan shows them.
        states: the slots of states; None if no layer has one.
        limits: the sizes that the pool supports.
        ranks: that each have a pool of these sizes; the groups and parts are those of the first.
    """

    kv_layers: tuple[KvShape, ...]
    state_layers: tuple[StateShape, ...]
    format: str
    groups: tuple[PoolGroup, ...]
    parts: tuple[PoolPart, ...]
    states: StatePool | None
    limits: PoolLimits
    ranks: int = 1

    @property
    def longest(self) -> int:
        """Tokens that one sequence can have."""
        return longest_sequence(self.parts, self.limits.max_sequence_length)

    @property
    def capacity(self) -> int:
        """Tokens that the pool holds; without layer groups nothing but the sequences limits them."""
        return capacity_tokens(self._pages(self.groups)) if self.groups else self._unpaged

    @property
    def state_part(self) -> StatePart | None:
        """The slots as the memory plan shows them."""
        if self.states is None:
            return None
        return StatePart(
            num_slots=self.states.num_slots,
            per_sequence=self.limits.slots_per_sequence,
            slot_bytes=self.states.slot_bytes,
            snapshots=self.limits.snapshots,
        )

    def table(self) -> PageTable:
        """Return the page table over this pool, without sequences."""
        slots = None
        if self.states is not None:
            slots = StateSlots(self.states.num_slots, self.limits.slots_per_sequence, self.states.slot_bytes)
        groups, most = self._pages(self.groups), self.limits.max_draft
        return PageTable(groups, max_draft=most, states=slots, unpaged=self._unpaged)

    def allocate(self, kernels: Kernels) -> None:
        """Allocate the pool. Raises CapacityError."""
        nbytes = sum(group.num_pages * kernels.planned_page_bytes(group) for group in self.groups)
        nbytes += 0 if self.states is None else self.states.num_slots * self.states.slot_bytes
        options = "kv_capacity" if self.states is None else "kv_capacity, max_batch_size"
        with memory_for(f"the {size(nbytes)} of the KV pool ({options})"):
            free = kernels.device_memory()
            if nbytes * self.ranks > min(_ADDRESS_SPACE, free_memory() if free is None else free):
                reasons = [] if free is None else [f"{size(free)} of device memory are free on {kernels.device}"]
                raise MemoryError(*reasons)
            kernels.allocate(self.groups, self.states)

    def of_rank(self, asks: Inventory) -> PoolSizes:
        """Return the pool of another rank: the same pages, of the heads that it keeps."""
        pairs = zip(self.groups, asks.own_layers, strict=True)
        groups = tuple(replace(group, num_kv_heads=kv.num_heads) for group, kv in pairs)
        states = None if self.states is None else replace(self.states, shapes=asks.own_states)
        return replace(self, groups=groups, states=states)

    def without_pages(self) -> PoolSizes:
        """Return a pool of the same groups that takes no memory, for a model that only is planned."""
        groups = tuple(replace(group, num_pages=0) for group in self.groups)
        return replace(self, groups=groups, states=None if self.states is None else replace(self.states, num_slots=0))

    @property
    def _unpaged(self) -> int:
        return self.limits.max_batch_size * self.limits.max_sequence_length

    def _pages(self, groups: Sequence[PoolGroup]) -> list[PageGroup]:
        """Return groups as the page table knows them."""
        pairs = zip(groups, self.kv_layers, strict=True)
        return [PageGroup(group.name, group.num_pages, group.page_size, kv.window) for group, kv in pairs]


def pool_sizes(asks: Inventory, format: str, limits: PoolLimits, page_bytes: Callable[[PoolGroup], int]) -> PoolSizes:
    """Return the pool of a model, sized.

    Args:
        asks: what its layers store.
        format: of keys and values.
        limits: the sizes to support.
        page_bytes: returns the bytes of a page of a group (`Kernels.planned_page_bytes`).

    Raises:
        ConfigError: not even one page fits.
    """
    states = None
    if asks.state_layers:
        slot = StatePool(1, asks.own_states, limits.max_draft + 1)
        limits = sized_for_states(slot.slot_bytes, limits)
        states = replace(slot, num_slots=limits.max_batch_size * limits.slots_per_sequence + limits.snapshots)
    groups = pool_groups(asks.own_layers, format, limits, page_bytes)
    parts = pool_parts(groups, asks.own_layers, limits, page_bytes)
    return PoolSizes(asks.kv_layers, asks.state_layers, format, groups, parts, states, limits, asks.ranks.count)
