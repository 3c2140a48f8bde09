"""Memory of this process: whether a model fits, how large the KV pool becomes, and what is still free.

Linux overcommits and kills processes that touch too much, so sizes are checked before anything is allocated.
"""

from __future__ import annotations

import ctypes
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ferrum.core.config import ModelConfig
from ferrum.core.control_groups import MEMBERSHIP, ROOT, memory_left, memory_with_swap
from ferrum.core.errors import CapacityError, ConfigError
from ferrum.core.kv_shape import KvShape
from ferrum.core.memory_plan import PoolPart, size
from ferrum.kernels.interface import PoolGroup
from ferrum.models.decoder import Inventory
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.parameters import PlannedParameters


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Raise CapacityError for a MemoryError in this context, whichever backend allocates."""
    try:
        yield
    except MemoryError as error:
        reason = f": {error}" if error.args else ""
        raise CapacityError(f"not enough memory for {what}{reason}") from error


def bytes_to_load(config: ModelConfig, checkpoint: TensorStore, asks: Inventory, *, on_device: bool = False) -> int:
    """Return the bytes that matrices will take once loaded; those of a packed directory stay in the file on the CPU.

    Args:
        config, checkpoint: the model, with its views.
        asks: what it asks for.
        on_device: whether they go to the memory of a device.
    """
    if checkpoint.mapped:
        return checkpoint.mapped if on_device else 0
    sized = PlannedParameters(checkpoint, config.dtype, quantize=config.quantize)
    sized.expect(asks.shapes, ("*",), asks.exact, asks.wholes)
    matrices = {name: (shape[0], shape[1]) for name, shape in asks.shapes.items() if len(shape) == 2}
    return sum(sized.matrix(name, shape, exact=name in asks.exact).nbytes for name, shape in matrices.items())


def refuse_too_large(
    config: ModelConfig, checkpoint: TensorStore, asks: Inventory, device_memory: int | None = None
) -> None:
    """Refuse weights of native kernels that do not fit in free memory. Raises CapacityError.

    Args:
        config, checkpoint, asks: as of `bytes_to_load`.
        device_memory: free bytes of the device that they go to; None: the memory of this process.
    """
    on_device = device_memory is not None
    free = free_memory() if device_memory is None else device_memory
    if 4 * checkpoint.nbytes <= free:  # the usual case: no type takes as many times the bytes of its file
        return
    nbytes = bytes_to_load(config, checkpoint, asks, on_device=on_device) * asks.ranks.count
    if nbytes > free:
        memory, where = ("device memory", f" on {config.device}") if on_device else ("memory", "")
        reason = f"{size(free)} are free{where}, {size(nbytes - free)} too little"
        raise CapacityError(f"not enough {memory} for {size(nbytes)} of weights: {reason}")


LIBRARY_BYTES: Final = 28 << 20
"""Resident bytes of numpy, the native library and a network's objects, between those of two cases.

18 to 24 MiB were measured if numpy was loaded before, else 32 to 38.
"""

_LIBRARY_ERROR: Final = 16 << 20
"""Bytes by which that may be too little."""

_KEPT_BYTES: Final = 64 << 20
"""Freed memory that glibc keeps at most (`mallopt(3)`, M_TRIM_THRESHOLD)."""


def allowance(*, allocates: bool) -> int:
    """Return the bytes that an executor may grow by beyond its plan; `allocates`: steps allocate arrays."""
    return _LIBRARY_ERROR + (_KEPT_BYTES if allocates else 0)


_SHARE: Final = 0.25
"""Fraction of the available memory that a pool without a given capacity takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """The sizes that the pool must support.

    Attributes:
        page_size: tokens per page.
        max_batch_size: sequences at once.
        full_sequences: sequences of full length that a pool without a given capacity holds.
        max_sequence_length: tokens of one.
        max_rows: tokens of one step: a window group holds them in addition to its window.
        max_draft: longest draft.
        run_ahead: steps of a sequence that may be in flight when another one is begun.
        kv_capacity: tokens that layers without a window hold; None for as many as fit.
        memory_pool_size: maximum bytes of the pool; None follows the capacity, else a share of the available memory.
        bytes_to_load: bytes of the available memory that weights will take.
        mapped: bytes of weights in mapped files, which the system counts as available.
        batch_given: whether the user has chosen `max_batch_size`; else models with states may lower it.
        most_bytes: maximum bytes of a pool that follows the available memory.
        snapshots: slots of states that no sequence needs.
        state_bytes: bytes of the pool that states take, whatever its capacity.
        device_memory: free bytes of the device that holds the pool; None: the available memory of this process.
        planning: whether the pool may be too large, so that a plan shows by how much.
        ranks: that share the memory, each with such a pool and such weights.
    """

    page_size: int
    max_batch_size: int
    full_sequences: int
    max_sequence_length: int
    max_rows: int
    max_draft: int
    kv_capacity: int | None
    run_ahead: int = 0
    memory_pool_size: int | None = None
    bytes_to_load: int = 0
    mapped: int = 0
    batch_given: bool = True
    most_bytes: int = sys.maxsize
    snapshots: int = 0
    state_bytes: int = 0
    device_memory: int | None = None
    planning: bool = False
    ranks: int = 1

    @property
    def slots_per_sequence(self) -> int:
        """Slots of states that a sequence may hold: one, and one that each of its steps in flight writes."""
        return 2 + self.run_ahead

    @property
    def budget(self) -> int:
        """Bytes that a pool without a given capacity may take."""
        if self.memory_pool_size is not None:
            return self.memory_pool_size // self.ranks
        free = available_memory() if self.device_memory is None else self.device_memory
        left = max(0, free - self.bytes_to_load * self.ranks - self.mapped)
        return min(self.most_bytes, int(left * _SHARE) // self.ranks)

    def resident(self, window: int) -> int:
        """Return the maximum tokens of one sequence in a window group; the first and the last page may be partial."""
        return min(self.max_sequence_length, window + self.max_draft + self.max_rows + 2 * self.page_size)

    def batch(self, length: int) -> int:
        """Return the tokens that `full_sequences` sequences of `length` tokens take, in whole pages."""
        return self.full_sequences * -(-length // self.page_size) * self.page_size


def pool_groups(
    kv_layers: Sequence[KvShape], format: str, limits: PoolLimits, page_bytes: Callable[[PoolGroup], int]
) -> tuple[PoolGroup, ...]:
    """Return the layer groups of the pool, sized.

    Args:
        kv_layers: what the layers of each group store.
        format: of keys and values.
        limits: the sizes to support.
        page_bytes: returns the bytes of a page of a group (`Kernels.planned_page_bytes`).

    Raises:
        ConfigError: not even one page fits.
    """
    # A capacity beyond these needs is only used if it is given: it caches prefixes.
    capacity = limits.kv_capacity or limits.batch(limits.max_sequence_length)
    if limits.kv_capacity is None or limits.memory_pool_size is not None:

        def held(pages: int) -> int:
            """Return the bytes of a pool whose groups without a window have this many pages."""
            sized = _sized_groups(kv_layers, format, limits, pages * limits.page_size)
            return sum(group.num_pages * page_bytes(group) for group in sized)

        capacity = min(capacity, _fitting(held, -(-capacity // limits.page_size), limits) * limits.page_size)
    return _sized_groups(kv_layers, format, limits, capacity)


def _sized_groups(
    kv_layers: Sequence[KvShape], format: str, limits: PoolLimits, capacity: int
) -> tuple[PoolGroup, ...]:
    """Return the groups for this capacity; groups with a window never need more than their windows."""
    sized = []
    for index, kv in enumerate(kv_layers):
        tokens = capacity if kv.window is None else min(capacity, limits.batch(limits.resident(kv.window)))
        group = PoolGroup(
            name=f"layers{index}",
            num_pages=-(-tokens // limits.page_size),
            page_size=limits.page_size,
            num_layers=kv.num_layers,
            num_kv_heads=kv.num_heads,
            key_dim=kv.key_dim,
            value_dim=kv.value_dim,
            format=format,
        )
        sized.append(group)
    return tuple(sized)


def _fitting(held: Callable[[int], int], most: int, limits: PoolLimits) -> int:
    """Return how many pages fit, at most `most`; `held` returns the bytes of a number of pages."""
    size, least = limits.budget - limits.state_bytes, held(1)
    if limits.planning and limits.memory_pool_size is None:
        size = max(size, least)
    if size < least:
        param = "kv_capacity" if limits.memory_pool_size is None else "memory_pool_size"
        states = ""
        if limits.state_bytes:
            states = f"after {limits.state_bytes} of the states of {limits.max_batch_size} sequences (max_batch_size) "
        raise ConfigError(f"{size} bytes for the KV pool {states}do not hold one page of {least} bytes", param=param)
    return bisect_right(range(1, most + 1), size, key=held)


MOST_STATEFUL: Final = 32
"""Sequences of a model with states, at most, unless the user chooses another number: each takes slots."""

MOST_SNAPSHOTS: Final = 64
"""Slots for snapshots, at most."""

_STATEFUL_BYTES: Final = 1792 << 20
"""Bytes of a pool with states that follows the available memory, at most, in addition to a quarter of the weights."""


def sized_for_states(slot_bytes: int, limits: PoolLimits) -> PoolLimits:
    """Return the limits with a batch and snapshots whose slots take at most half of the pool's budget.

    At least one sequence fits. A batch that the user has chosen stays, and gets as many snapshots as its memory allows.
    Snapshots would use any amount of memory, so the pool of a small model does not follow that of a large machine.
    """
    limits = replace(limits, most_bytes=_STATEFUL_BYTES + (limits.bytes_to_load + limits.mapped) // 4)
    per, half = limits.slots_per_sequence, limits.budget // 2 // slot_bytes
    batch = limits.max_batch_size
    if not limits.batch_given:
        batch = min(batch, MOST_STATEFUL, max(1, half // (2 * per)))
    snapshots = min(MOST_SNAPSHOTS, max(1, half - batch * per))
    slots = batch * per + snapshots
    full = min(limits.full_sequences, batch)
    return replace(
        limits, max_batch_size=batch, full_sequences=full, snapshots=snapshots, state_bytes=slots * slot_bytes
    )


def pool_part(group: PoolGroup, page_bytes: int, window: int | None, limits: PoolLimits) -> PoolPart:
    """Return a group as the memory plan shows it."""
    return PoolPart(
        name=group.name,
        num_pages=group.num_pages,
        page_size=group.page_size,
        page_bytes=page_bytes,
        resident_tokens=None if window is None else limits.resident(window),
    )


def pool_parts(
    groups: Sequence[PoolGroup],
    kv_layers: Sequence[KvShape],
    limits: PoolLimits,
    page_bytes: Callable[[PoolGroup], int],
) -> tuple[PoolPart, ...]:
    """Return the groups of `pool_groups` as the memory plan shows them."""
    pairs = zip(groups, kv_layers, strict=True)
    return tuple(pool_part(group, page_bytes(group), kv.window, limits) for group, kv in pairs)


def return_free_memory() -> None:
    """Return memory freed by loading to the system: glibc keeps up to 64 MiB of it (`mallopt(3)`)."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping, within the machine and the control groups."""
    machine, groups = _machine_memory(), memory_left(MEMBERSHIP, ROOT)
    return machine if groups is None else min(machine, groups)


def free_memory() -> int:
    """Return the bytes that can be allocated at all: those available, and the swap left to this process."""
    return memory_with_swap(available_memory(), _meminfo("SwapFree") or 0, MEMBERSHIP, ROOT)


def _machine_memory() -> int:
    """Return the kernel's estimate of available memory, or the physical memory without one."""
    available = _meminfo("MemAvailable")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if available is None else available


def _meminfo(name: str) -> int | None:
    """Return the bytes of an entry of `/proc/meminfo`, if it exists."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
