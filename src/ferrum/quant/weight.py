"""Base classes of quantised weights: a matrix of small integers, one scale per group of inputs."""

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
"""Terms of a product computed at a time."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupedWeight(ABC):
    """A `Weight` with elements scale(n, k // group) * code(n, k); codes are integers of magnitude 128 at most.

    Codes of number 0 pad rows to a multiple of the group.

    Attributes:
        inputs: K.
        group: inputs that share a scale, one of `GROUPS`.
    """

    inputs: int
    group: int

    @property
    @abstractmethod
    def format(self) -> str:
        """Name of the integer format."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs, inputs."""

    @property
    @abstractmethod
    def layout(self) -> PanelLayout:
        """Layout of the panels."""

    @property
    @abstractmethod
    def panels(self) -> NDArray[np.uint8]:
        """The matrix in panels, [panels, groups, bytes] of its layout."""

    @abstractmethod
    def signed_codes(self, rows: slice | Int32) -> NDArray[np.int8]:
        """Return the signed codes of some rows, int8 [n, G, group]."""

    @abstractmethod
    def scales_of(self, rows: slice | Int32) -> NDArray[np.float16]:
        """Return the scales of some rows, float16 [n, G]."""

    def matmul(self, x: F32) -> F32:
        """Multiply x [M, K] f32 -> [M, N] f32 by the arithmetic of `activations.py`."""
        rows = quantize_rows(x, self.group)
        out = np.empty((len(x), self.shape[0]), np.float32)
        groups = rows.codes.size // self.group
        step = max(1, _TERMS // max(1, groups, self.inputs))
        for begin in range(0, self.shape[0], step):
            part = slice(begin, begin + step)
            out[:, part] = grouped_product(rows, self.signed_codes(part), self.scales_of(part))
        return out

    def rows(self, ids: Int32) -> F32:
        """Return the given rows, [len(ids), K] f32. Each element is the exact product of a code and a float16."""
        return self._dequantized(ids)

    def dequantize(self) -> F32:
        """Return the matrix [N, K] as f32."""
        return self._dequantized(slice(None))

    def _dequantized(self, rows: slice | Int32) -> F32:
        values = self.signed_codes(rows).astype(np.float32)
        values *= self.scales_of(rows).astype(np.float32)[..., None]
        return values.reshape(len(values), values.shape[1] * self.group)[:, : self.inputs]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowMajorWeight(GroupedWeight):
    """A `GroupedWeight` with row-major codes, as numpy and GGUF have them.

    Attributes:
        scales: float16 [N, G].
    """

    scales: NDArray[np.float16]

    def __post_init__(self) -> None:
        assert self.scales.dtype == np.float16, "scales are stored in float16"
        assert self.scales.shape[1] == group_count(self.inputs, self.group), "each group has one scale"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs, inputs."""
        return len(self.scales), self.inputs

    @property
    def zero_points(self) -> NDArray[np.uint8] | None:
        """Zero points, uint8 [N, G], or None."""
        return None

    @property
    def layout(self) -> PanelLayout:
        return PanelLayout(self.format, self.group, self.zero_points is not None)

    @property
    def panels(self) -> NDArray[np.uint8]:
        return self.layout.lay_out(self.signed_codes(slice(None)), self.scales, self.zero_points)

    def scales_of(self, rows: slice | Int32) -> NDArray[np.float16]:
        return self.scales[rows]
