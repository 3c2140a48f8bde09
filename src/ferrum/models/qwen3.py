"""Qwen3 and Qwen3-MoE (Yang et al. 2025)."""

from __future__ import annotations

from typing import Any

from ferrum.models.attention_spec import QkNorm
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.llama import QWEN_CONTEXT, activation_of, llama_like, mixed_windows, mlp_of
from ferrum.models.qwen2 import softmax_routing, sparse_layers
from ferrum.models.spec import DecoderSpec


@FAMILIES.register("Qwen3ForCausalLM")
def qwen3(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with a norm on each head of q and k, and a default head size of 128."""
    return _qwen3("qwen3", config)


@FAMILIES.register("Qwen3MoeForCausalLM")
def qwen3_moe(config: FamilyConfig) -> DecoderSpec:
    """Return Qwen3 with experts."""
    count = config.integer("num_experts", config.integer("num_local_experts", 128))
    experts = ExpertsSpec(
        softmax_routing(config, count, config.integer("num_experts_per_tok", 8)),
        config.integer("moe_intermediate_size", 768),
        activation_of(config),
    )
    return _qwen3("qwen3-moe", config, mlps=sparse_layers(config, experts, mlp_of(config)))


def _qwen3(family: str, config: FamilyConfig, **fields: Any) -> DecoderSpec:
    config = config.with_defaults(max_position_embeddings=QWEN_CONTEXT)
    bias, windows = config.flag("attention_bias", False), mixed_windows(config)
    common: dict[str, Any] = {
        "windows": windows,
        "head_dim": 128,
        "qk_norm": QkNorm(),
        "bias": bias,
        "output_bias": bias,
    }
    return llama_like(family, config, **common, **fields)
