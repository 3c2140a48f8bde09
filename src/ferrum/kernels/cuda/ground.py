"""What lowerings refer to: the step's tables, the KV pool, and scratch memory, all at fixed addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ferrum.kernels.cuda.device_memory import DeviceMemory
from ferrum.kernels.interface import PoolGroup
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.reference.page_layout import KEY_SIDE, PageLayout

EXTENTS = (Extent.ROWS, Extent.LOGITS, Extent.HIDDEN, Extent.SPANS)
"""The order of the counts of a step on the device."""


class PageRows(NamedTuple):
    """The page rows of a layer group: int32 [spans, stride] at an address."""

    address: int
    stride: int


class TableAddresses(NamedTuple):
    """The tables of a step on the device; see `StepTables`. All int32 but `given`.

    Attributes:
        counts: the rows of each of `EXTENTS`.
        token_ids, positions, row_span, logit_rows, hidden_rows, last_seen, span_rows: of the step; row_span is the span
            of a row.
        given_of: [rows], the row of `given` that replaces an embedding, or -1.
        given: f32 [n, H], or 0 if no step had such rows.
        pages: by layer group.
    """

    counts: int
    token_ids: int
    positions: int
    row_span: int
    logit_rows: int
    hidden_rows: int
    given_of: int
    last_seen: int
    span_rows: int
    given: int
    pages: tuple[PageRows, ...]

    def count(self, extent: Extent) -> int:
        """Return the address of the row count of an extent."""
        return self.counts + 4 * EXTENTS.index(extent)


class DevicePool(NamedTuple):
    """The pages of a layer group: [page][layer][kv head][block] of keys, key scales, values and value scales.

    The bytes of a page are those of `reference.page_layout`, so that pages move to the host and back as they are.

    Attributes:
        address: of the first page.
        group: sizes and format.
        key_padded, value_padded: numbers of a stored key and value.
        block, blocks_per_page: tokens of a block, blocks of a page.
        key_side: adjacent tokens of keys.
        key_bytes, value_bytes: of a block, scales included.
        page_bytes: of a page.
    """

    address: int
    group: PoolGroup
    key_padded: int
    value_padded: int
    block: int
    blocks_per_page: int
    key_side: int
    key_bytes: int
    value_bytes: int
    page_bytes: int

    @classmethod
    def of(cls, memory: DeviceMemory, group: PoolGroup) -> DevicePool:
        """Allocate the pages of a group, zeroed. Raises MemoryError."""
        layout = PageLayout(group)
        widths = layout.padded_keys, layout.padded_values
        key_bytes, value_bytes = (
            layout.block * (width * layout.item + layout.scale) if width else 0 for width in widths
        )
        side = KEY_SIDE if layout.block % KEY_SIDE == 0 else layout.block
        address = memory.zeros(group.num_pages * layout.nbytes) if group.num_pages else 0
        return cls(address, group, *widths, layout.block, layout.blocks, side, key_bytes, value_bytes, layout.nbytes)

    def page(self, page: int) -> int:
        """Return the address of a page."""
        assert 0 <= page < self.group.num_pages, f"page {page} of {self.group.num_pages}"
        return self.address + page * self.page_bytes


class Ground:
    """The addresses that launches have in their arguments.

    Args:
        memory: of the device.

    Attributes:
        tables: of the step.
        pools: by layer group.
        rounded: by the address of rows that the operation to lower reads or writes, where the same rows are rounded for
            products by weights in blocks. Who writes rows with such a place writes both.
    """

    tables: TableAddresses
    pools: tuple[DevicePool, ...] = ()

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self._scratch: dict[str, list[tuple[int, int]]] = {}
        self._constants: dict[str, int] = {}
        self.rounded: dict[int, int] = {}

    def allocate(self, groups: Sequence[PoolGroup]) -> None:
        """Allocate the pool. Raises MemoryError."""
        self.pools = tuple(DevicePool.of(self.memory, group) for group in groups)

    def scratch(self, name: str, nbytes: int) -> int:
        """Return the address of memory whose content lives until the next launch that uses this name."""
        for size, address in self._scratch.setdefault(name, []):
            if size >= nbytes:
                return address
        address = self.memory.take(nbytes)
        self._scratch[name].append((nbytes, address))
        return address

    def constant(self, name: str, numbers: Callable[[], NDArray[Any]]) -> int:
        """Return the address of numbers that kernels look up, which are made and uploaded once."""
        if name not in self._constants:
            self._constants[name] = self.memory.uploaded(numbers())
        return self._constants[name]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all scratch memory."""
        return sum(size for pieces in self._scratch.values() for size, _ in pieces)
