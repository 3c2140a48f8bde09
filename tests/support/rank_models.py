"""Models with each kind of layer that is cut by ranks, as configurations of random weights."""

from __future__ import annotations

from typing import Any, Final

WIDE: Final[dict[str, Any]] = {
    "vocab_size": 261, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-6,
}  # fmt: skip
EXPERTS: Final = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "experts": {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": [],
    } | EXPERTS,
    "latent": {
        "architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "n_routed_experts": 4, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
        "rope_interleave": True,
    } | EXPERTS,
    "convolutions": {
        "architectures": ["Lfm2ForCausalLM"], "conv_L_cache": 3, "conv_bias": False, "block_ff_dim": 192,
        "block_auto_adjust_ff_dim": False, "norm_eps": 1e-5, "layer_types": ["conv", "full_attention"],
    },
    "delta rule": {
        "architectures": ["Qwen3NextForCausalLM"], "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 0,
        "layer_types": ["linear_attention", "full_attention"], "mlp_only_layers": [0, 1], "decoder_sparse_step": 1,
        "partial_rotary_factor": 0.5, "shared_expert_intermediate_size": 64,
    } | EXPERTS,
    "tiled delta rule": {
        "architectures": ["Qwen3_5ForCausalLM"], "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "linear_tiled": True,
        "layer_types": ["linear_attention", "full_attention"], "partial_rotary_factor": 0.5,
        "linear_stored_decay": True,
    },
}  # fmt: skip
