"""The formats that a matrix can be quantised to, and which of them a model's matrices get."""

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
"""Of a matrix [N, K] of any float type and the size of a group. Raises ConfigError for numbers beyond its range."""

QUANTIZERS: Final[Mapping[str, Quantizer]] = {
    "int8": quantize_int8,
    "int4": quantize_int4,
    "int4-zero-points": quantize_int4_zero_points,
}
"""What rounds a matrix, by name. Each is tested for all that a `Weight` promises."""


class MatrixQuantizer(Protocol):
    """What rounds a matrix by one of several names."""

    def __call__(self, name: str, values: NDArray[Any], group: int) -> GroupedWeight:
        """As `QUANTIZERS[name](values, group)`: the same numbers, however they lie."""
        ...


def quantize(name: str, values: NDArray[Any], group: int) -> GroupedWeight:
    """The `MatrixQuantizer` that says what the others must give."""
    return QUANTIZERS[name](values, group)


def layout_of(name: str, group: int) -> PanelLayout:
    """Panels of what the quantiser of that name makes."""
    return PanelLayout(name.removesuffix("-zero-points"), group, zero_points=name.endswith("-zero-points"))


INTEGERS: Final = ("int8", "int4")
"""The formats of the integers, as weights name them."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Formats of a model's matrices: names in `QUANTIZERS`.

    Attributes:
        layers: of the products inside the layers.
        ends: of the embedding and the head, whose errors reach every logit directly.
    """

    layers: str
    ends: str


SCHEMES: Final[Mapping[str, Scheme]] = {
    "int8": Scheme("int8", "int8"),
    "int4": Scheme("int4", "int8"),
    "int4-all": Scheme("int4", "int4"),
}
"""What the option `quantize` may ask for."""
