"""DeepSeek V2 and V3 (DeepSeek-AI 2024), Kimi-K2, and GLM-4.7-Flash, which share latent attention."""

from __future__ import annotations

import math

from ferrum.core.errors import CheckpointError
from ferrum.kernels.op_attributes import Routing
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES, MODEL_TYPES
from ferrum.models.glm import grouped_experts
from ferrum.models.latent_spec import LatentAttentionSpec
from ferrum.models.llama import activation_of, decoder_of, mlp_of, norms_of
from ferrum.models.rope import rope_section, rope_spec
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm

MODEL_TYPES["kimi_k2"] = "DeepseekV3ForCausalLM"


@FAMILIES.register("DeepseekV2ForCausalLM")
def deepseek_v2(config: FamilyConfig) -> DecoderSpec:
    """Return latent attention, and experts chosen by a softmax, perhaps within the groups of the best ones."""
    inner, shared = config.integer("moe_intermediate_size"), config.integer("n_shared_experts", 0, minimum=0)
    config.require("norm_topk_prob", False, False)
    config.require("scoring_func", "softmax", "softmax")
    config.require("mlp_bias", False, False)
    grouped = config.values.get("topk_method") == "group_limited_greedy"
    if not grouped:
        config.require("topk_method", "greedy", "greedy")
    routing = Routing(
        config.integer("n_routed_experts"),
        config.integer("num_experts_per_tok"),
        groups=config.integer("n_group") if grouped else 1,
        kept_groups=config.integer("topk_group") if grouped else 1,
        factor=config.number("routed_scaling_factor", zero=True),
    )
    activation = activation_of(config)
    both = MlpSpec(inner * shared, activation) if shared else None
    experts = ExpertsSpec(routing, inner, activation, shared=both)
    return _deepseek("deepseek-v2", config, experts, _first_dense(config))


@FAMILIES.register("DeepseekV3ForCausalLM")
def deepseek_v3(config: FamilyConfig) -> DecoderSpec:
    """Return latent attention, and experts chosen by a sigmoid and a bias within the best groups."""
    return _deepseek("deepseek-v3", config, grouped_experts(config), _first_dense(config))


@FAMILIES.register("Glm4MoeLiteForCausalLM")
def glm4_moe_lite(config: FamilyConfig) -> DecoderSpec:
    """Return DeepSeek-V3 with other sizes (GLM-4.7-Flash)."""
    kinds = config.values.get("mlp_layer_types")
    dense = _first_dense(config)
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != config.num_layers() or set(kinds) - {"dense", "sparse"}:
            raise CheckpointError("config.json: mlp_layer_types must name dense or sparse for each layer")
        dense = [kind == "dense" for kind in kinds]
    return _deepseek("glm4-moe-lite", config, grouped_experts(config), dense)


def _first_dense(config: FamilyConfig) -> list[bool]:
    """Return which layers have no experts: the first ones."""
    config.require("moe_layer_freq", 1, 1)
    first = config.integer("first_k_dense_replace", minimum=0)
    return [i < first for i in range(config.num_layers())]


def _deepseek(family: str, config: FamilyConfig, experts: PartSpec, dense: list[bool]) -> DecoderSpec:
    attention, mlp = _attention(config), mlp_of(config)
    return decoder_of(
        family,
        config,
        (pre_norm(attention, mlp if plain else experts) for plain in dense),
        norms=norms_of(config),
        extra_layers=1,
    )


def _attention(config: FamilyConfig) -> LatentAttentionSpec:
    config.require("attention_bias", False, False)
    nope, turned = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    heads = config.integer("num_attention_heads")
    config.require("num_key_value_heads", heads, heads)
    config.require("head_dim", turned, turned)
    config.require("qk_head_dim", nope + turned, nope + turned)
    return LatentAttentionSpec(
        num_heads=heads,
        nope_dim=nope,
        rope_dim=turned,
        value_dim=config.integer("v_head_dim"),
        latent_dim=config.integer("kv_lora_rank"),
        rope=rope_spec(config, turned, interleaved=config.flag("rope_interleave")),
        scale=(nope + turned) ** -0.5 * _temperature(config),
        q_rank=config.optional_integer("q_lora_rank"),
    )


def _temperature(config: FamilyConfig) -> float:
    """Return the square of YaRN's scale for all dimensions, a factor of scores."""
    section, kind = rope_section(config)
    weight = section.optional_number("mscale_all_dim")
    if kind == "default" or weight is None:
        return 1.0
    factor = section.number("factor")
    mscale = 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
    return mscale * mscale
