"""Tiny configurations of the families: two of each architecture that differ in heads, widths, ties and layers.

Widths of experts are multiples of 32, as those of all released models.
"""

from __future__ import annotations

from typing import Any

SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"

WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
}  # fmt: skip
SPARSE: dict[str, Any] = {**WIDE, "head_dim": 16, "num_hidden_layers": 2}


def _rope(kind: str = "default", **parameters: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **parameters}


YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=64)

GEMMA4: dict[str, Any] = {
    **SPARSE, "sliding_window": 20, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 131,
    "global_head_dim": 32,
}  # fmt: skip

LATENT: dict[str, Any] = {
    **WIDE, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "moe_intermediate_size": 32,
}  # fmt: skip

STRETCHED = [1.0 + 0.4 * i for i in range(12)]

FAMILY_CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama-mlp-bias", "LlamaConfig", {"mlp_bias": True, "attention_bias": True}),
    ("gemma2", "Gemma2Config", {**WIDE, "head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 24}),
    (
        "gemma2-untied",
        "Gemma2Config",
        {"head_dim": 32, "num_key_value_heads": 1, "tie_word_embeddings": False}
        | {"sliding_window": 70, "attn_logit_softcapping": 3.0, "final_logit_softcapping": None},
    ),
    (
        "gemma3",
        "Gemma3TextConfig",
        {**WIDE, "head_dim": 16, "sliding_window": 20, "num_hidden_layers": 3}
        | {"layer_types": [SLIDING, SLIDING, FULL]},
    ),
    (
        "gemma3-linear",
        "Gemma3TextConfig",
        {"head_dim": 24, "num_hidden_layers": 2, "layer_types": [FULL, SLIDING]}
        | {"sliding_window": 66, "rope_parameters": {SLIDING: _rope(), FULL: _rope("linear", factor=8.0)}},
    ),
    ("phi3", "Phi3Config", {**WIDE}),
    (
        "phi3-partial",
        "Phi3Config",
        {**WIDE, "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 20}
        | {"tie_word_embeddings": True, "original_max_position_embeddings": 16}
        | {
            "rope_parameters": _rope(
                "longrope", partial_rotary_factor=0.75, short_factor=[1.0] * 12, long_factor=STRETCHED
            )
        },
    ),
    (
        "ministral3",
        "Ministral3Config",
        {
            **WIDE,
            "head_dim": 16,
            "rope_parameters": {**YARN, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1},
        },
    ),
    (
        "ministral3-windows",
        "Ministral3Config",
        {
            **WIDE,
            "head_dim": 32,
            "sliding_window": 30,
            "rope_parameters": {**_rope(), "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5},
        },
    ),
    ("olmo2", "Olmo2Config", {**WIDE}),
    ("olmo2-bias", "Olmo2Config", {"attention_bias": True, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("olmo3", "Olmo3Config", {**WIDE, "sliding_window": 20, "layer_types": [SLIDING, FULL]}),
    (
        "olmo3-yarn",
        "Olmo3Config",
        {"sliding_window": 66, "layer_types": [FULL, SLIDING]} | {"rope_parameters": {SLIDING: _rope(), FULL: YARN}},
    ),
    ("smollm3", "SmolLM3Config", {**WIDE, "no_rope_layers": [1, 0]}),
    (
        "smollm3-windows",
        "SmolLM3Config",
        {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 20}
        | {"layer_types": [SLIDING, FULL], "attention_bias": True, "tie_word_embeddings": False},
    ),
    ("exaone4", "Exaone4Config", {**WIDE, "sliding_window": 20, "layer_types": [SLIDING, FULL]}),
    ("exaone4-full", "Exaone4Config", {"sliding_window": None, "layer_types": [FULL, FULL], "num_key_value_heads": 1}),
    ("seed-oss", "SeedOssConfig", {**WIDE, "head_dim": 32}),
    (
        "seed-oss-bias",
        "SeedOssConfig",
        {"head_dim": 16, "attention_bias": False, "attention_out_bias": True}
        | {"mlp_bias": True, "tie_word_embeddings": True},
    ),
    (
        "granite",
        "GraniteConfig",
        {**WIDE, "embedding_multiplier": 12.0, "logits_scaling": 8.0}
        | {"residual_multiplier": 0.22, "attention_multiplier": 0.0625},
    ),
    (
        "granite-bias",
        "GraniteConfig",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True} | {"residual_multiplier": 0.5},
    ),
    ("glm4", "Glm4Config", {**WIDE, "head_dim": 16}),
    (
        "glm4-wide",
        "Glm4Config",
        {"head_dim": 32, "num_key_value_heads": 1, "attention_bias": False}
        | {"rope_parameters": _rope(partial_rotary_factor=0.25), "tie_word_embeddings": True},
    ),
    ("cohere2", "Cohere2Config", {**WIDE, "sliding_window": 20, "layer_types": [SLIDING, FULL]}),
    (
        "cohere2-bias",
        "Cohere2Config",
        {"sliding_window": 66, "layer_types": [FULL, SLIDING], "attention_bias": True}
        | {"logit_scale": 0.5, "tie_word_embeddings": False},
    ),
    ("starcoder2", "Starcoder2Config", {**WIDE}),
    (
        "starcoder2-windows",
        "Starcoder2Config",
        {"sliding_window": 20, "use_bias": False, "num_key_value_heads": 1} | {"tie_word_embeddings": False},
    ),
    ("ernie", "Ernie4_5Config", {**WIDE, "head_dim": 16}),
    ("ernie-bias", "Ernie4_5Config", {"head_dim": 32, "use_bias": True, "tie_word_embeddings": False}),
    (
        "hunyuan",
        "HunYuanDenseV1Config",
        {**WIDE, "head_dim": 16, "rope_parameters": _rope("dynamic", alpha=1000.0, factor=1.0)},
    ),
    ("hunyuan-bias", "HunYuanDenseV1Config", {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True}),
    ("gemma4", "Gemma4TextConfig", {**GEMMA4, "layer_types": [SLIDING, FULL], "final_logit_softcapping": 5.0}),
    (
        "gemma4-experts",
        "Gemma4TextConfig",
        {**GEMMA4, "layer_types": [SLIDING, FULL], "enable_moe_block": True}
        | {"num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32, "attention_k_eq_v": True}
        | {"num_global_key_value_heads": 1, "global_head_dim": 64},
    ),
    (
        "gemma4-shared",
        "Gemma4TextConfig",
        {**GEMMA4, "num_hidden_layers": 4, "num_kv_shared_layers": 2}
        | {"layer_types": [SLIDING, FULL, SLIDING, FULL], "use_double_wide_mlp": True, "num_key_value_heads": 1}
        | {"hidden_size_per_layer_input": 32},
    ),
    (
        "llama4",
        "Llama4TextConfig",
        {**SPARSE, "intermediate_size_mlp": 128, "num_local_experts": 4, "moe_layers": [1]}
        | {"no_rope_layers": [1, 0], "attention_chunk_size": 24, "floor_scale": 8, "attn_scale": 0.3},
    ),
    (
        "llama4-top2",
        "Llama4TextConfig",
        {**SPARSE, "head_dim": 32, "num_local_experts": 6, "num_experts_per_tok": 2}
        | {"use_qk_norm": False, "attention_chunk_size": 70, "no_rope_layers": [1, 1], "tie_word_embeddings": True}
        | {"intermediate_size_mlp": 64, "interleave_moe_layer_step": 2},
    ),
    (
        "qwen2-moe",
        "Qwen2MoeConfig",
        {**WIDE, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"shared_expert_intermediate_size": 64},
    ),
    (
        "qwen2-moe-mixed",
        "Qwen2MoeConfig",
        {**WIDE, "num_key_value_heads": 4, "num_experts": 6, "num_experts_per_tok": 3}
        | {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 32, "norm_topk_prob": True}
        | {"mlp_only_layers": [0], "tie_word_embeddings": True, "qkv_bias": False}
        | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    (
        "qwen3-moe",
        "Qwen3MoeConfig",
        {**SPARSE, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True} | {"moe_intermediate_size": 32},
    ),
    (
        "qwen3-moe-mixed",
        "Qwen3MoeConfig",
        {**SPARSE, "head_dim": 32, "num_experts": 5, "num_experts_per_tok": 3}
        | {"use_sliding_window": True, "sliding_window": 20}
        | {"moe_intermediate_size": 64, "num_hidden_layers": 3, "decoder_sparse_step": 2, "tie_word_embeddings": True},
    ),
    (
        "qwen3-next",
        "Qwen3NextConfig",
        {**SPARSE, **DELTA, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    ),
    (
        "qwen3-next-mixed",
        "Qwen3NextConfig",
        {**SPARSE, **DELTA, "head_dim": 32, "linear_num_value_heads": 6, "layer_types": [FULL, LINEAR, FULL]}
        | {"num_hidden_layers": 3, "num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": False}
        | {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 32, "mlp_only_layers": [1]},
    ),
    ("qwen3.5", "Qwen3_5TextConfig", {**SPARSE, **DELTA, "num_hidden_layers": 4}),
    (
        "qwen3.5-tied",
        "Qwen3_5TextConfig",
        {**SPARSE, **DELTA, "head_dim": 32, "num_key_value_heads": 1, "linear_num_value_heads": 2}
        | {"linear_key_head_dim": 24, "linear_value_head_dim": 40, "linear_conv_kernel_dim": 3}
        | {"layer_types": [LINEAR, FULL], "tie_word_embeddings": True},
    ),
    (
        "qwen3.5-moe",
        "Qwen3_5MoeTextConfig",
        {**SPARSE, **DELTA, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    ),
    (
        "qwen3.5-moe-tied",
        "Qwen3_5MoeTextConfig",
        {**SPARSE, **DELTA, "linear_num_key_heads": 1, "layer_types": [FULL, LINEAR], "tie_word_embeddings": True}
        | {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 64}
        | {"shared_expert_intermediate_size": 32},
    ),
    ("lfm2", "Lfm2Config", {**SPARSE, "num_hidden_layers": 3, "layer_types": ["conv", FULL, "conv"]}),
    (
        "lfm2-bias",
        "Lfm2Config",
        {**SPARSE, "head_dim": 32, "layer_types": [FULL, "conv"], "conv_bias": True, "conv_L_cache": 4}
        | {"block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
    ),
    (
        "lfm2-moe",
        "Lfm2MoeConfig",
        {**SPARSE, "num_hidden_layers": 3, "layer_types": ["conv", FULL, "conv"], "num_dense_layers": 1}
        | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    (
        "lfm2-moe-mixed",
        "Lfm2MoeConfig",
        {**SPARSE, "layer_types": [FULL, "conv"], "num_dense_layers": 0, "use_expert_bias": False}
        | {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "norm_topk_prob": False}
        | {"routed_scaling_factor": 2.5, "tie_word_embeddings": False},
    ),
    ("mixtral", "MixtralConfig", {**WIDE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    (
        "mixtral-windows",
        "MixtralConfig",
        {**WIDE, "num_key_value_heads": 1, "head_dim": 32, "sliding_window": 20}
        | {"num_local_experts": 6, "num_experts_per_tok": 3, "tie_word_embeddings": True},
    ),
    (
        "gpt-oss",
        "GptOssConfig",
        {**SPARSE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20}
        | {"layer_types": [SLIDING, FULL], "rope_parameters": {**YARN, "truncate": False}},
    ),
    (
        "gpt-oss-wide",
        "GptOssConfig",
        {**SPARSE, "head_dim": 32, "num_key_value_heads": 1, "num_local_experts": 6}
        | {"num_experts_per_tok": 4, "sliding_window": 66, "layer_types": [FULL, SLIDING], "rope_parameters": _rope()}
        | {"swiglu_limit": 0.5, "tie_word_embeddings": True},
    ),
    (
        "granite-moe",
        "GraniteMoeConfig",
        {**WIDE, "num_local_experts": 4, "num_experts_per_tok": 2}
        | {"embedding_multiplier": 6.0, "logits_scaling": 4.0, "residual_multiplier": 0.3, "attention_multiplier": 0.1},
    ),
    (
        "granite-moe-tied",
        "GraniteMoeConfig",
        {**WIDE, "num_key_value_heads": 4, "num_local_experts": 6}
        | {"num_experts_per_tok": 4, "tie_word_embeddings": True, "attention_bias": True, "attention_multiplier": 0.25},
    ),
    (
        "glm4-moe",
        "Glm4MoeConfig",
        {**SPARSE, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2}
        | {"topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5},
    ),
    (
        "glm4-moe-norms",
        "Glm4MoeConfig",
        {**SPARSE, "head_dim": 32, "n_routed_experts": 6, "num_experts_per_tok": 3}
        | {"moe_intermediate_size": 64, "use_qk_norm": True, "attention_bias": True, "norm_topk_prob": False}
        | {"first_k_dense_replace": 0, "n_shared_experts": 2},
    ),
    (
        "ernie-moe",
        "Ernie4_5_MoeConfig",
        {**SPARSE, "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32}
        | {"moe_layer_end_index": 1, "moe_num_shared_experts": 1},
    ),
    (
        "ernie-moe-dense",
        "Ernie4_5_MoeConfig",
        {**WIDE, "moe_num_experts": 4, "moe_k": 3, "moe_intermediate_size": 64}
        | {"moe_layer_start_index": 0, "moe_layer_end_index": 1, "moe_num_shared_experts": 2}
        | {"tie_word_embeddings": False},
    ),
    (
        "deepseek-v2",
        "DeepseekV2Config",
        {**LATENT, "q_lora_rank": None, "n_routed_experts": 8, "topk_method": "greedy"}
        | {"num_experts_per_tok": 2, "n_group": None, "first_k_dense_replace": 1, "n_shared_experts": 2}
        | {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}},
    ),
    (
        "deepseek-v2-groups",
        "DeepseekV2Config",
        {**LATENT, "num_attention_heads": 2, "num_key_value_heads": 2}
        | {"q_lora_rank": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "topk_method": "group_limited_greedy"}
        | {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.0, "n_shared_experts": 1},
    ),
    (
        "deepseek-v3",
        "DeepseekV3Config",
        {**LATENT, "q_lora_rank": 24, "n_routed_experts": 8, "num_experts_per_tok": 2}
        | {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
        | {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    ),
    (
        "deepseek-v3-halves",
        "DeepseekV3Config",
        {**LATENT, "qk_nope_head_dim": 48, "v_head_dim": 64, "q_lora_rank": None}
        | {"n_routed_experts": 6, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}
        | {"rope_interleave": False, "norm_topk_prob": False, "n_shared_experts": 2, "tie_word_embeddings": True},
    ),
    (
        "glm4-moe-lite",
        "Glm4MoeLiteConfig",
        {**LATENT, "q_lora_rank": 24, "n_routed_experts": 8, "num_experts_per_tok": 2}
        | {"mlp_layer_types": ["dense", "sparse"]},
    ),
    (
        "glm4-moe-lite-wide",
        "Glm4MoeLiteConfig",
        {**LATENT, "kv_lora_rank": 64, "q_lora_rank": 32, "v_head_dim": 64}
        | {"n_routed_experts": 4, "num_experts_per_tok": 3, "mlp_layer_types": ["sparse", "sparse"]}
        | {"routed_scaling_factor": 1.5, "tie_word_embeddings": True},
    ),
    ("minimax-m2", "MiniMaxM2Config", {**SPARSE, "num_local_experts": 8, "num_experts_per_tok": 2}),
    (
        "minimax-m2-partial",
        "MiniMaxM2Config",
        {**SPARSE, "head_dim": 32, "num_key_value_heads": 1}
        | {"num_local_experts": 6, "num_experts_per_tok": 3, "rope_parameters": _rope(partial_rotary_factor=0.5)},
    ),
)
"""Name, configuration class of `transformers`, and what differs from the base of `tiny.py`."""
