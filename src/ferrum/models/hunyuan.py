"""Hunyuan, dense (Tencent 2025)."""

from __future__ import annotations

from ferrum.models.attention_spec import QkNorm
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES, MODEL_TYPES
from ferrum.models.gguf_architecture import ARCHITECTURES, GgufArchitecture
from ferrum.models.llama import attention_of, decoder_of, heads_of, mlp_of, norms_of
from ferrum.models.rope import rope_spec
from ferrum.models.spec import DecoderSpec, pre_norm

MODEL_TYPES["hunyuan_v1_dense"] = "HunYuanDenseV1ForCausalLM"

ARCHITECTURES["hunyuan-dense"] = GgufArchitecture("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense")


@FAMILIES.register("HunYuanDenseV1ForCausalLM")
def hunyuan(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with norms of q and k after the rotation, whose base a constant alpha scales."""
    config.require("use_qk_norm", True, True)
    config.require("use_cla", False, False)  # layers that read the keys of others
    heads, bias = heads_of(config), config.flag("attention_bias")
    rope = rope_spec(config, heads.head_dim)
    attention = attention_of(heads, rope=rope, qk_norm=QkNorm(last=True), bias=bias, output_bias=bias)
    return decoder_of(
        "hunyuan",
        config,
        [pre_norm(attention, mlp_of(config))] * config.num_layers(),
        norms=norms_of(config),
        renames=((r"\.q_norm\.", ".query_layernorm."), (r"\.k_norm\.", ".key_layernorm.")),
    )
