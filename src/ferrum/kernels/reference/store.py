"""KV pool of the reference kernels: keys or values of one layer group, in the format of the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import PoolGroup
from ferrum.kernels.operations import F32, Int32
from ferrum.kernels.reference.reference_math import round_whole

ELEMENT: Final = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "int8": np.dtype(np.int8)}

LEVELS: Final = 127
"""The largest int8 code."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Stored tokens.

    Attributes:
        elements: f32 [tokens, kv_heads, dim]; the codes of an int8 store.
        scales: f32 [tokens, kv_heads], factors of the codes; None for float formats.
    """

    elements: F32
    scales: F32 | None

    def step(self, begin: int, count: int) -> Stored:
        """Return tokens `begin` to `begin + count`, padded with zeros."""
        missing = max(0, begin + count - len(self.elements))
        elements = np.pad(self.elements[begin : begin + count], ((0, missing), (0, 0), (0, 0)))
        if self.scales is None:
            return Stored(elements, None)
        return Stored(elements, np.pad(self.scales[begin : begin + count], ((0, missing), (0, 0))))

    def first(self, dim: int) -> Stored:
        """Return the first `dim` numbers of each head, with the same scales."""
        return Stored(self.elements[..., :dim], self.scales)

    def numbers(self) -> F32:
        """Return the stored numbers as f32 [tokens, kv_heads, dim]."""
        return self.elements if self.scales is None else self.elements * self.scales[..., None]


class Store:
    """Storage of all pages of a group, zeroed.

    Args:
        group: sizes and format.
        dim: elements of a head; 0 stores nothing.
    """

    def __init__(self, group: PoolGroup, dim: int) -> None:
        lead = (group.num_layers, group.num_pages, group.page_size, group.num_kv_heads)
        self._page_size = group.page_size
        self._elements: NDArray[Any] = np.zeros((*lead, dim), ELEMENT[group.format])
        self._scales = np.zeros(lead, np.float32) if group.format == "int8" and dim else None

    def write(self, layer: int, pages: Int32, offsets: Int32, x: F32) -> None:
        """Round the rows x [R, kv_heads, dim] and write each to its page and offset."""
        if self._scales is None:
            self._elements[layer, pages, offsets] = x
            return
        self._elements[layer, pages, offsets], self._scales[layer, pages, offsets] = round_whole(x, LEVELS)

    def copy(self, source: int, target: int) -> None:
        """Copy a page in every layer."""
        for array in (self._elements, self._scales):
            if array is not None:
                array[:, target] = array[:, source]

    def page(self, page: int) -> tuple[NDArray[Any], ...]:
        """Return views of the contents of a page in all layers."""
        return tuple(array[:, page] for array in (self._elements, self._scales) if array is not None)

    def read(self, layer: int, pages: Int32, begin: int, end: int) -> Stored:
        """Return tokens `begin` to `end` of a sequence's `pages`. A freed page reads as zeros; no query sees it."""
        size = self._page_size
        held = pages[begin // size : -(-end // size)]

        def tokens(array: NDArray[Any]) -> F32:
            values = array[layer, np.maximum(held, 0)].astype(np.float32)
            values[held < 0] = 0
            rows: F32 = values.reshape(-1, *values.shape[2:])
            return rows[begin % size : begin % size + end - begin]

        return Stored(tokens(self._elements), None if self._scales is None else tokens(self._scales))
