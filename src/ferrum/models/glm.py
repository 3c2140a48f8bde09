"""GLM-4, dense and with experts (GLM Team 2024, 2025)."""

from __future__ import annotations

from typing import Final

from ferrum.kernels.op_attributes import Routing
from ferrum.models.attention_spec import QkNorm
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, BOTH, INNER, SIGMOID, GgufArchitecture, shared_names
from ferrum.models.llama import activation_of, attention_of, decoder_of, heads_of, mlp_of, norms_of
from ferrum.models.rope import rope_spec
from ferrum.models.spec import BlockSpec, BranchSpec, DecoderSpec, MlpSpec, pre_norm

ROUTED: Final = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    INNER: "moe_intermediate_size",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
}
"""The keys of grouped experts in GGUF files."""

ARCHITECTURES["glm4"] = GgufArchitecture(
    "Glm4ForCausalLM",
    "glm4",
    parts={
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
        "ffn_up": "mlp.gate_up_proj",
    },
    partial="partial_rotary_factor",
)
ARCHITECTURES["glm4moe"] = GgufArchitecture(
    "Glm4MoeForCausalLM",
    "glm4_moe",
    parts=shared_names("shared_experts"),
    keys=ROUTED,
    flags={"use_qk_norm": "blk.0.attn_q_norm.weight"},
    required=(*BOTH, "expert_shared_count", "expert_weights_scale"),
    absent={"leading_dense_block_count": 0, "expert_weights_norm": False},
    partial="partial_rotary_factor",
    gating=SIGMOID,
)


@FAMILIES.register("Glm4ForCausalLM")
def glm4(config: FamilyConfig) -> DecoderSpec:
    """Return sandwich norms, and a rope of adjacent pairs in half of each head."""
    heads = heads_of(config)
    attention = attention_of(
        heads,
        rope=rope_spec(config, heads.head_dim, partial=True, interleaved=True),
        bias=config.flag("attention_bias"),
    )
    mlp = mlp_of(config, fused="gate_up_proj")
    layer = BlockSpec(
        (
            BranchSpec((("self_attn", attention),), "input_layernorm", "post_self_attn_layernorm"),
            BranchSpec((("mlp", mlp),), "post_attention_layernorm", "post_mlp_layernorm"),
        )
    )
    return decoder_of("glm4", config, [layer] * config.num_layers(), norms=norms_of(config))


@FAMILIES.register("Glm4MoeForCausalLM")
def glm4_moe(config: FamilyConfig) -> DecoderSpec:
    """Return the experts of DeepSeek-V3, and a rope in half of each head (GLM-4.5 and 4.6)."""
    heads, count = heads_of(config), config.num_layers()
    attention = attention_of(
        heads,
        rope=rope_spec(config, heads.head_dim, partial=True),
        qk_norm=QkNorm() if config.flag("use_qk_norm") else None,
        bias=config.flag("attention_bias"),
    )
    first = config.integer("first_k_dense_replace", minimum=0)
    experts, dense = grouped_experts(config), mlp_of(config)
    mlps: list[PartSpec] = [dense if i < first else experts for i in range(count)]
    return decoder_of(
        "glm4-moe",
        config,
        (pre_norm(attention, mlp) for mlp in mlps),
        norms=norms_of(config),
        extra_layers=1,
    )


def grouped_experts(config: FamilyConfig) -> ExpertsSpec:
    """Return sigmoid routing with a selection bias within groups, and shared experts (DeepSeek-V3, section 2.1.2)."""
    config.require("scoring_func", "sigmoid", "sigmoid")
    config.require("topk_method", "noaux_tc", "noaux_tc")
    inner = config.integer("moe_intermediate_size")
    shared = config.integer("n_shared_experts", 0, minimum=0)
    routing = Routing(
        config.integer("n_routed_experts"),
        config.integer("num_experts_per_tok"),
        "sigmoid",
        groups=config.integer("n_group"),
        kept_groups=config.integer("topk_group"),
        group_best=2,
        renormalise=config.flag("norm_topk_prob"),
        eps=1e-20,
        factor=config.number("routed_scaling_factor", zero=True),
    )
    return ExpertsSpec(
        routing,
        inner,
        activation_of(config),
        selection_bias="gate.e_score_correction_bias",
        shared=MlpSpec(inner * shared, activation_of(config)) if shared else None,
    )
