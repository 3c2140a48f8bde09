"""The names of GGUF tensors as those of the Hugging Face layout, by the entry of their architecture."""

from __future__ import annotations

import math
from typing import Final

from ferrum.models.gguf_architecture import BARE, LAYER, WHOLE, GgufArchitecture
from ferrum.models.tensor_names import LAYERS

ROPE_FACTORS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Divisors of the rope's frequencies, as Llama 3.1 and longrope scale them."""


def hf_name(name: str, entry: GgufArchitecture) -> str | None:
    """Return a tensor's name in the Hugging Face layout, or None if it has none."""
    stem, _, kind = name.rpartition(".")
    whole = entry.whole.get(stem, WHOLE.get(stem))
    if whole is not None:
        return f"{whole}.{kind}" if kind in ("weight", "bias") else None
    block, part = layer_of(name), stem.removeprefix("blk.").partition(".")[2]
    if block is None:
        return None
    bare = {**BARE, **entry.bare}.get(f"{part}.{kind}")
    if bare is not None:
        return f"{LAYERS}.{block}.{bare}"
    named = entry.parts.get(part, LAYER.get(part))
    return f"{LAYERS}.{block}.{named}.{kind}" if named and kind in ("weight", "bias") else None


def layer_of(name: str) -> int | None:
    """Return the layer of a GGUF tensor, or None if it is in none."""
    block = name.removeprefix("blk.").partition(".")[0]
    return int(block) if name.startswith("blk.") and block.isascii() and block.isdecimal() else None


def hf_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor of the Hugging Face layout: matrices of experts are one, as their biases are."""
    if name.endswith(".shared_expert_gate.weight") and len(shape) == 1:
        return 1, *shape
    if name.endswith(".bias"):
        return (math.prod(shape),)
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape


def is_permuted(name: str) -> bool:
    """Return whether a tensor of the Hugging Face layout has rows that a permuting converter reorders."""
    return ".self_attn.q_proj." in name or ".self_attn.k_proj." in name
