"""Qwen3-Next and Qwen3.5, dense and with experts: gated DeltaNet in most layers, gated attention in the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from ferrum.core.errors import CheckpointError
from ferrum.kernels.op_attributes import Routing
from ferrum.models.attention_spec import QkNorm
from ferrum.models.builder import PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.experts_spec import ExpertsSpec
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import (
    ARCHITECTURES,
    COUNTED,
    INNER,
    SOFTMAX,
    GgufArchitecture,
    Values,
    shared_names,
)
from ferrum.models.gguf_rope import SECTIONS
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
from ferrum.models.recurrent_spec import TILED, DeltaNetSpec
from ferrum.models.rope import rope_spec, with_axes
from ferrum.models.spec import BlockSpec, BranchSpec, DecoderSpec, MlpSpec

LINEAR: Final = "linear_attention"


@FAMILIES.register("Qwen3NextForCausalLM")
def qwen3_next(config: FamilyConfig) -> DecoderSpec:
    """Return experts in all layers, and projections of DeltaNet that are ordered by key head."""
    shared = MlpSpec(config.integer("shared_expert_intermediate_size"), activation_of(config))
    mlps = sparse_layers(config, shared=shared, shared_name="shared_expert", shared_gate="shared_expert_gate")
    return _hybrid("qwen3-next", config, mlps, by_key_head=True)


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
    rope = rope_spec(config.with_values(**_rotated(config)), heads.head_dim, partial=True)
    attention = attention_of(
        heads,
        rope=with_axes(rope, config, (11, 11, 10)),
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
        tiled=config.flag("linear_tiled"),
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
    norms = norms_of(config, offset=offset, layout_offset=1.0)
    return decoder_of(family, config, layers, norms=norms, rotates_by_grid=True)


def _rotated(config: FamilyConfig) -> dict[str, float]:
    """Return the share of a head that is rotated, a quarter unless the configuration says another one."""
    return {"partial_rotary_factor": config.number("partial_rotary_factor", 0.25)}


def _delta(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return the width of values, and that of the shared feed-forward, which is the model's where a file lacks it."""
    inner, heads = values["ssm.inner_size"], values["ssm.time_step_rank"]
    if inner % heads:
        raise CheckpointError(f"GGUF metadata ssm.inner_size={inner} must be a multiple of ssm.time_step_rank={heads}")
    shared = values.get("expert_shared_feed_forward_length") or config.get("intermediate_size")
    found = {"linear_value_head_dim": inner // heads}
    return {**found, "shared_expert_intermediate_size": shared} if "num_experts" in config else found


def _parts(ending: str) -> dict[str, str]:
    """Return the names of a recurrent layer's tensors, whose parameters have this ending."""
    names = {"attn_qkv": "in_proj_qkv", "attn_gate": "in_proj_z", "ssm_beta": "in_proj_b", "ssm_alpha": "in_proj_a"}
    names |= {"ssm_conv1d": "conv1d", "ssm_out": "out_proj"}
    found = {ours: f"linear_attn.{theirs}{ending}" for ours, theirs in names.items()}
    return {**found, "ssm_norm": "linear_attn.norm"}


_EXPERTS: Final = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    INNER: "moe_intermediate_size",
}
_EXPERT_PARTS: Final = {**shared_names("shared_expert"), "ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
_SIZES: Final = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_ROPES: Final = (
    *(*SECTIONS, "rope.mrope_interleaved"),
    *("image_token_id", "vision_start_token_id", "vision_end_token_id"),
)
"""Keys of images, whose positions differ from those of text. The last ones are those of ollama."""

_COMMON: Final[dict[str, Any]] = {
    "required": (*_SIZES, "ssm.inner_size"),
    "partial": "partial_rotary_factor",
    "recurrent": LINEAR,
    "decays": ("ssm_a",),
    "shifted": "norm_offset",
    "derive": _delta,
}
_ORDERED: Final[dict[str, Any]] = {
    **_COMMON,
    "bare": {
        ".ssm_a": "linear_attn.decay",
        **dict.fromkeys(("ssm_dt.bias", ".ssm_dt"), f"linear_attn.dt_bias{TILED}"),
    },
    "ignored": (
        *("ssm.inner_size", "ssm.v_head_reordered", "norm_top_k_prob", "expert_shared_feed_forward_length"),
        *_ROPES,
    ),
    "only": {"ssm.v_head_reordered": (True,), "norm_top_k_prob": (True,), "rope.mrope_interleaved": (True,)},
    "fixed": {"norm_offset": 0, "linear_stored_decay": True, "linear_tiled": True},
}
"""The files of Qwen3.5, which the converter writes with tiled value heads."""

ARCHITECTURES["qwen3next"] = GgufArchitecture(
    "Qwen3NextForCausalLM",
    "qwen3_next",
    parts={
        **_parts(""),
        **_EXPERT_PARTS,
        "ssm_in": "linear_attn.in_proj_qkvz",  # in older files
        "ssm_ba": "linear_attn.in_proj_ba",
    },
    keys={**_SIZES, **_EXPERTS, "full_attention_interval": "full_attention_interval"},
    gating=SOFTMAX,
    **{
        **_COMMON,
        "required": (*_COMMON["required"], *COUNTED),
        "bare": {
            ".ssm_a": "linear_attn.decay",
            **dict.fromkeys(("ssm_dt.bias", ".ssm_dt"), "linear_attn.dt_bias"),
        },
        "ignored": ("ssm.inner_size", "expert_shared_feed_forward_length", "ssm.v_head_reordered"),
        "only": {"ssm.v_head_reordered": (False,)},
        "fixed": {"norm_offset": 0, "linear_stored_decay": True, "norm_topk_prob": True},
    },
)
ARCHITECTURES["qwen35"] = GgufArchitecture(
    "Qwen3_5ForCausalLM",
    "qwen3_5_text",
    parts=_parts(TILED),
    keys={**_SIZES, "full_attention_interval": "full_attention_interval"},
    **_ORDERED,
)
ARCHITECTURES["qwen35moe"] = GgufArchitecture(
    "Qwen3_5MoeForCausalLM",
    "qwen3_5_moe_text",
    parts={**_parts(TILED), **_EXPERT_PARTS},
    keys={**_SIZES, **_EXPERTS, "full_attention_interval": "full_attention_interval"},
    gating=SOFTMAX,
    **{**_ORDERED, "required": (*_COMMON["required"], *COUNTED)},
)
