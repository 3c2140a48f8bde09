"""What all formats of quantised weights share: a matrix of small integers, one scale for each group of inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32, Int32
from ferrum.quant.activations import grouped_product, quantize_rows
from ferrum.quant.panels import PanelLayout
from ferrum.quant.scale_groups import group_count

_TERMS: Final = 1 << 20
"""Terms of a product that are made at a time."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupedWeight(ABC):
    """A `Weight` whose element (n, k) is scale(n, k // group) * code(n, k), an integer of magnitude 128 at most.

    K need not be a multiple of the group: rows are filled up with codes that stand for 0.

    Attributes:
        inputs: K.
        group: inputs that share a scale, one of `GROUPS`.
    """

    inputs: int
    group: int

    @property
    @abstractmethod
    def format(self) -> str:
        """The name of the integers' format."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of codes, scales and whatever else is held."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs, inputs."""

    @property
    @abstractmethod
    def layout(self) -> PanelLayout:
        """How its panels are laid out."""

    @property
    @abstractmethod
    def panels(self) -> NDArray[np.uint8]:
        """The matrix in panels, [panels, groups, bytes] of its layout."""

    @abstractmethod
    def signed_codes(self, rows: slice | Int32) -> NDArray[np.int8]:
        """The codes of some rows as the numbers that they stand for, int8 [n, G, group]."""

    @abstractmethod
    def scales_of(self, rows: slice | Int32) -> NDArray[np.float16]:
        """The scales of some rows, float16 [n, G]."""

    def matmul(self, x: F32) -> F32:
        """x [M, K] f32 -> [M, N] f32, by the arithmetic of `activations.py`."""
        rows = quantize_rows(x, self.group)
        out = np.empty((len(x), self.shape[0]), np.float32)
        groups = rows.codes.size // self.group
        step = max(1, _TERMS // max(1, groups, self.inputs))
        for begin in range(0, self.shape[0], step):
            part = slice(begin, begin + step)
            out[:, part] = grouped_product(rows, self.signed_codes(part), self.scales_of(part))
        return out

    def rows(self, ids: Int32) -> F32:
        """The given rows, [len(ids), K] f32: each element is exact, the product of a code and a float16."""
        return self._dequantized(ids)

    def dequantize(self) -> F32:
        """The matrix [N, K] as f32."""
        return self._dequantized(slice(None))

    def _dequantized(self, rows: slice | Int32) -> F32:
        values = self.signed_codes(rows).astype(np.float32)
        values *= self.scales_of(rows).astype(np.float32)[..., None]
        return values.reshape(len(values), values.shape[1] * self.group)[:, : self.inputs]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowMajorWeight(GroupedWeight):
    """A `GroupedWeight` whose codes lie row by row, as numpy rounds them and as other formats bring them.

    Attributes:
        scales: float16 [N, G].
    """

    scales: NDArray[np.float16]

    def __post_init__(self) -> None:
        assert self.scales.dtype == np.float16, "scales are stored in float16"
        assert self.scales.shape[1] == group_count(self.inputs, self.group), "every group has one scale"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs, inputs."""
        return len(self.scales), self.inputs

    @property
    def zero_points(self) -> NDArray[np.uint8] | None:
        """uint8 [N, G], of formats that have them."""
        return None

    @property
    def layout(self) -> PanelLayout:
        """See `GroupedWeight`."""
        return PanelLayout(self.format, self.group, self.zero_points is not None)

    @property
    def panels(self) -> NDArray[np.uint8]:
        """See `GroupedWeight`; made anew."""
        return self.layout.lay_out(self.signed_codes(slice(None)), self.scales, self.zero_points)

    def scales_of(self, rows: slice | Int32) -> NDArray[np.float16]:
        """See `GroupedWeight`."""
        return self.scales[rows]
