"""The entries of GGUF architectures without experts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.models.gguf_architecture import RMS_EPSILON, WINDOW, GgufArchitecture, Values

_POST_NORMS: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SOFTCAPS: Final = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GRANITE: Final = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
"""Factors of Granite."""

GRANITE_ROPE: Final = {"rope.scaling.finetuned": (True,)}
"""The key with which files of Granite turn the rope off."""


_STILL: Final = 1e29
"""Least divisor of the frequency of a pair that is not rotated."""


def _query_scale(wide_layers: int) -> Any:
    """Return what derives Gemma's scale of queries: hidden size / heads in the model of that depth."""

    def derive(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
        wide = config["num_hidden_layers"] == wide_layers
        per_head = config["hidden_size"] // config["num_attention_heads"]
        return {"query_pre_attn_scalar": per_head if wide else config["head_dim"]}

    return derive


def _biases(**fields: str) -> Any:
    """Return what derives flags from the presence of tensors."""

    def derive(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
        return {field: name in tensors for field, name in fields.items()}

    return derive


def _gemma4(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:
    """Return the fields of Gemma 4: other heads in full layers, which have a proportional rope, and wider layers."""
    kinds, count = config["layer_types"], config["num_hidden_layers"]
    full = [kind == "full_attention" for kind in kinds]
    heads = per_layer(values, "attention.head_count_kv", count)
    widths = per_layer(values, "feed_forward_length", count)
    shared = count - config.get("num_kv_shared_layers", 0)
    for key in ("expert_used_count", "expert_feed_forward_length") if values.get("expert_count") else ():
        if not values.get(key):
            raise CheckpointError(f"GGUF metadata has no gemma4.{key}")
    for suffix in ("", "_swa"):
        width, value = (values.get(f"attention.{part}_length{suffix}") for part in ("key", "value"))
        if value not in (None, width):
            reason = f"keys have {width!r} numbers, and values must have the same"
            raise Unsupported(f"GGUF metadata gemma4.attention.value_length{suffix}={value!r}", reason)
    own = {each for each, whole in zip(heads, full, strict=True) if not whole}
    whole_heads = {each for each, whole in zip(heads, full, strict=True) if whole}
    wide = [width != widths[0] for width in widths]
    doubled = wide == [i >= shared for i in range(count)] and set(widths) == {widths[0], 2 * widths[0]}
    if len(own) != 1 or len(whole_heads) != 1 or (any(wide) and not doubled):
        raise Unsupported("GGUF metadata gemma4.feed_forward_length or head_count_kv", "layers differ in another way")
    factors = (config.get("rope_scaling") or {}).get("factors") or [1.0]
    turned = sum(factor == 1 for factor in factors)
    rest = factors[turned:]
    if any(factor != 1 for factor in factors[:turned]) or any(factor < _STILL for factor in rest):
        raise Unsupported("GGUF tensor rope_freqs.weight", "only a rope of the first pairs is read for this model")
    theta = config["rope_theta"]
    values_of_full = [f"blk.{i}.attn_v.weight" in tensors for i in range(min(shared, count)) if full[i]]
    return {
        "head_dim": values["attention.key_length_swa"],
        "global_head_dim": values["attention.key_length"],
        "num_key_value_heads": own.pop(),
        "num_global_key_value_heads": whole_heads.pop(),
        "attention_k_eq_v": not any(values_of_full),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": doubled,
        "enable_moe_block": bool(values.get("expert_count")),
        "rope_scaling": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": values.get("rope.freq_base_swa", 10000.0)},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": theta,
                "partial_rotary_factor": turned / len(factors),
            },
        },
    }


def per_layer(values: Values, key: str, count: int) -> list[int]:
    """Return a key's number of each layer; files have one for all or a list."""
    found = values.get(key)
    numbers = found[:count] if isinstance(found, list) else [found] * count
    integers = [each for each in numbers if isinstance(each, int)]
    if len(integers) != count or len(numbers) != count:
        raise Unsupported(f"GGUF metadata {key}={found!r}", f"block_count needs {count} numbers")
    return integers


_GEMMA2: Final = GgufArchitecture(
    "Gemma2ForCausalLM",
    "gemma2",
    parts=_POST_NORMS,
    keys={**WINDOW, **_SOFTCAPS},
    fixed={"norm_offset": 0.0},  # the converter has added 1 to the weights of norms
    absent={"attention.sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    period=2,
    derive=_query_scale(46),
)


def _gemma3(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:
    """Return the scales of the released models: of queries, and of the rope in files without a key of it (ollama's)."""
    stretched = config["num_hidden_layers"] in (34, 48, 62) and "rope.scaling.factor" not in values
    rope = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}} if stretched else {}
    return {**_query_scale(62)(values, tensors, config), **rope}


_GEMMA3: Final = GgufArchitecture(
    "Gemma3ForCausalLM",
    "gemma3_text",
    parts=_POST_NORMS,
    keys={**WINDOW, **_SOFTCAPS, "rope.freq_base_swa": "rope_local_base_freq"},
    fixed={"norm_offset": 0.0},
    period=6,
    absent={RMS_EPSILON: 1e-6, "rope.freq_base": 1e6},  # ollama's files lack them
    derive=_gemma3,
)
_GEMMA4: Final = GgufArchitecture(
    "Gemma4ForCausalLM",
    "gemma4_text",
    parts={
        **_POST_NORMS,
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "ffn_gate_inp": "router.proj",
        **{f"ffn_{part}_exps": f"experts.{part}_proj" for part in ("gate", "up", "down", "gate_up")},
    },
    bare={
        "layer_output_scale.weight": "layer_scalar",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
    },
    whole={
        "per_layer_token_embd": "model.embed_tokens_per_layer",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
    },
    keys={
        **WINDOW,
        "final_logit_softcapping": "final_logit_softcapping",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    ignored=(
        *("attention.key_length_swa", "attention.value_length_swa", "rope.freq_base_swa"),
        *("rope.dimension_count", "rope.dimension_count_swa"),
    ),
    required=(
        *("attention.sliding_window", "attention.sliding_window_pattern", "embedding_length_per_layer_input"),
        *("attention.key_length_swa", "attention.value_length_swa"),
    ),
    absent={"final_logit_softcapping": 30.0},
    period=6,
    heads=False,
    derive=_gemma4,
)
_OLMO3: Final = GgufArchitecture(
    "Olmo3ForCausalLM",
    "olmo3",
    parts={
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    keys=WINDOW,
    period=4,
)
_OLMO2: Final = GgufArchitecture(
    "Olmo2ForCausalLM",
    "olmo2",
    parts=_OLMO3.parts,
    variants=((lambda values, _: bool(values.get("attention.sliding_window")), _OLMO3),),
)
_MINISTRAL3: Final = GgufArchitecture(
    "Ministral3ForCausalLM", "ministral3", permuted=True, log_multiplier=1.0, rope="rope_parameters"
)
_MISTRAL3: Final = GgufArchitecture(
    "MistralForCausalLM",
    "mistral",
    permuted=True,
    fixed={"sliding_window": None},
    variants=((lambda values, _: bool(values.get("attention.temperature_scale")), _MINISTRAL3),),
)


def _phi3_window(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
    """Return the window of the first Phi-3 files, which lack it: llama.cpp knows their models by layers and context."""
    first = config["num_hidden_layers"] in (32, 40) and config["max_position_embeddings"] == 4096
    return {"sliding_window": 2047} if first and config.get("sliding_window") is None else {}


_EXAONE4: Final[dict[str, Any]] = {
    "parts": _OLMO3.parts,
    "keys": WINDOW,
    "fixed": {"sliding_window": None},
    "period": 4,
}
_EXAONE4_WIDE: Final = GgufArchitecture(
    "Exaone4ForCausalLM", "exaone4", absent={"attention.sliding_window": 4096}, **_EXAONE4
)

DENSE: Final[Mapping[str, GgufArchitecture]] = {
    "qwen2": GgufArchitecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": GgufArchitecture("Qwen3ForCausalLM", "qwen3"),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma4": _GEMMA4,
    "phi3": GgufArchitecture(
        "Phi3ForCausalLM",
        "phi3",
        parts={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        keys={**WINDOW, "rope.scaling.original_context_length": "original_max_position_embeddings"},
        partial="partial_rotary_factor",
        derive=_phi3_window,
    ),
    "olmo2": _OLMO2,
    "mistral3": _MISTRAL3,
    "smollm3": GgufArchitecture("SmolLM3ForCausalLM", "smollm3", permuted=True),
    "exaone4": GgufArchitecture(
        "Exaone4ForCausalLM",
        "exaone4",
        variants=((lambda values, _: values.get("block_count") == 64, _EXAONE4_WIDE),),
        **_EXAONE4,
    ),
    "seed_oss": GgufArchitecture(
        "SeedOssForCausalLM",
        "seed_oss",
        parts={"post_attention_norm": "post_attention_layernorm"},
        derive=_biases(attention_out_bias="blk.0.attn_output.bias"),
    ),
    "granite": GgufArchitecture(
        "GraniteForCausalLM", "granite", permuted=True, keys=_GRANITE, required=tuple(_GRANITE), only=GRANITE_ROPE
    ),
    "glm4": GgufArchitecture(
        "Glm4ForCausalLM",
        "glm4",
        parts={
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_up": "mlp.gate_up_proj",
        },
        partial="partial_rotary_factor",
    ),
    "cohere2": GgufArchitecture(
        "Cohere2ForCausalLM",
        "cohere2",
        keys={**WINDOW, "attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
        required=("attention.sliding_window", "logit_scale"),
        period=4,
    ),
    "starcoder2": GgufArchitecture(
        "Starcoder2ForCausalLM",
        "starcoder2",
        keys={"attention.layer_norm_epsilon": "norm_epsilon"},
        fixed={"sliding_window": 4096},  # of all sizes; files do not say
        derive=_biases(use_bias="blk.0.attn_q.bias"),
    ),
    "ernie4_5": GgufArchitecture("Ernie4_5ForCausalLM", "ernie4_5", derive=_biases(use_bias="blk.0.attn_q.bias")),
    "hunyuan-dense": GgufArchitecture("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
}
"""Architectures by GGUF's name."""

GRANITE_KEYS: Final = _GRANITE
