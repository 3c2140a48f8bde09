"""The entries of GGUF architectures with experts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.models.gguf_architecture import WINDOW, GgufArchitecture, Values
from ferrum.models.gguf_dense import GRANITE_KEYS, GRANITE_ROPE
from ferrum.models.gguf_rope import LOG_MULTIPLIER

_SOFTMAX, _SIGMOID, _SOFTMAX_OF_CHOSEN = 1, 2, 3
"""Expert gating functions by their numbers in files."""

_COUNTED: Final = ("expert_count", "expert_used_count")
_INNER: Final = "expert_feed_forward_length"
_BOTH: Final = (*_COUNTED, _INNER, "feed_forward_length")
"""Keys that files with experts have; the last one is of layers without experts."""

_LOCAL: Final = {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"}
_PLAIN: Final = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_ROUTED: Final = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
}
"""The keys of DeepSeek's mixture of experts."""


def _shared(name: str) -> dict[str, str]:
    """Return the names of a shared feed-forward's tensors."""
    return {f"ffn_{part}_shexp": f"mlp.{name}.{part}_proj" for part in ("gate", "up", "down")}


def _qwen3_widths(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return the width of Qwen's experts, which older files lack: a share of the model's."""
    inner = config.get("intermediate_size")
    width = values.get("expert_feed_forward_length") or inner // config["num_experts_per_tok"]
    return {"intermediate_size": inner or width, "moe_intermediate_size": width}


def _qwen2_widths(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:
    """Return the widths of Qwen2-MoE, whose shared feed-forward has the model's width in older files."""
    shared = values.get("expert_shared_feed_forward_length") or config["intermediate_size"]
    return {**_qwen3_widths(values, tensors, config), "shared_expert_intermediate_size": shared}


def _ernie_shared(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return the number of Ernie's shared experts, which files also say by their width together."""
    width = values.get("expert_shared_feed_forward_length", 0)
    return {"moe_num_shared_experts": config.get("moe_num_shared_experts", width // config["moe_intermediate_size"])}


def _qk_norm(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    return {"use_qk_norm": "blk.0.attn_q_norm.weight" in tensors}


def _expert_width(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    return {"intermediate_size": values["expert_feed_forward_length"]}


def _llama4(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return the fields of Llama 4. llama.cpp decides by the number of experts whether q and k have norms."""
    return {
        "intermediate_size": values.get("expert_feed_forward_length"),
        "intermediate_size_mlp": config["intermediate_size"],
        "use_qk_norm": config.get("num_local_experts") != 128,
    }


def _latent(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:
    """Return the fields of latent attention (DeepSeek-V2), whose newer files count the latent as one KV head."""
    mla = values.get("attention.key_length_mla")
    key = values.get("attention.key_length") if mla is None else mla
    value = values.get("attention.value_length" if mla is None else "attention.value_length_mla")
    rope = values.get("rope.dimension_count")
    if not all(isinstance(each, int) for each in (key, value, rope)):
        form = "" if mla is None else "_mla"
        lengths = f"deepseek2.attention.key_length{form}, attention.value_length{form}"
        raise CheckpointError(f"GGUF metadata must have {lengths} and rope.dimension_count")
    assert isinstance(key, int) and isinstance(rope, int)
    groups, experts = config.get("n_group"), config.get("n_routed_experts", 0)
    if groups is None and experts in _GROUPED:
        reason = "older files of this model do not say how its experts are grouped: convert it again"
        raise Unsupported("GGUF metadata without deepseek2.expert_group_count", reason)
    return {
        "qk_nope_head_dim": key - rope,
        "qk_rope_head_dim": rope,
        "head_dim": rope,
        "v_head_dim": value,
        "num_key_value_heads": config["num_attention_heads"],
        "q_lora_rank": values.get("attention.q_lora_rank"),
        "kv_lora_rank": values.get("attention.kv_lora_rank"),
        "n_group": groups or 1,
        "topk_group": config.get("topk_group") or 1,
        "norm_topk_prob": bool(config.get("norm_topk_prob", False)),
        "topk_method": _method(values, tensors, groups or 1),
        "routed_scaling_factor": config.get("routed_scaling_factor", 1.0),
    }


def _by_sigmoid(values: Values, tensors: Collection[str]) -> bool:
    """Whether experts are scored by a sigmoid, as in DeepSeek-V3; older files only have its bias."""
    return values.get("expert_gating_func") == _SIGMOID or any(".exp_probs_b." in name for name in tensors)


def _method(values: Values, tensors: Collection[str], groups: int) -> str:
    """Return how experts are chosen."""
    if _by_sigmoid(values, tensors):
        return "noaux_tc"
    return "group_limited_greedy" if groups > 1 else "greedy"


_GROUPED: Final = (160, 256)
"""Numbers of experts of the models that have them in groups: DeepSeek-V2 and V3."""

_DEEPSEEK: Final[dict[str, Any]] = {
    "parts": {
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        **_shared("shared_experts"),
    },
    "keys": _ROUTED,
    "ignored": (
        *("attention.key_length_mla", "attention.value_length_mla", "attention.value_length", "rope.dimension_count"),
        *("attention.q_lora_rank", "attention.kv_lora_rank"),
    ),
    "required": (
        *(*_BOTH, "attention.kv_lora_rank", "leading_dense_block_count"),
        *("expert_shared_count", "expert_weights_scale"),
    ),
    "log_multiplier": 0.1,
    "heads": False,
    "derive": _latent,
}
_DEEPSEEK3: Final = GgufArchitecture(
    "DeepseekV3ForCausalLM",
    "deepseek_v3",
    gating=_SIGMOID,
    **_DEEPSEEK,
)
_DEEPSEEK2: Final = GgufArchitecture(
    "DeepseekV2ForCausalLM",
    "deepseek_v2",
    gating=_SOFTMAX,
    variants=((_by_sigmoid, _DEEPSEEK3),),
    **_DEEPSEEK,
)
_MIXTRAL: Final = GgufArchitecture(
    "MixtralForCausalLM", "mixtral", permuted=True, keys=_LOCAL, fixed={"sliding_window": None}, required=_COUNTED
)

EXPERTS: Final[Mapping[str, GgufArchitecture]] = {
    "llama": GgufArchitecture(
        "LlamaForCausalLM",
        "llama",
        permuted=True,
        ignored=(LOG_MULTIPLIER,),  # in files of Devstral 2; llama.cpp does not read it in this architecture either
        variants=((lambda values, _: bool(values.get("expert_count")), _MIXTRAL),),
    ),
    "qwen2moe": GgufArchitecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        parts={**_shared("shared_expert"), "ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
        keys=_PLAIN,
        ignored=("expert_shared_feed_forward_length",),
        fixed={"norm_topk_prob": False},
        required=_COUNTED,
        gating=_SOFTMAX,
        derive=_qwen2_widths,
    ),
    "qwen3moe": GgufArchitecture(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        keys=_PLAIN,
        fixed={"norm_topk_prob": True},
        required=_COUNTED,
        gating=_SOFTMAX,
        derive=_qwen3_widths,
    ),
    "granitemoe": GgufArchitecture(
        "GraniteMoeForCausalLM",
        "granitemoe",
        permuted=True,
        parts={"ffn_gate_inp": "mlp.router.layer"},
        keys={**GRANITE_KEYS, **_LOCAL},
        required=(*GRANITE_KEYS, *_COUNTED),
        only=GRANITE_ROPE,
    ),
    "glm4moe": GgufArchitecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        parts={"post_attention_norm": "post_attention_layernorm", **_shared("shared_experts")},
        keys=_ROUTED,
        required=(*_BOTH, "expert_shared_count", "expert_weights_scale"),
        absent={"leading_dense_block_count": 0, "expert_weights_norm": False},
        partial="partial_rotary_factor",
        gating=_SIGMOID,
        derive=_qk_norm,
    ),
    "ernie4_5-moe": GgufArchitecture(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        parts=_shared("shared_experts"),
        keys={
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_shared_count": "moe_num_shared_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
        },
        ignored=("expert_shared_feed_forward_length",),
        required=(*_BOTH, "interleave_moe_layer_step", "leading_dense_block_count"),
        gating=_SOFTMAX,
        derive=_ernie_shared,
    ),
    "llama4": GgufArchitecture(
        "Llama4ForCausalLM",
        "llama4_text",
        parts={"ffn_gate_inp": "mlp.router", **_shared("shared_expert")},
        keys={**_LOCAL, "interleave_moe_layer_step": "interleave_moe_layer_step"},
        ignored=("expert_feed_forward_length",),
        required=(*_BOTH, "interleave_moe_layer_step"),
        only={"attention.sliding_window": ()},
        derive=_llama4,
    ),
    "gpt-oss": GgufArchitecture(
        "GptOssForCausalLM",
        "gpt_oss",
        parts={"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"},
        bare={"attn_sinks.weight": "self_attn.sinks"},
        keys={**WINDOW, **_LOCAL},
        ignored=("expert_feed_forward_length",),
        required=(*_COUNTED, _INNER, "attention.sliding_window"),
        period=2,
        gating=_SOFTMAX_OF_CHOSEN,
        fixed={"rope_parameters": {"rope_type": "default"}},  # files name a scaling if there is one
        rope_fixed={"truncate": False},
        derive=_expert_width,
    ),
    "minimax-m2": GgufArchitecture(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        keys=_LOCAL,
        ignored=("expert_feed_forward_length",),
        required=(*_COUNTED, _INNER),
        partial="rotary_dim",
        gating=_SIGMOID,
        derive=_expert_width,
    ),
    "deepseek2": _DEEPSEEK2,
}
"""Architectures by GGUF's name. Mistral's files call themselves llama, as Mixtral's do."""
