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
        self._slots = memory[_LINE * (1 + ranks) :].view(np.float32).reshape(2, -1)
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

    def join(self, x: F32, starts: tuple[int, ...]) -> F32:
        """Return the columns of all ranks [R, starts[-1]], from the own ones; see `Operations.join`."""
        out = np.empty((len(x), starts[-1]), np.float32)
        most = self._slots.shape[1] // starts[-1]
        for first in range(0, len(x), most):
            self._join(x[first : first + most], starts, out[first : first + most])
        return out

    def _join(self, x: F32, starts: tuple[int, ...], out: F32) -> None:
        slot, rows = self._slots[(self._now + 1) % 2], len(x)
        parts = [slot[rows * begin : rows * end].reshape(rows, end - begin) for begin, end in pairwise(starts)]
        parts[self._rank][...] = x
        self._meet()
        np.concatenate(parts, axis=1, out=out)
        self.read += out.nbytes - x.nbytes

    def _meet(self) -> None:
        """Wait until all ranks have written to the slot."""
        if self.ended:
            return
        self._now += 1
        self._counters[self._rank] = self._now
        while (self._counters < self._now).any() and not self.ended:
            time.sleep(_WAIT_SECONDS)
