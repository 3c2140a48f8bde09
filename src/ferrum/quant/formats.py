"""Quantisation formats by name, and the format of each kind of matrix in a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from ferrum.quant.int4 import quantize_int4, quantize_int4_zero_points
from ferrum.quant.int8 import quantize_int8
from ferrum.quant.panels import PanelLayout
from ferrum.quant.weight import GroupedWeight

Quantizer = Callable[[NDArray[Any], int], GroupedWeight]
"""Quantises a matrix [N, K] of any float type, given the group size. Raises ConfigError for numbers out of range."""

QUANTIZERS: Final[Mapping[str, Quantizer]] = {
    "int8": quantize_int8,
    "int4": quantize_int4,
    "int4-zero-points": quantize_int4_zero_points,
}
"""Quantisers by name."""


class MatrixQuantizer(Protocol):
    """A quantiser of matrices, by name."""

    def __call__(self, name: str, values: NDArray[Any], group: int) -> GroupedWeight:
        """Return the numbers of `QUANTIZERS[name](values, group)`, in any memory layout."""


def quantize(name: str, values: NDArray[Any], group: int) -> GroupedWeight:
    """Quantise a matrix with numpy: the reference `MatrixQuantizer`."""
    return QUANTIZERS[name](values, group)


def layout_of(name: str, group: int) -> PanelLayout:
    """Return the panel layout of a quantiser's result."""
    return PanelLayout(name.removesuffix("-zero-points"), group, zero_points=name.endswith("-zero-points"))


INTEGERS: Final = ("int8", "int4")
"""Integer formats, as in `Weight.format`."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Formats of a model's matrices, as names in `QUANTIZERS`.

    Attributes:
        layers: matrices inside the layers.
        ends: embedding and head; their errors reach every logit directly.
    """

    layers: str
    ends: str


SCHEMES: Final[Mapping[str, Scheme]] = {
    "int8": Scheme("int8", "int8"),
    "int4": Scheme("int4", "int8"),
    "int4-all": Scheme("int4", "int4"),
}
"""Schemes by the value of the option `quantize`."""
