"""Quantisation of matrices: by a backend, directly into panels, or in numpy with the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import Kernels
from ferrum.kernels.operations import F32
from ferrum.kernels.services import TOO_LARGE, PanelQuantizer
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_quantizers import QUANTIZERS
from ferrum.quant.block_weight import BlockWeight, PanelWeight, RowWeight, over_panels
from ferrum.quant.scale_search import QUICK, THOROUGH, Search, scale_error


class MatrixQuantizer(Protocol):
    """A quantiser of matrices, by format."""

    def __call__(self, format: str, values: NDArray[Any], importance: F32 | None = None) -> BlockWeight:
        """Return the numbers of `QUANTIZERS[format](values, importance)` for a matrix [N, K] of any float type.

        Raises:
            ConfigError: weights are not finite, or too large for the format's scales.
        """


def quantize(format: str, values: NDArray[Any], importance: F32 | None = None, search: Search = QUICK) -> BlockWeight:
    """Quantise a matrix with numpy: the reference `MatrixQuantizer`."""
    outputs, inputs = values.shape
    whole = QUANTIZERS[format](values, importance, search)
    return RowWeight(kind=BLOCK_FORMATS[format], shape=(outputs, inputs), whole=whole)


def quantizer_of(kernels: Kernels, search: Search = QUICK) -> MatrixQuantizer:
    """Return the quantiser of a backend's matrices: its own, or numpy's."""
    panels = kernels.quantizer()
    return partial(quantize, search=search) if panels is None else BackendQuantizer(panels, search)


@dataclass(frozen=True, slots=True)
class BackendQuantizer:
    """A `MatrixQuantizer` that a backend runs.

    Attributes:
        panels: of the backend.
        search: `QUICK` or `THOROUGH`.
    """

    panels: PanelQuantizer
    search: Search = QUICK

    def __call__(self, format: str, values: NDArray[Any], importance: F32 | None = None) -> PanelWeight:
        kind, (outputs, inputs) = BLOCK_FORMATS[format], values.shape
        if importance is not None:
            importance = np.pad(importance, (0, kind.blocks(inputs) * kind.block - inputs))
        panels, fault = self.panels(values, format, importance, thorough=self.search is THOROUGH)
        if fault:
            raise scale_error(format, finite=fault == TOO_LARGE)
        return over_panels(panels, kind, (outputs, inputs))
