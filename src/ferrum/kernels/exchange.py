"""The exchange of columns between ranks, in numpy. `native/src/exchange.hpp` explains and repeats it.

All ranks share one piece of memory: a word that ends a step early, a counter of each rank, and two slots that exchanges
use in turns.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from ferrum.kernels.operations import F32, Bytes

_LINE: Final = 64
"""Bytes of each word and counter."""

_STEP_SHIFT: Final = 32
"""An exchange is step << 32 | number within the step."""

_SLOT_BYTES: Final = 4 << 20
"""Bytes of a slot, unless a row needs more: larger ones leave the caches before they are read."""

_WAIT_SECONDS: Final = 5e-5

ROUNDED: Final = 32
"""Numbers that products round together, as in `quant/block_weight.py`."""

_LEVELS: Final = 127


def memory_bytes(ranks: int, widest: int) -> int:
    """Return the bytes of the shared memory, for rows of at most `widest` columns."""
    slot = max(_SLOT_BYTES, -(-4 * widest // _LINE) * _LINE)
    return _LINE * (1 + ranks) + 2 * slot


class RankExchange(Protocol):
    """The end of one rank in the exchange of columns between ranks (`Operations.join`). Ranks share its memory."""

    def begin(self, step: int) -> None:
        """Begin a step, whose number all ranks know and increase. No rank is in an earlier step."""

    def end(self, step: int) -> None:
        """End a step and all before it on all ranks, because one has failed. Any thread may call it."""

    @property
    def ended(self) -> bool:
        """Whether the step has ended early, so that its results are undefined."""

    @property
    def bytes_read(self) -> int:
        """Bytes that this rank has read from others so far."""


class Exchange(RankExchange):
    """A `RankExchange` in numpy. Arguments as of `Kernels.share`."""

    def __init__(self, memory: Bytes, rank: int, ranks: int) -> None:
        words = memory[: _LINE * (1 + ranks)].view(np.int64).reshape(1 + ranks, -1)[:, 0]
        self._ended, self._counters = words[:1], words[1:]
        self._slots = memory[_LINE * (1 + ranks) :].reshape(2, -1)
        self._rank = rank
        self._now = 0
        self.read = 0

    @property
    def bytes_read(self) -> int:
        return self.read

    def begin(self, step: int) -> None:
        self._now = step << _STEP_SHIFT

    def end(self, step: int) -> None:
        self._ended[0] = max(int(self._ended[0]), step)

    @property
    def ended(self) -> bool:
        return int(self._ended[0]) >= self._now >> _STEP_SHIFT

    def join(self, x: F32, starts: tuple[int, ...], *, rounded: bool = False) -> F32:
        """Return the columns of all ranks [R, starts[-1]], from the own ones; see `Operations.join`."""
        out = np.empty((len(x), starts[-1]), np.float32)
        most = self._slots.shape[1] // (4 * starts[-1])
        for first in range(0, len(x), most):
            self._join(x[first : first + most], starts, out[first : first + most], rounded=rounded)
        return out

    def _join(self, x: F32, starts: tuple[int, ...], out: F32, *, rounded: bool) -> None:
        rows, own = len(x), _rounded(x) if rounded else np.ascontiguousarray(x).view(np.uint8)
        widths = [own.shape[1] * (end - begin) // x.shape[1] for begin, end in pairwise(starts)]
        ends = np.cumsum([0, *widths])
        slot = self._slots[(self._now + 1) % 2]
        parts = [slot[rows * begin : rows * end].reshape(rows, -1) for begin, end in pairwise(map(int, ends))]
        parts[self._rank][...] = own
        self._meet()
        for rank, (begin, end) in enumerate(pairwise(starts)):
            if rank == self._rank:
                out[:, begin:end] = x
                continue
            out[:, begin:end] = _restored(parts[rank]) if rounded else parts[rank].view(np.float32)
            self.read += parts[rank].nbytes

    def _meet(self) -> None:
        """Wait until all ranks have written to the slot."""
        if self.ended:
            return
        self._now += 1
        self._counters[self._rank] = self._now
        while (self._counters < self._now).any() and not self.ended:
            time.sleep(_WAIT_SECONDS)


def _rounded(x: F32) -> Bytes:
    """Return the codes of each 32 numbers and their greatest magnitude: [R, n] -> [R, 36 n / 32]."""
    from ferrum.kernels.reference.reference_math import round_whole  # the reference imports this module

    groups = x.reshape(len(x), -1, ROUNDED)
    codes, _ = round_whole(groups, _LEVELS)
    found = np.empty((*groups.shape[:2], ROUNDED + 4), np.uint8)
    found[:, :, :4] = np.abs(groups).max(axis=-1)[..., None].view(np.uint8)
    found[:, :, 4:] = codes.astype(np.int8).view(np.uint8)
    return found.reshape(len(x), -1)


def _restored(found: Bytes) -> F32:
    """Return numbers that `_rounded` gives the same codes and magnitude.

    127 x (1 / 127) is 1, so the greatest comes back exactly. The others are within a rounding of their codes.
    """
    groups = found.reshape(len(found), -1, ROUNDED + 4)
    largest = np.ascontiguousarray(groups[:, :, :4]).view(np.float32)
    with np.errstate(invalid="ignore"):
        numbers = largest * (groups[:, :, 4:].view(np.int8).astype(np.float32) * np.float32(1 / _LEVELS))
    return numbers.reshape(len(found), -1)
