"""Quantised matrices in panels of 32 outputs: how packed directories hold them, and what native kernels stream.

    panel    outputs 32 p to 32 p + 31 (rows of zeros behind the last output), its groups of 32 inputs in order
    int8     per group 8 rows of 32 outputs of 4 inputs, each a byte code + 128
    int4     per group 4 rows of 32 outputs of 4 bytes: in row j, byte i has code + 8 of input 8 j + i in its low four
             bits and that of input 8 j + 4 + i in its high ones
    both     then the 32 outputs' scales in float16, little-endian

A group of a panel is thus 1088 or 576 bytes, whole cache lines, and the bytes are the same for every instruction set
(`native/src/weight.hpp` states the same layout).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import Int32
from ferrum.quant.groups import group_count
from ferrum.quant.int4 import pack_nibbles
from ferrum.quant.weight import GroupedWeight

LANES: Final = 32
"""Outputs of a panel."""

GROUP: Final = 32
"""Inputs that share a scale."""

_SCALE_BYTES: Final = 2 * LANES
_CODE_BYTES: Final = {"int8": LANES * GROUP, "int4": LANES * GROUP // 2}
_OFFSET: Final = {"int8": 128, "int4": 8}


def panel_shape(format: str, shape: tuple[int, int]) -> tuple[int, int, int]:
    """[panels, groups, bytes] of a matrix [N, K] in format "int8" or "int4"."""
    outputs, inputs = shape
    return -(-outputs // LANES), group_count(inputs, GROUP), _CODE_BYTES[format] + _SCALE_BYTES


def to_panels(weight: GroupedWeight) -> NDArray[np.uint8]:
    """A symmetric weight in groups of 32 as panels, uint8 of `panel_shape`."""
    assert weight.group == GROUP, "panels have groups of 32"
    panels, groups, size = panel_shape(weight.format, weight.shape)
    codes = np.zeros((panels * LANES, groups, GROUP), np.int8)
    codes[: weight.shape[0]] = weight.signed_codes(slice(None))
    unsigned = codes.view(np.uint8) + np.uint8(_OFFSET[weight.format])
    words = unsigned.reshape(panels, LANES, groups, GROUP // 4, 4).transpose(0, 2, 3, 1, 4)  # [P, G, 8, lane, 4]
    if weight.format == "int4":
        words = words[:, :, 0::2] | words[:, :, 1::2] << np.uint8(4)
    scales = np.zeros((panels * LANES, groups), "<f2")
    scales[: weight.shape[0]] = weight.scales
    by_group = np.ascontiguousarray(scales.reshape(panels, LANES, groups).swapaxes(1, 2))  # [P, G, lane]
    out = np.empty((panels, groups, size), np.uint8)
    out[..., :-_SCALE_BYTES] = words.reshape(panels, groups, -1)
    out[..., -_SCALE_BYTES:] = by_group.view(np.uint8)
    return out


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PanelWeight(GroupedWeight):
    """A `Weight` that lies in panels, which may be a read-only view of a mapped file.

    Attributes:
        panels: uint8 of `panel_shape`.
        kind: "int8" or "int4".
    """

    panels: NDArray[np.uint8]
    kind: str

    @property
    def format(self) -> str:
        """Its kind."""
        return self.kind

    @property
    def nbytes(self) -> int:
        """Bytes of the panels, and of the scales in an order of their own."""
        return self.panels.nbytes + self.scales.nbytes

    @property
    def zero_points(self) -> None:
        """Panels are symmetric."""
        return None

    @property
    def codes(self) -> NDArray[np.int8]:
        """Row-major codes as `Int8Weight` has them, for backends that do not take panels."""
        return self.signed_codes(slice(None)).reshape(len(self.scales), -1)

    @property
    def packed(self) -> NDArray[np.uint8]:
        """Row-major codes as `Int4Weight` has them, for backends that do not take panels."""
        return pack_nibbles(self.signed_codes(slice(None)))

    def signed_codes(self, rows: slice | Int32) -> NDArray[np.int8]:
        """See `GroupedWeight`."""
        ids = np.arange(len(self.scales))[rows]
        panels, groups, _ = self.panels.shape
        words = self.panels[..., :-_SCALE_BYTES].reshape(panels, groups, -1, LANES, 4)[ids // LANES, :, :, ids % LANES]
        if self.kind == "int4":  # [n, G, 4, 4] of two nibbles -> [n, G, 4, 2, 4]
            words = np.stack((words & np.uint8(15), words >> np.uint8(4)), axis=-2)
        codes: NDArray[np.int8] = (words - np.uint8(_OFFSET[self.kind])).view(np.int8)
        return codes.reshape(len(ids), groups, GROUP)


def from_panels(panels: NDArray[np.uint8], format: str, shape: tuple[int, int]) -> PanelWeight:
    """A weight [N, K] over panels, uint8 of `panel_shape`, of which only the scales are copied."""
    count, groups, size = panel_shape(format, shape)
    assert panels.shape == (count, groups, size), "panels of another matrix"
    by_group = np.ascontiguousarray(panels[..., -_SCALE_BYTES:]).view("<f2")  # [P, G, lane]
    scales = by_group.swapaxes(1, 2).reshape(count * LANES, groups)[: shape[0]].astype(np.float16)
    return PanelWeight(scales=scales, inputs=shape[1], group=GROUP, panels=panels, kind=format)
