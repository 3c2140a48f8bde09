"""Weights in panels, from the native quantiser or mapped from a packed directory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import Int32
from ferrum.quant.panels import PanelLayout
from ferrum.quant.weight import GroupedWeight


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PanelWeight(GroupedWeight):
    """A `Weight` over panels, without copies.

    Attributes:
        panels: uint8 [panels, groups, bytes] of `layout`; may be a read-only view of a mapped file.
        outputs: N.
        layout: of the panels.
    """

    panels: NDArray[np.uint8]
    outputs: int
    layout: PanelLayout

    @property
    def format(self) -> str:
        return self.layout.format

    @property
    def shape(self) -> tuple[int, int]:
        return self.outputs, self.inputs

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    def signed_codes(self, rows: slice | Int32) -> NDArray[np.int8]:
        return self.layout.codes(self.panels, self._ids(rows))

    def scales_of(self, rows: slice | Int32) -> NDArray[np.float16]:
        return self.layout.scales(self.panels, self._ids(rows))

    def _ids(self, rows: slice | Int32) -> Int32:
        return np.arange(self.outputs, dtype=np.int32)[rows]


def over_panels(panels: NDArray[np.uint8], layout: PanelLayout, shape: tuple[int, int]) -> PanelWeight:
    """Return the weight [N, K] over these panel bytes."""
    shaped = panels.reshape(layout.shape(shape))
    return PanelWeight(inputs=shape[1], group=layout.group, panels=shaped, outputs=shape[0], layout=layout)
