"""Panels of 32 outputs: the layout of quantised matrices in packed directories and native kernels.

    panel        outputs 32 p to 32 p + 31 (padded with zeros), its groups of inputs in order
    int8         per group a row for every 4 inputs: 32 outputs of 4 bytes, each code + 128
    int4         per group a row for every 8 inputs: 32 outputs of 4 bytes; in row j, byte i has input 8 j + i in its
                 low four bits and input 8 j + 4 + i in its high four bits, each code + 8 or code + zero point
    both         then the scales of the 32 outputs in float16, little-endian
    zero points  then the zero points of the 32 outputs in 16 bits, little-endian, if the format has them

A group of a panel fills whole cache lines (1088 and 576 bytes for groups of 32). All instruction sets use the same
bytes (`native/src/grouping.hpp` states the same layout).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import Int32
from ferrum.quant.scale_groups import group_count

LANES: Final = 32
"""Outputs of a panel."""

_HALVES: Final = 2 * LANES  # bytes of 16-bit numbers, one per output


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """The layout of panels.

    Attributes:
        format: "int8" or "int4".
        group: inputs that share a scale, one of `GROUPS`.
        zero_points: whether groups have zero points (int4 only).
    """

    format: str
    group: int
    zero_points: bool = False

    @property
    def name(self) -> str:
        """Name in the native library."""
        return f"{self.format}{'_zero' if self.zero_points else ''}_{self.group}"

    @property
    def _code_bytes(self) -> int:
        return LANES * self.group // (1 if self.format == "int8" else 2)

    def shape(self, matrix: tuple[int, int]) -> tuple[int, int, int]:
        """Return [panels, groups, bytes] of a matrix [N, K]."""
        outputs, inputs = matrix
        size = self._code_bytes + _HALVES * (2 if self.zero_points else 1)
        return -(-outputs // LANES), group_count(inputs, self.group), size

    def lay_out(
        self, codes: NDArray[np.int8], scales: NDArray[np.float16], zero_points: NDArray[np.uint8] | None
    ) -> NDArray[np.uint8]:
        """Return the panels of signed codes [N, G, group], scales and zero points [N, G]."""
        outputs, groups, _ = codes.shape
        panels, _, size = self.shape((outputs, groups * self.group))
        offset = np.uint8(128 if self.format == "int8" else 8) if zero_points is None else zero_points[..., None]
        stored = np.full((panels * LANES, groups, self.group), offset if zero_points is None else 0, np.uint8)
        stored[:outputs] = codes.view(np.uint8) + offset
        quads = stored.reshape(panels, LANES, groups, self.group // 4, 4)
        words = quads.transpose(0, 2, 3, 1, 4)  # [panel, group, quad, lane, 4]
        if self.format == "int4":
            words = words[:, :, 0::2] | words[:, :, 1::2] << np.uint8(4)
        out = np.empty((panels, groups, size), np.uint8)
        out[..., : self._code_bytes] = words.reshape(panels, groups, -1)
        rest = [_by_group(scales.astype("<f2"), panels)]
        if zero_points is not None:
            rest.append(_by_group(zero_points.astype("<u2"), panels))
        out[..., self._code_bytes :] = np.concatenate(rest, axis=-1)
        return out

    def codes(self, panels: NDArray[np.uint8], ids: Int32) -> NDArray[np.int8]:
        """Return the signed codes of some outputs, int8 [n, G, group]."""
        count, groups, _ = panels.shape
        stored = panels[..., : self._code_bytes].reshape(count, groups, -1, LANES, 4)
        words = stored[ids // LANES, :, :, ids % LANES]  # [n, G, rows, 4]
        if self.format == "int4":  # two nibbles per byte: [n, G, rows, 2, 4]
            words = np.stack((words & np.uint8(15), words >> np.uint8(4)), axis=-2)
        words = words.reshape(len(ids), groups, self.group)
        if self.zero_points:
            offset = self._halves(panels, 1, ids).view("<u2").astype(np.uint8)[..., None]
        else:
            offset = np.full(1, 128 if self.format == "int8" else 8, np.uint8)
        codes: NDArray[np.int8] = (words - offset).view(np.int8)
        return codes

    def scales(self, panels: NDArray[np.uint8], ids: Int32) -> NDArray[np.float16]:
        """Return the scales of some outputs, float16 [n, G]."""
        return self._halves(panels, 0, ids).view("<f2").astype(np.float16)

    def _halves(self, panels: NDArray[np.uint8], index: int, ids: Int32) -> NDArray[np.uint16]:
        """Return the first or second 16-bit numbers after the codes of each group, for some outputs [n, G]."""
        begin = self._code_bytes + index * _HALVES
        numbers = panels[..., begin : begin + _HALVES].reshape(*panels.shape[:2], LANES, 2)
        return np.ascontiguousarray(numbers[ids // LANES, :, ids % LANES]).view(np.uint16)[..., 0]


def _by_group(numbers: NDArray[np.float16] | NDArray[np.uint16], panels: int) -> NDArray[np.uint8]:
    """Return 16-bit numbers [N, G] as bytes [panels, G, 64], padded with zeros."""
    outputs, groups = numbers.shape
    padded = np.zeros((panels * LANES, groups), numbers.dtype)
    padded[:outputs] = numbers
    return np.ascontiguousarray(padded.reshape(panels, LANES, groups).swapaxes(1, 2)).view(np.uint8)
