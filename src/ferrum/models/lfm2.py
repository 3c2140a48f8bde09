"""LFM2, dense and with experts (Liquid AI 2025): gated short convolutions in most layers, attention in the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from ferrum.kernels.op_attributes import SILU, Routing
from ferrum.models.attention_spec import QkNorm
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import (
    ARCHITECTURES,
    COUNTED,
    INNER,
    RMS_EPSILON,
    SIGMOID,
    GgufArchitecture,
    Values,
)
from ferrum.models.llama import FULL, attention_of, decoder_of, heads_of, layer_types, norms_of
from ferrum.models.recurrent_spec import ShortConvSpec
from ferrum.models.rope import rope_spec
from ferrum.models.spec import BlockSpec, BranchSpec, DecoderSpec, MlpSpec

CONVOLUTION: Final = "conv"

_NAMES: Final = (
    (r"(layers\.\d+)\.mlp\.", r"\1.feed_forward."),
    (r"(feed_forward\.(?:experts\.\d+\.)?)gate_proj\.", r"\1w1."),
    (r"(feed_forward\.(?:experts\.\d+\.)?)down_proj\.", r"\1w2."),
    (r"(feed_forward\.(?:experts\.\d+\.)?)up_proj\.", r"\1w3."),
    (r"(self_attn\.)o_proj\.", r"\1out_proj."),
    (r"\.q_norm\.", ".q_layernorm."),
    (r"\.k_norm\.", ".k_layernorm."),
    (r"\.input_layernorm\.", ".operator_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"^model\.norm\.", "model.embedding_norm."),
)
"""Patterns of the common names, and those of LFM2."""


@FAMILIES.register("Lfm2ForCausalLM")
def lfm2(config: FamilyConfig) -> DecoderSpec:
    """Return a gated feed-forward in all layers."""
    return _lfm2("lfm2", config, [MlpSpec(_width(config), SILU)] * config.num_layers())


@FAMILIES.register("Lfm2MoeForCausalLM")
def lfm2_moe(config: FamilyConfig) -> DecoderSpec:
    """Return experts after the first layers, chosen by sigmoids with a selection bias."""
    routing = Routing(
        config.integer("num_experts"),
        config.integer("num_experts_per_tok"),
        "sigmoid",
        renormalise=config.flag("norm_topk_prob"),
        eps=1e-6,
        factor=config.number("routed_scaling_factor"),
    )
    bias = "expert_bias" if config.flag("use_expert_bias") else None
    experts = ExpertsSpec(routing, config.integer("moe_intermediate_size"), SILU, selection_bias=bias)
    dense = config.integer("num_dense_layers", minimum=0)
    mlp = MlpSpec(config.integer("intermediate_size"), SILU)
    return _lfm2("lfm2-moe", config, [mlp if i < dense else experts for i in range(config.num_layers())])


def _width(config: FamilyConfig) -> int:
    """Return the width of the feed-forward, which the configuration may give before an adjustment."""
    width = config.integer("block_ff_dim", config.integer("intermediate_size"))
    if not config.flag("block_auto_adjust_ff_dim"):
        return width
    width = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    multiple = config.integer("block_multiple_of")
    return -(-width // multiple) * multiple


def _lfm2(family: str, config: FamilyConfig, mlps: Sequence[PartSpec]) -> DecoderSpec:
    """Return the decoder, with this feed-forward in each layer."""
    heads = heads_of(config)
    attention = attention_of(heads, rope=rope_spec(config, heads.head_dim), qk_norm=QkNorm())
    convolution = ShortConvSpec(config.integer("conv_L_cache", minimum=2), config.flag("conv_bias"))
    full = config.integers("full_attn_idxs")
    default = (FULL if full is None or i in full else CONVOLUTION for i in range(config.num_layers()))
    layers = []
    for kind, mlp in zip(layer_types(config, default, (CONVOLUTION, FULL)), mlps, strict=True):
        mixer: tuple[str, PartSpec] = ("self_attn", attention) if kind == FULL else ("conv", convolution)
        first, second = BranchSpec((mixer,), "input_layernorm"), BranchSpec((("mlp", mlp),), "post_attention_layernorm")
        layers.append(BlockSpec((first, second)))
    tied = config.flag("tie_embedding", config.flag("tie_word_embeddings", True))
    return decoder_of(family, config, layers, norms=norms_of(config, "norm_eps"), renames=_NAMES, tied_head=tied)


def _biases(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return whether convolutions have biases, and whether experts are chosen with one."""
    found = {"conv_bias": any(name.endswith(".shortconv.conv.bias") for name in tensors)}
    chosen = any(".exp_probs_b." in name for name in tensors)
    return {**found, "use_expert_bias": chosen} if "num_experts" in config else found


_COMMON: Final[dict[str, Any]] = {
    "parts": {f"shortconv.{name}": f"conv.{name}" for name in ("in_proj", "conv", "out_proj")},
    "whole": {"token_embd_norm": "model.norm"},
    "recurrent": CONVOLUTION,
    "derive": _biases,
}
_KEYS: Final = {RMS_EPSILON: "norm_eps", "shortconv.l_cache": "conv_L_cache"}

ARCHITECTURES["lfm2"] = GgufArchitecture(
    "Lfm2ForCausalLM",
    "lfm2",
    keys=_KEYS,
    required=("shortconv.l_cache",),
    fixed={"block_auto_adjust_ff_dim": False},  # the converter has adjusted it
    **_COMMON,
)
ARCHITECTURES["lfm2moe"] = GgufArchitecture(
    "Lfm2MoeForCausalLM",
    "lfm2_moe",
    keys={
        **_KEYS,
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        INNER: "moe_intermediate_size",
        "leading_dense_block_count": "num_dense_layers",
    },
    required=("shortconv.l_cache", *COUNTED, INNER, "leading_dense_block_count"),
    absent={"leading_dense_block_count": 0},
    fixed={"norm_topk_prob": True},
    gating=SIGMOID,
    **_COMMON,
)
