"""Rounding matrices to integers by the native library: the numbers of `QUANTIZERS`, straight into panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from ferrum.kernels.cpu.weights import native_floats
from ferrum.quant.formats import layout_of
from ferrum.quant.panel_weight import PanelWeight, over_panels
from ferrum.quant.scale_groups import cannot_hold

_TOO_LARGE: Final = 1
"""The library's word for numbers beyond the scales; 2 is for infinities and NaN."""


@dataclass(frozen=True, slots=True)
class NativeQuantizer:
    """A `MatrixQuantizer` on the library's thread team.

    Attributes:
        runtime: a `Runtime` of the library.
    """

    runtime: Any

    def __call__(self, name: str, values: NDArray[Any], group: int) -> PanelWeight:
        """See `MatrixQuantizer`."""
        layout = layout_of(name, group)
        panels, found = self.runtime.quantize(*native_floats(values), layout.name)
        if found:
            raise cannot_hold(layout.format, finite=found == _TOO_LARGE)
        outputs, inputs = values.shape
        return over_panels(panels, layout, (outputs, inputs))
