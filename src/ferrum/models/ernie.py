"""Ernie 4.5, dense and with experts (Baidu 2025)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ferrum.kernels.op_attributes import Routing
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, BOTH, INNER, SOFTMAX, GgufArchitecture, Values, shared_names
from ferrum.models.llama import activation_of, attention_of, decoder_of, heads_of, mlp_of, norms_of
from ferrum.models.rope import rope_spec
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm


@FAMILIES.register("Ernie4_5ForCausalLM")
def ernie(config: FamilyConfig) -> DecoderSpec:
    """Return Llama with a rope of adjacent pairs."""
    bias = config.flag("use_bias")
    return _ernie("ernie4.5", config, [mlp_of(config, bias=bias)] * config.num_layers())


@FAMILIES.register("Ernie4_5_MoeForCausalLM")
def ernie_moe(config: FamilyConfig) -> DecoderSpec:
    """Return Ernie with experts, chosen by a softmax with a bias."""
    count, bias = config.num_layers(), config.flag("use_bias")
    first, last = config.integer("moe_layer_start_index", minimum=0), config.integer("moe_layer_end_index", minimum=-1)
    last = count - 1 if last < 0 else last
    interval, inner = config.integer("moe_layer_interval"), config.integer("moe_intermediate_size")
    shared = config.integer("moe_num_shared_experts", minimum=0)
    routing = Routing(
        config.integer("moe_num_experts"),
        config.integer("moe_k"),
        renormalise=True,
        least=config.number("moe_norm_min", zero=True),
    )
    experts = ExpertsSpec(
        routing,
        inner,
        activation_of(config),
        selection_bias="moe_statics.e_score_correction_bias",
        shared=MlpSpec(inner * shared, activation_of(config), bias=bias) if shared else None,
    )
    dense = mlp_of(config, bias=bias)
    mlps: list[PartSpec] = [experts if (i + 1) % interval == 0 and first <= i <= last else dense for i in range(count)]
    return _ernie("ernie4.5-moe", config, mlps)


def _ernie(family: str, config: FamilyConfig, mlps: list[PartSpec]) -> DecoderSpec:
    heads, bias = heads_of(config), config.flag("use_bias")
    rope = rope_spec(config, heads.head_dim, interleaved=True)
    attention = attention_of(heads, rope=rope, bias=bias, output_bias=bias)
    return decoder_of(family, config, (pre_norm(attention, mlp) for mlp in mlps), norms=norms_of(config))


def _shared(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return the number of Ernie's shared experts, which files also say by their width together."""
    width = values.get("expert_shared_feed_forward_length", 0)
    return {"moe_num_shared_experts": config.get("moe_num_shared_experts", width // config["moe_intermediate_size"])}


ARCHITECTURES["ernie4_5"] = GgufArchitecture("Ernie4_5ForCausalLM", "ernie4_5", flags={"use_bias": "blk.0.attn_q.bias"})
ARCHITECTURES["ernie4_5-moe"] = GgufArchitecture(
    "Ernie4_5_MoeForCausalLM",
    "ernie4_5_moe",
    parts=shared_names("shared_experts"),
    keys={
        "expert_count": "moe_num_experts",
        "expert_used_count": "moe_k",
        "expert_shared_count": "moe_num_shared_experts",
        INNER: "moe_intermediate_size",
        "interleave_moe_layer_step": "moe_layer_interval",
        "leading_dense_block_count": "moe_layer_start_index",
    },
    ignored=("expert_shared_feed_forward_length",),
    required=(*BOTH, "interleave_moe_layer_step", "leading_dense_block_count"),
    gating=SOFTMAX,
    derive=_shared,
)
