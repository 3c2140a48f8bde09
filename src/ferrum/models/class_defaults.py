"""Values of fields that a `config.json` does not have, by architecture.

They are those of the configuration classes of `transformers`, which leave out of a file what equals them.
`tests/numeric/test_class_defaults.py` compares every row with its class. False is left out, and None where no other
family refuses the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Values = dict[str, Any]

_COMMON: Final[Values] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
"""Values that most classes have, and those of an architecture without a row."""

_SIZES: Final = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
)
"""The first values of a row."""

_EXPERTS: Final = (
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "routed_scaling_factor"),
    *("n_group", "topk_group", "first_k_dense_replace"),
)
"""The fields of experts in groups."""

_NULL: Final = frozenset(
    (
        *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "q_lora_rank", "n_shared_experts"),
        *("sliding_window", "attention_chunk_size", "attn_logit_softcapping", "final_logit_softcapping"),
        *("use_bias", "norm_topk_prob", "rope_interleave"),
    )
)
"""Fields whose null does not mean the class's value: it means none, no or a derived number, or it is refused."""


def _row(*sizes: int | None, **others: Any) -> Values:
    given = {name: size for name, size in zip(_SIZES, sizes, strict=True) if size is not None}
    return {**_COMMON, **given, **others}


def _latent(*sizes: int) -> Values:
    """Return the values of latent attention: widths of unrotated keys and of values, and the rank of queries."""
    fields = zip(("qk_nope_head_dim", "v_head_dim", "q_lora_rank"), sizes, strict=True)
    return {"qk_rope_head_dim": 64, "kv_lora_rank": 512, "rope_interleave": True, **dict(fields)}


def _grouped(*values: float) -> Values:
    """Return the values of experts in groups, in the order of `_EXPERTS`."""
    return {"n_shared_experts": 1, "norm_topk_prob": True, **dict(zip(_EXPERTS, values, strict=True))}


_QWEN: Final[Values] = {"sliding_window": 4096, "max_window_layers": 28}
_GEMMA: Final[Values] = {
    "tie_word_embeddings": True,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GRANITE: Final[Values] = {
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}
_MINISTRAL3_ROPE: Final[Values] = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_GPT_OSS_ROPE: Final[Values] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_GEMMA4_ROPE: Final[Values] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}

_LINEAR: Final[Values] = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_LFM2: Final[Values] = {"norm_eps": 1e-5, "rope_theta": 1000000.0, "conv_L_cache": 3, "tie_word_embeddings": True}

CLASS_DEFAULTS: Final[Mapping[str, Values]] = {
    "LlamaForCausalLM": _row(32000, 4096, 11008, 32, 32, None, 2048),
    "MistralForCausalLM": _row(32000, 4096, 14336, 32, 32, 8, 131072, sliding_window=4096),
    "MinistralForCausalLM": _row(32000, 4096, 14336, 32, 32, 8, 131072, sliding_window=4096),
    "Ministral3ForCausalLM": _row(
        131072, 4096, 14336, 34, 32, 8, 262144, head_dim=128, rms_norm_eps=1e-5, rope_parameters=_MINISTRAL3_ROPE
    ),
    "MixtralForCausalLM": _row(
        *(32000, 4096, 14336, 32, 32, 8, 131072),
        rms_norm_eps=1e-5,
        rope_theta=1000000.0,
        num_local_experts=8,
        num_experts_per_tok=2,
    ),
    "Qwen2ForCausalLM": _row(151936, 4096, 22016, 32, 32, 32, 32768, **_QWEN),
    "Qwen2MoeForCausalLM": _row(
        *(151936, 2048, 5632, 24, 16, 16, 32768),
        **_QWEN,
        qkv_bias=True,
        num_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
        decoder_sparse_step=1,
    ),
    "Qwen3ForCausalLM": _row(151936, 4096, 22016, 32, 32, 32, 32768, **_QWEN, head_dim=128),
    "Qwen3MoeForCausalLM": _row(
        *(151936, 2048, 6144, 24, 32, 4, 32768),
        sliding_window=4096,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        decoder_sparse_step=1,
    ),
    "Qwen3NextForCausalLM": _row(
        *(151936, 2048, 5632, 48, 16, 2, 32768),
        **_LINEAR,
        decoder_sparse_step=1,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        num_experts_per_tok=10,
        num_experts=512,
        norm_topk_prob=True,
    ),
    "Qwen3_5ForCausalLM": _row(248320, 4096, 12288, 32, 16, 4, 32768, **_LINEAR),
    "Qwen3_5MoeForCausalLM": _row(
        *(248320, 2048, None, 40, 16, 2, 32768),
        **_LINEAR,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        num_experts_per_tok=8,
        num_experts=256,
    ),
    "Lfm2ForCausalLM": _row(
        *(65536, 2560, 12288, 32, 32, 8, 128000),
        **_LFM2,
        block_multiple_of=256,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=True,
    ),
    "Lfm2MoeForCausalLM": _row(
        *(65536, 2048, 7168, 32, 32, 8, 128000),
        **_LFM2,
        moe_intermediate_size=1792,
        num_dense_layers=2,
        num_experts_per_tok=4,
        num_experts=32,
        use_expert_bias=True,
        routed_scaling_factor=1.0,
        norm_topk_prob=True,
    ),
    "Gemma2ForCausalLM": _row(
        256000, 2304, 9216, 26, 8, 4, 8192, **_GEMMA, attn_logit_softcapping=50.0, final_logit_softcapping=30.0
    ),
    "Gemma3ForCausalLM": _row(
        *(262208, 2304, 9216, 26, 8, 4, 131072),
        **_GEMMA,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        sliding_window_pattern=6,
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
    ),
    "Gemma4ForCausalLM": _row(
        *(262144, 2304, 9216, 30, 8, 4, 131072),
        tie_word_embeddings=True,
        head_dim=256,
        hidden_activation="gelu_pytorch_tanh",
        final_logit_softcapping=None,
        sliding_window=512,
        global_head_dim=512,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262144,
        rope_parameters=_GEMMA4_ROPE,
    ),
    "Phi3ForCausalLM": _row(
        32064, 3072, 8192, 32, 32, None, 4096, rms_norm_eps=1e-5, original_max_position_embeddings=4096
    ),
    "Olmo2ForCausalLM": _row(50304, 4096, 11008, 32, 32, None, 2048, rms_norm_eps=1e-5),
    "Olmo3ForCausalLM": _row(
        50304, 4096, 11008, 32, 32, None, 2048, rms_norm_eps=1e-5, rope_theta=500000.0, sliding_window=4096
    ),
    "SmolLM3ForCausalLM": _row(
        *(128256, 2048, 11008, 36, 16, 4, 32768),
        tie_word_embeddings=True,
        rope_theta=2000000.0,
        no_rope_layer_interval=4,
    ),
    "Exaone4ForCausalLM": _row(
        102400, 4096, 16384, 32, 32, 32, 2048, rms_norm_eps=1e-5, sliding_window=4096, sliding_window_pattern=4
    ),
    "SeedOssForCausalLM": _row(155136, 4096, 27648, 64, 80, 8, 524288, head_dim=128, attention_bias=True),
    "GraniteForCausalLM": _row(32000, 4096, 11008, 32, 32, None, 2048, **_GRANITE),
    "GraniteMoeForCausalLM": _row(
        32000, 4096, 11008, 32, 32, None, 2048, **_GRANITE, num_local_experts=8, num_experts_per_tok=2
    ),
    "Cohere2ForCausalLM": _row(
        *(256000, 8192, 22528, 40, 64, None, 8192),
        tie_word_embeddings=True,
        layer_norm_eps=1e-5,
        logit_scale=0.0625,
        sliding_window=4096,
        sliding_window_pattern=4,
    ),
    "Starcoder2ForCausalLM": _row(
        *(49152, 3072, 12288, 30, 24, 2, 4096),
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        norm_epsilon=1e-5,
        use_bias=True,
    ),
    "HunYuanDenseV1ForCausalLM": _row(290943, 4096, 11008, 32, 32, None, 2048, rms_norm_eps=1e-5),
    "Ernie4_5ForCausalLM": _row(
        *(103424, 1024, 3072, 18, 16, 2, 131072),
        head_dim=128,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
    ),
    "Ernie4_5_MoeForCausalLM": _row(
        *(103424, 2560, 12288, 28, 20, 4, 131072),
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        moe_intermediate_size=1536,
        moe_k=6,
        moe_num_experts=64,
        moe_num_shared_experts=2,
        moe_layer_start_index=1,
        moe_layer_end_index=-1,
        moe_layer_interval=1,
        moe_norm_min=1e-12,
    ),
    "Glm4ForCausalLM": _row(
        *(151552, 4096, 13696, 40, 32, 2, 131072),
        head_dim=128,
        attention_bias=True,
        rms_norm_eps=1.5625e-07,
        partial_rotary_factor=0.5,
    ),
    "Glm4MoeForCausalLM": _row(
        *(151552, 4096, 10944, 46, 96, 8, 131072),
        **_grouped(128, 8, 1408, 1.0, 1, 1, 1),
        rms_norm_eps=1e-5,
        partial_rotary_factor=0.5,
    ),
    "Glm4MoeLiteForCausalLM": _row(
        *(154880, 2048, 10240, 47, 20, None, 202752),
        **_latent(192, 256, 768),
        **_grouped(64, 4, 1536, 1.8, 1, 1, 1),
        rms_norm_eps=1e-5,
    ),
    "DeepseekV2ForCausalLM": _row(
        *(102400, 4096, 11008, 32, 32, None, 2048),
        **_latent(128, 128, 1536),
        n_routed_experts=64,
        n_shared_experts=2,
        moe_intermediate_size=1407,
        routed_scaling_factor=1.0,
        topk_method="greedy",
        first_k_dense_replace=0,
    ),
    "DeepseekV3ForCausalLM": _row(
        *(129280, 7168, 18432, 61, 128, None, 4096),
        **_latent(128, 128, 1536),
        **_grouped(256, 8, 2048, 2.5, 8, 4, 3),
    ),
    "GptOssForCausalLM": _row(
        *(201088, 2880, 2880, 36, 64, 8, 131072),
        head_dim=64,
        attention_bias=True,
        rms_norm_eps=1e-5,
        rope_theta=150000.0,
        rope_parameters=_GPT_OSS_ROPE,
        sliding_window=128,
        num_local_experts=128,
        num_experts_per_tok=4,
        swiglu_alpha=1.702,
        swiglu_limit=7.0,
    ),
    "Llama4ForCausalLM": _row(
        *(202048, 5120, 8192, 48, 40, 8, 131072),
        head_dim=128,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        intermediate_size_mlp=16384,
        num_local_experts=16,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        use_qk_norm=True,
        no_rope_layer_interval=4,
        attention_chunk_size=8192,
        attn_temperature_tuning=True,
        floor_scale=8192,
        attn_scale=0.1,
    ),
    "MiniMaxM2ForCausalLM": _row(
        *(200064, 3072, 1536, 62, 48, 8, 196608),
        head_dim=128,
        rope_theta=5000000.0,
        num_local_experts=256,
        num_experts_per_tok=8,
    ),
}
"""All values of an architecture's class that change results."""

TYPE_DEFAULTS: Final[Mapping[str, Values]] = {
    "gemma4unified": {
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
}
"""What another class of an architecture has instead, by their `model_type` without underscores."""

ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "DeepseekV2ForCausalLM": {"num_experts": "n_routed_experts"},
    "DeepseekV3ForCausalLM": {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    "Ernie4_5_MoeForCausalLM": {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    "Glm4MoeForCausalLM": {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    "Glm4MoeLiteForCausalLM": {"num_local_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
    "Gemma3ForCausalLM": {"_sliding_window_pattern": "sliding_window_pattern"},
    "GptOssForCausalLM": {"num_experts": "num_local_experts"},
    "MiniMaxM2ForCausalLM": {"num_experts": "num_local_experts"},
    "MixtralForCausalLM": {"num_experts": "num_local_experts"},
    "Qwen3MoeForCausalLM": {"num_local_experts": "num_experts"},
}
"""Other names of fields, and those that families read."""


def with_defaults(architecture: str, kind: str, values: Mapping[str, Any]) -> Values:
    """Return a configuration with the class's values of absent fields.

    Args:
        architecture: of the text model; an architecture without a row has what most have.
        kind: the `model_type`, without underscores and the ending of a text model's.
        values: the text model's `config.json`. Null counts as absent, except where the class lets it mean something.
    """
    given = {name: value for name, value in values.items() if value is not None or name in _NULL}
    for alias, name in ALIASES.get(architecture, {}).items():
        if alias in given:
            given.setdefault(name, given[alias])
    return {**CLASS_DEFAULTS.get(architecture, _COMMON), **TYPE_DEFAULTS.get(kind, {}), **given}
