"""Seed-OSS (ByteDance Seed 2025)."""

from __future__ import annotations

from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, GgufArchitecture
from ferrum.models.llama import llama_like, mlp_of
from ferrum.models.spec import DecoderSpec

ARCHITECTURES["seed_oss"] = GgufArchitecture(
    "SeedOssForCausalLM", "seed_oss", flags={"attention_out_bias": "blk.0.attn_output.bias"}
)


@FAMILIES.register("SeedOssForCausalLM")
def seed_oss(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with biases on q, k and v, and perhaps elsewhere."""
    return llama_like(
        "seed-oss",
        config,
        mlps=[mlp_of(config, bias=config.flag("mlp_bias"))] * config.num_layers(),
        bias=config.flag("attention_bias"),
        output_bias=config.flag("attention_out_bias"),
    )
