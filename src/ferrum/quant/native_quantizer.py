"""Quantisation by the native library, with the numbers of `QUANTIZERS`, directly into panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from ferrum.kernels.cpu.weights import native_floats
from ferrum.quant.formats import layout_of
from ferrum.quant.panel_weight import PanelWeight, over_panels
from ferrum.quant.scale_groups import scale_error

_TOO_LARGE: Final = 1
"""Code of the library for numbers that are too large; 2 stands for infinities and NaN."""


@dataclass(frozen=True, slots=True)
class NativeQuantizer:
    """A `MatrixQuantizer` on the thread team of the library.

    Attributes:
        runtime: a `Runtime` of the library.
    """

    runtime: Any

    def __call__(self, name: str, values: NDArray[Any], group: int) -> PanelWeight:
        layout = layout_of(name, group)
        panels, found = self.runtime.quantize(*native_floats(values), layout.name)
        if found:
            raise scale_error(layout.format, finite=found == _TOO_LARGE)
        outputs, inputs = values.shape
        return over_panels(panels, layout, (outputs, inputs))
