"""Quantisation by a backend, with the numbers of `QUANTIZERS`, directly into panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ferrum.kernels.interface import Kernels
from ferrum.kernels.services import TOO_LARGE, PanelQuantizer
from ferrum.quant.formats import MatrixQuantizer, layout_of, quantize
from ferrum.quant.panel_weight import PanelWeight, over_panels
from ferrum.quant.scale_groups import scale_error


def quantizer_of(kernels: Kernels) -> MatrixQuantizer:
    """Return the quantiser of a backend's matrices: its own, or numpy's."""
    panels = kernels.quantizer()
    return quantize if panels is None else BackendQuantizer(panels)


@dataclass(frozen=True, slots=True)
class BackendQuantizer:
    """A `MatrixQuantizer` that a backend runs.

    Attributes:
        panels: of the backend.
    """

    panels: PanelQuantizer

    def __call__(self, name: str, values: NDArray[Any], group: int) -> PanelWeight:
        layout = layout_of(name, group)
        panels, fault = self.panels(values, layout.name)
        if fault:
            raise scale_error(layout.format, finite=fault == TOO_LARGE)
        outputs, inputs = values.shape
        return over_panels(panels, layout, (outputs, inputs))
