"""Qwen3 (Yang et al. 2025)."""

from __future__ import annotations

from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.llama import QWEN_CONTEXT, llama_like, mixed_windows
from ferrum.models.spec import DecoderSpec


@FAMILIES.register("Qwen3ForCausalLM")
def qwen3(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with a norm on each head of q and k, and a default head size of 128."""
    config = config.with_defaults(max_position_embeddings=QWEN_CONTEXT)
    bias = config.flag("attention_bias", False)
    windows = mixed_windows(config)
    return llama_like("qwen3", config, windows=windows, head_dim=128, qk_norm=True, bias=bias, output_bias=bias)
