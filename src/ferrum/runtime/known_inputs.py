"""Fixed inputs of the self-check: numbers from a counter-based generator, the same everywhere, and tables of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import StepTables
from ferrum.kernels.operations import F32
from ferrum.sampling.philox import fixed_numbers

KV_FORMATS: Final = ("float32", "bfloat16", "int8")

_EXPONENTS: Final = (0, 0, 0, 2, -3, 0, 0, 0, -124, -127, -140, 60, 127)
"""Scales of the rows as powers of two: tiny ones lose bits to subnormal numbers, huge ones give infinities. There
processors differ first."""

Answer = NDArray[Any]


@dataclass
class Inputs:
    """Fixed numbers, in one run that all operations read from different places."""

    _pool: F32 = field(default_factory=lambda: fixed_numbers(1 << 14, seed=0))

    def numbers(self, *shape: int, at: int = 0) -> F32:
        """Return an array of numbers in [-1, 1] from a place on."""
        size = int(np.prod(shape))
        numbers: F32 = np.resize(self._pool[at:], size).reshape(shape)
        return numbers

    def rows(self, columns: int) -> F32:
        """Return rows of ordinary, tiny and huge numbers [13, columns]."""
        scales: F32 = np.ldexp(np.float32(1), np.array(_EXPONENTS)).astype(np.float32)
        return self.numbers(len(scales), columns, at=7) * scales[:, None]


def known_tables(
    spans: Sequence[tuple[int, int]],
    token_ids: NDArray[np.int32] | None = None,
    logit_rows: Sequence[int] = (),
    hidden_rows: Sequence[int] = (),
) -> StepTables:
    """Return the tables of spans (start, rows). Sequence s has the pages s and s + 2."""
    positions = np.concatenate([np.arange(start, start + count) for start, count in spans]).astype(np.int32)
    pages = np.array([[s % 2, s % 2 + 2] for s in range(len(spans))], np.int32)
    return StepTables(
        token_ids=np.zeros(len(positions), np.int32) if token_ids is None else token_ids,
        positions=positions,
        span_rows=np.cumsum([0, *(count for _, count in spans)]).astype(np.int32),
        pages=(pages,) * (len(KV_FORMATS) + 2),
        logit_rows=np.array(logit_rows, np.int32),
        hidden_rows=np.array(hidden_rows, np.int32),
    )
