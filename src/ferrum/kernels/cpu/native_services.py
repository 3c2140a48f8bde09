"""Sampling, quantisation and checksums on the thread team of the native library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.cpu.weights import native_floats
from ferrum.kernels.services import Draw, Question, RowSampler, Standing


class NativeRowSampler(RowSampler):
    """`RowSampler` of the library. Its thread team samples between steps, the rows in parallel.

    Args:
        library: the compiled module.
        runtime: a `Runtime` of the library.
    """

    def __init__(self, library: Any, runtime: Any) -> None:
        self._team = library.SamplerTeam(runtime)

    def held_bytes(self, vocab_size: int) -> int:
        return int(self._team.held_bytes(vocab_size))

    def draw(self, rows: Sequence[Draw]) -> Sequence[int]:
        found: Sequence[int] = self._team.draw([(np.ascontiguousarray(each.logits), *each[1:]) for each in rows])
        return found

    def standings(self, questions: Sequence[Question]) -> list[Standing]:
        rows = [(np.ascontiguousarray(each.logits), each.token, each.most) for each in questions]
        return [
            _standing(row, token, *found)
            for (row, token, _), found in zip(rows, self._team.describe(rows), strict=True)
        ]


def _standing(
    row: NDArray[np.float32], token: int, peak: float, normaliser: float, rank: int, best: Sequence[int]
) -> Standing:
    first = np.array(best, np.int64)
    return Standing(np.float32(peak), np.float32(normaliser), rank, row[token], first, row[first])


def native_quantize(
    runtime: Any,
    values: NDArray[Any],
    format: str,
    importance: NDArray[np.float32] | None = None,
    *,
    thorough: bool = False,
) -> tuple[NDArray[np.uint8], int]:
    """Quantise a matrix: the `PanelQuantizer` of a `Runtime` of the library."""
    weights = np.empty(0, np.float32) if importance is None else importance
    panels, fault = runtime.quantize(*native_floats(values), format, weights, thorough)
    return panels, fault


def native_page_sums(runtime: Any, data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the sums of `kernels.reference.page_sums`, computed by the thread team of a `Runtime`."""
    sums = np.empty(-(-len(data) // 4096), np.uint64)
    runtime.sum_pages(data, sums)
    return sums
