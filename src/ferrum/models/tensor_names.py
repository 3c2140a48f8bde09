"""Where a decoder's parameters come from, and what they are called.

The decoder asks for its parameters under the names of the Hugging Face Llama layout, which every family so far shares.
"""

from __future__ import annotations

from typing import Protocol

from ferrum.kernels.interface import F32, Weight

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


class ParameterSource(Protocol):
    """Hands out each parameter once, checked against the shape the decoder expects."""

    def matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        """The matrix [N, K] of that name, in the format asked for at load."""
        ...

    def vector(self, name: str, size: int) -> F32:
        """The vector of that name as f32."""
        ...
