"""Qwen3-Next and Qwen3.5, dense and with experts: gated DeltaNet in most layers, gated attention in the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ferrum.kernels.op_attributes import Routing
from ferrum.models.attention_spec import QkNorm
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.llama import (
    FULL,
    activation_of,
    attention_of,
    decoder_of,
    heads_of,
    layer_types,
    mlp_of,
    norms_of,
)
from ferrum.models.qwen2 import sparse_layers
from ferrum.models.recurrent_spec import DeltaNetSpec
from ferrum.models.rope import rope_spec
from ferrum.models.spec import BlockSpec, BranchSpec, DecoderSpec, MlpSpec

LINEAR: Final = "linear_attention"


@FAMILIES.register("Qwen3NextForCausalLM")
def qwen3_next(config: FamilyConfig) -> DecoderSpec:
    """Return experts in all layers, and projections of DeltaNet that are ordered by key head."""
    shared = MlpSpec(config.integer("shared_expert_intermediate_size"), activation_of(config))
    mlps = sparse_layers(config, shared=shared, shared_name="shared_expert", shared_gate="shared_expert_gate")
    return _hybrid("qwen3-next", config, mlps, by_key_head=not config.flag("linear_split"))


@FAMILIES.register("Qwen3_5ForCausalLM")
def qwen3_5(config: FamilyConfig) -> DecoderSpec:
    """Return a gated feed-forward in all layers."""
    return _hybrid("qwen3.5", config, [mlp_of(config)] * config.num_layers())


@FAMILIES.register("Qwen3_5MoeForCausalLM")
def qwen3_5_moe(config: FamilyConfig) -> DecoderSpec:
    """Return experts in all layers, renormalised."""
    routing = Routing(config.integer("num_experts"), config.integer("num_experts_per_tok"), renormalise=True)
    experts = ExpertsSpec(
        routing,
        config.integer("moe_intermediate_size"),
        activation_of(config),
        shared=MlpSpec(config.integer("shared_expert_intermediate_size"), activation_of(config)),
        shared_name="shared_expert",
        shared_gate="shared_expert_gate",
    )
    return _hybrid("qwen3.5-moe", config, [experts] * config.num_layers())


def _hybrid(family: str, config: FamilyConfig, mlps: Sequence[PartSpec], *, by_key_head: bool = False) -> DecoderSpec:
    """Return the decoder, with this feed-forward in each layer."""
    heads = heads_of(config)
    bias = config.flag("attention_bias")
    attention = attention_of(
        heads,
        rope=rope_spec(config.with_values(**_rotated(config)), heads.head_dim, partial=True),
        qk_norm=QkNorm(),
        bias=bias,
        output_bias=bias,
        gated=True,
    )
    linear = DeltaNetSpec(
        num_heads=config.integer("linear_num_value_heads"),
        num_key_heads=config.integer("linear_num_key_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        taps=config.integer("linear_conv_kernel_dim", minimum=2),
        by_key_head=by_key_head,
        interleaved=config.flag("linear_interleaved"),
        stored_decay=config.flag("linear_stored_decay"),
    )
    period = config.integer("full_attention_interval", 4)
    default = (LINEAR if (i + 1) % period else FULL for i in range(config.num_layers()))
    layers = []
    for kind, mlp in zip(layer_types(config, default, (LINEAR, FULL)), mlps, strict=True):
        mixer: tuple[str, PartSpec] = ("self_attn", attention) if kind == FULL else ("linear_attn", linear)
        first, second = BranchSpec((mixer,), "input_layernorm"), BranchSpec((("mlp", mlp),), "post_attention_layernorm")
        layers.append(BlockSpec((first, second)))
    offset = float(config.integer("norm_offset", 1, minimum=0, maximum=1))
    return decoder_of(family, config, layers, norms=norms_of(config, offset=offset, layout_offset=1.0))


def _rotated(config: FamilyConfig) -> dict[str, float]:
    """Return the share of a head that is rotated, a quarter unless the configuration says another one."""
    return {"partial_rotary_factor": config.number("partial_rotary_factor", 0.25)}
