"""Mistral (Jiang et al. 2023) and Ministral."""

from __future__ import annotations

from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.llama import layer_windows, llama_like, sliding_window
from ferrum.models.spec import DecoderSpec


@FAMILIES.register("MistralForCausalLM")
@FAMILIES.register("MinistralForCausalLM")
def mistral(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with a sliding window in all layers, or in those of `layer_types` (Ministral)."""
    config = config.with_defaults(max_position_embeddings=1 << 17)
    return llama_like("mistral", config, windows=layer_windows(config, sliding_window(config), 0))
