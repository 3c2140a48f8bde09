"""Parts of encoders: attention among all rows, and what the rows of patches begin and end with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ferrum.kernels.op_attributes import EncoderShape
from ferrum.kernels.operations import Array, Operations
from ferrum.nn.linear import Linear


@dataclass(frozen=True, slots=True)
class EncoderAttention:
    """Attention among all rows of a span, [R, H] -> [R, H].

    Attributes:
        qkv, output: projections.
        rope: cosines and sines by position, or None.
        axes: see `Operations.rotate`.
    """

    qkv: Linear
    output: Linear
    shape: EncoderShape
    rope: Any | None = None
    axes: tuple[int, ...] = ()

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        q, k, v = self.qkv(kernels, x)
        if self.rope is not None:
            q, k = (kernels.rotate(each, self.shape.num_heads, self.rope, self.axes) for each in (q, k))
        (y,) = self.output(kernels, kernels.attend_all(q, k, v, self.shape))
        return y
