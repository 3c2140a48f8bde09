"""Mistral (Jiang et al. 2023)."""

from __future__ import annotations

from ferrum.models.config import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.llama import llama_like
from ferrum.models.spec import DecoderSpec

_DEFAULT_WINDOW = 4096


@FAMILIES.register("MistralForCausalLM")
def mistral(config: FamilyConfig) -> DecoderSpec:
    """Llama with a sliding window on every layer; an explicit null turns it off, absence means the original 4096."""
    sliding = config.values.get("sliding_window", _DEFAULT_WINDOW) is not None
    window = config.integer("sliding_window", _DEFAULT_WINDOW) if sliding else None
    return llama_like("mistral", config, windows=(window,) * config.num_layers())
