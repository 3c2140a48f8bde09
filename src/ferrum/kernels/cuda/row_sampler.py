"""Draws of tokens on a device. Rows with top-k, top-p or min-p, and edited rows, are drawn on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ferrum.kernels.cuda.device_memory import DeviceMemory, DeviceRows
from ferrum.kernels.cuda.ground import Ground
from ferrum.kernels.cuda.launches import Launch, Launcher, blocks_for
from ferrum.kernels.services import Draw, Question, RowSampler, Standing

_PART: Final = 8192
"""Tokens of a block: kPart in draws.cu."""

_REQUEST: Final = np.dtype([
    ("logits", "<u8"), ("temperature", "<f4"), ("unused", "<u4"), ("seed", "<u8"), ("position", "<u4"),
    ("choice", "<u4"),
])  # fmt: skip


class CudaRowSampler(RowSampler):
    """`RowSampler` of a device.

    Args:
        memory, launcher, ground: of the device.
        host: what draws from rows of the host.
    """

    def __init__(self, memory: DeviceMemory, launcher: Launcher, ground: Ground, host: RowSampler) -> None:
        self._memory, self._launcher, self._ground, self._host = memory, launcher, ground, host

    def held_bytes(self, vocab_size: int) -> int:
        return self._host.held_bytes(vocab_size)

    def draw(self, rows: Sequence[Draw]) -> Sequence[int]:
        self._memory.driver.enter()
        tokens = [-1] * len(rows)
        here = [i for i, each in enumerate(rows) if _is_plain(each)]
        there = [i for i, each in enumerate(rows) if not _is_plain(each)]
        if here:
            for i, token in zip(here, self._drawn([rows[i] for i in here]), strict=True):
                tokens[i] = token
        if there:
            moved = [rows[i]._replace(logits=_on_host(rows[i].logits)) for i in there]
            for i, token in zip(there, self._host.draw(moved), strict=True):
                tokens[i] = token
        return tokens

    def _drawn(self, rows: Sequence[Draw]) -> list[int]:
        """Draw from rows of the device, all of one length."""
        size, count = len(rows[0].logits), len(rows)
        parts = blocks_for(size, _PART)
        requests = np.zeros(count, _REQUEST)
        for request, row in zip(requests, rows, strict=True):
            request["logits"], request["temperature"] = row.logits.address, row.temperature
            request["seed"], request["position"], request["choice"] = row.seed, row.position, row.choice
        given, out = DeviceRows.of(self._memory, requests), DeviceRows.empty(self._memory, (count,), np.int32)
        names = ("greatest of parts", "tokens of parts", "drawn of parts", "drawn tokens of parts")
        scratch = (self._ground.scratch(name, 4 * count * parts) for name in names)
        values = given.address, *scratch, out.address, parts, size
        self._launcher.run([
            Launch("draws", "peak_parts", (parts, count, 1), values),
            Launch("draws", "draw_parts", (parts, count, 1), values),
            Launch("draws", "draw_rows", (1, count, 1), values),
        ])  # fmt: skip
        tokens: list[int] = out.host().tolist()
        return tokens

    def standings(self, questions: Sequence[Question]) -> list[Standing]:
        self._memory.driver.enter()
        return self._host.standings([each._replace(logits=_on_host(each.logits)) for each in questions])


def _is_plain(row: Draw) -> bool:
    """Report whether the device draws from a row."""
    if not isinstance(row.logits, DeviceRows):
        return False
    neutral = not 0 < row.top_k < len(row.logits) and row.top_p >= 1 and row.min_p <= 0
    return neutral or row.temperature == 0


def _on_host(logits: object) -> object:
    return logits.host() if isinstance(logits, DeviceRows) else logits
