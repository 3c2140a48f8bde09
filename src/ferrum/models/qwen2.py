"""Qwen2 and Qwen2.5 (Yang et al. 2024)."""

from __future__ import annotations

from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.llama import QWEN_CONTEXT, llama_like, mixed_windows
from ferrum.models.spec import DecoderSpec


@FAMILIES.register("Qwen2ForCausalLM")
def qwen2(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with biases on q, k and v."""
    config = config.with_defaults(max_position_embeddings=QWEN_CONTEXT)
    return llama_like("qwen2", config, windows=mixed_windows(config), bias=True)
