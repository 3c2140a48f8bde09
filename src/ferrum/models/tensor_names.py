"""Names and source of a decoder's parameters. The names are those of the Hugging Face Llama layout."""

from __future__ import annotations

from typing import Protocol

from ferrum.kernels.operations import F32, Weight

EMBEDDING = "model.embed_tokens.weight"
LAYERS = "model.layers"
FINAL_NORM = "model.norm"
HEAD = "lm_head.weight"


class ParameterSource(Protocol):
    """A source that returns each parameter once and checks its shape."""

    def matrix(self, name: str, shape: tuple[int, int], *, exact: bool = False) -> Weight:
        """Return the matrix [N, K] of that name, in the format configured at load; if `exact`, in float32."""

    def release(self, name: str) -> None:
        """Free the memory behind a matrix, of which the kernels now hold their own copy."""

    def vector(self, name: str, size: int) -> F32:
        """Return the vector of that name as f32."""
