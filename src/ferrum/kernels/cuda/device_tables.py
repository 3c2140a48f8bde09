"""The tables of a step on the device: one copy a step from pinned memory, and tokens that a step before it samples."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.cuda.device_memory import DeviceMemory, DeviceRows
from ferrum.kernels.cuda.driver import Event
from ferrum.kernels.cuda.ground import EXTENTS, PageRows, TableAddresses
from ferrum.kernels.cuda.launches import Launch, Launcher, blocks_for
from ferrum.kernels.interface import StepTables, row_counts

_BY_ROW: Final = ("token_ids", "positions", "row_span", "logit_rows", "hidden_rows", "given_of", "last_seen")
_COUNTS: Final = 4
_SLOTS: Final = 3
"""Steps whose tables are on their way: one more than may be submitted before the first is collected."""


class DeviceTables:
    """Memory of the tables of steps.

    Args:
        memory, launcher: of the device.
        groups: number of layer groups.

    Attributes:
        addresses: of the tables.
        generation: changes whenever addresses do.
    """

    addresses: TableAddresses

    def __init__(self, memory: DeviceMemory, launcher: Launcher, groups: int) -> None:
        self._memory, self._launcher = memory, launcher
        self.generation = 0
        self._rows, self._strides, self._given = 0, [0] * groups, 0
        self._slots: list[tuple[NDArray[np.int32], Event]] = []
        self._turn = 0
        self.reserve(1)

    def reserve(self, rows: int, strides: tuple[int, ...] = (), given: int = 0) -> None:
        """Make room for steps of a number of rows, for page rows, and for numbers of given rows. Raises MemoryError."""
        wanted = [max(pair) for pair in zip(self._strides, strides or self._strides, strict=True)]
        if rows <= self._rows and wanted == self._strides and given <= self._given:
            return
        self._memory.driver.synchronize()
        self._rows, self._given = _rounded(max(rows, self._rows)), max(given, self._given)
        self._strides = [_rounded(stride) for stride in wanted]
        size = self._rows
        self._fixed = _COUNTS + len(_BY_ROW) * size + size + 4  # numbers before the pages
        most = self._fixed + 2 * size + sum(size * stride for stride in self._strides)
        base = self._memory.take(4 * most)
        by_row = {name: base + 4 * (_COUNTS + i * size) for i, name in enumerate(_BY_ROW)}
        pages = tuple(PageRows(self._memory.take(max(4, 4 * size * stride)), stride) for stride in self._strides)
        span_rows = base + 4 * (_COUNTS + len(_BY_ROW) * size)
        values = self._memory.take(4 * self._given) if self._given else 0
        self.addresses = TableAddresses(counts=base, **by_row, span_rows=span_rows, given=values, pages=pages)
        self._slots = [self._slot(most) for _ in range(_SLOTS)]
        self.generation += 1

    def _slot(self, numbers: int) -> tuple[NDArray[np.int32], Event]:
        return self._memory.pinned(numbers, np.int32), Event.of(self._memory.driver)

    def load(self, tables: StepTables) -> None:
        """Send the tables of a step to the device."""
        width = 0 if tables.given is None else tables.given.values.size
        rows, spans = len(tables.token_ids), len(tables.span_rows) - 1
        self.reserve(max(rows, spans), tuple(page_row.shape[1] for page_row in tables.pages) or (), width)
        self._turn = (self._turn + 1) % _SLOTS
        array, sent = self._slots[self._turn]
        sent.wait()
        self._fill(array, tables)
        end, launches = self._fixed, list[Launch]()
        for each, to in zip(tables.pages, self.addresses.pages, strict=False):
            array[end : end + each.size] = each.reshape(-1)
            launches.append(self._spread(end, each.shape, to))
            end += each.size
        for carried in tables.carried:
            if isinstance(carried.step.tokens, DeviceRows):
                count = len(carried.rows)
                array[end : end + count], array[end + count : end + 2 * count] = carried.rows, carried.spans
                launches.append(self._carry(end, count, carried.step.tokens))
                end += 2 * count
        driver = self._memory.driver
        driver.call("cuMemcpyHtoDAsync_v2", self.addresses.counts, array.ctypes.data, 4 * end, driver.stream)
        sent.record()
        if tables.given is not None:
            self._memory.upload(np.ascontiguousarray(tables.given.values, np.float32), self.addresses.given)
        self._launcher.run(launches)

    def _fill(self, array: NDArray[np.int32], tables: StepTables) -> None:
        """Write everything but pages to pinned memory."""
        counts, bounds = row_counts(tables), tables.span_rows
        array[:_COUNTS] = [counts[extent] for extent in EXTENTS]
        token_ids = tables.token_ids
        for carried in tables.carried:
            if not isinstance(carried.step.tokens, DeviceRows):  # the host has them
                token_ids = token_ids.copy()
                token_ids[carried.rows] = carried.step.tokens.ravel()[carried.spans]
        given_of = np.full(len(token_ids), -1, np.int32)
        if tables.given is not None:
            given_of[tables.given.rows] = np.arange(len(tables.given.rows))
        row_span = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
        parts: tuple[NDArray[Any], ...] = (
            token_ids,
            tables.positions,
            row_span,
            tables.logit_rows,
            tables.hidden_rows,
            given_of,
            tables.positions if tables.last_seen is None else tables.last_seen,
            bounds,
        )
        for index, part in enumerate(parts):
            begin = _COUNTS + index * self._rows
            array[begin : begin + len(part)] = part

    def _spread(self, at: int, shape: tuple[int, ...], to: PageRows) -> Launch:
        """Return the launch that moves page rows of one width to rows of another."""
        grid = blocks_for(shape[0] * shape[1], 256), 1, 1
        return Launch("step", "spread_pages", grid, (self._at(at), to.address, *shape, to.stride))

    def _carry(self, at: int, count: int, tokens: DeviceRows) -> Launch:
        """Return the launch that fills in carried tokens. A token of -1 is one of a span that failed: any number."""
        grid = blocks_for(count, 256), 1, 1
        values = self._at(at), self._at(at + count), tokens.address, self.addresses.token_ids, count
        return Launch("step", "carry_tokens", grid, values)

    def _at(self, number: int) -> int:
        return self.addresses.counts + 4 * number


def _rounded(count: int) -> int:
    """Return a multiple of 4, so that every table begins on 16 bytes."""
    return -(-count // 4) * 4
