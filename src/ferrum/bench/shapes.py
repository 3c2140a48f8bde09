"""Configurations of known models, for measuring their speed with random weights. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import ConfigError

_QWEN3: Final[Mapping[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
}
"""Values all dense Qwen3 models share, in the names of their `config.json`."""


def _qwen3(hidden: int, layers: int, heads: int, inner: int, **others: Any) -> Mapping[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**_QWEN3, **sizes, "intermediate_size": inner, **others}


_QWEN3_30B_A3B: Final = _qwen3(
    2048,
    48,
    32,
    6144,
    architectures=["Qwen3MoeForCausalLM"],
    num_key_value_heads=4,
    tie_word_embeddings=False,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)

_GPT_OSS_20B: Final[Mapping[str, Any]] = {
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": 201088,
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "swiglu_limit": 7.0,
    "hidden_act": "silu",
    "attention_bias": True,
    "tie_word_embeddings": False,
}

_GEMMA3_4B: Final[Mapping[str, Any]] = {
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 262208,
    "hidden_size": 2560,
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 10240,
    "query_pre_attn_scalar": 256,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "tie_word_embeddings": True,
}

_DEEPSEEK_V2_LITE: Final[Mapping[str, Any]] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "vocab_size": 102400,
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
    },
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}

_QWEN3_6_35B_A3B: Final[Mapping[str, Any]] = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000000.0,
    "partial_rotary_factor": 0.25,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}

_LFM2_8B_A1B: Final[Mapping[str, Any]] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "vocab_size": 65536,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "full_attn_idxs": [2, 6, 10, 14, 18, 21],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "conv_bias": False,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "use_expert_bias": True,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}

SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728),
    "qwen3-8b": _qwen3(4096, 36, 32, 12288, tie_word_embeddings=False),
    "qwen3-30b-a3b": _QWEN3_30B_A3B,
    "gpt-oss-20b": _GPT_OSS_20B,
    "gemma-3-4b": _GEMMA3_4B,
    "deepseek-v2-lite": _DEEPSEEK_V2_LITE,
    "qwen3.6-35b-a3b": _QWEN3_6_35B_A3B,
    "lfm2-8b-a1b": _LFM2_8B_A1B,
    "tiny": _qwen3(64, 2, 4, 96, vocab_size=512, head_dim=16, num_key_value_heads=2),
}
"""`config.json` by name. `tiny` is not a real model: it is for trying the benchmark itself."""


def shape_config(name: str, layers: int | None = None) -> Mapping[str, Any]:
    """Return the configuration of that name, with only its first `layers` layers if given.

    Raises:
        ConfigError: there is none, or it has fewer layers.
    """
    if name not in SHAPES:
        raise ConfigError(f"must be one of {', '.join(SHAPES)}, not {name!r}", param="shape")
    config = SHAPES[name]
    if layers is None:
        return config
    all_layers = config["num_hidden_layers"]
    if not 1 <= layers <= all_layers:
        raise ConfigError(f"must be from 1 to the {all_layers} layers of {name}, not {layers}", param="layers")
    return {**config, "num_hidden_layers": layers}


def shape_title(name: str, layers: int | None = None) -> str:
    """Return the name of a shape for reports; it says if layers are left out."""
    all_layers = shape_config(name)["num_hidden_layers"]
    return name if layers in (None, all_layers) else f"{name} ({layers} of {all_layers} layers)"
