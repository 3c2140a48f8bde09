"""Qwen2 and Qwen2.5 (Yang et al. 2024), and Qwen1.5-MoE and Qwen2-MoE."""

from __future__ import annotations

from ferrum.kernels.op_attributes import Routing
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.llama import QWEN_CONTEXT, activation_of, llama_like, mixed_windows, mlp_of
from ferrum.models.spec import DecoderSpec, MlpSpec


@FAMILIES.register("Qwen2ForCausalLM")
def qwen2(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with biases on q, k and v."""
    config = config.with_defaults(max_position_embeddings=QWEN_CONTEXT)
    return llama_like("qwen2", config, windows=mixed_windows(config), bias=True)


@FAMILIES.register("Qwen2MoeForCausalLM")
def qwen2_moe(config: FamilyConfig) -> DecoderSpec:
    """Return Qwen2 with experts, and a shared feed-forward that has a gate."""
    config = config.with_defaults(max_position_embeddings=QWEN_CONTEXT)
    shared = MlpSpec(config.integer("shared_expert_intermediate_size", 5632), activation_of(config))
    experts = ExpertsSpec(
        softmax_routing(config, config.integer("num_experts", 60), config.integer("num_experts_per_tok", 4)),
        config.integer("moe_intermediate_size", 1408),
        activation_of(config),
        shared=shared,
        shared_name="shared_expert",
        shared_gate="shared_expert_gate",
    )
    bias = config.flag("qkv_bias", True)
    mlps = sparse_layers(config, experts, mlp_of(config))
    return llama_like("qwen2-moe", config, windows=mixed_windows(config), bias=bias, mlps=mlps)


def softmax_routing(config: FamilyConfig, count: int, top_k: int) -> Routing:
    """Return routing by a softmax over all experts, renormalised with `norm_topk_prob`."""
    return Routing(count, top_k, renormalise=config.flag("norm_topk_prob", False))


def sparse_layers(config: FamilyConfig, experts: PartSpec, dense: PartSpec) -> list[PartSpec]:
    """Return the feed-forward of each layer, by `decoder_sparse_step` and `mlp_only_layers`."""
    step, only = config.integer("decoder_sparse_step", 1), config.values.get("mlp_only_layers") or ()
    return [dense if i in only or (i + 1) % step else experts for i in range(config.num_layers())]
