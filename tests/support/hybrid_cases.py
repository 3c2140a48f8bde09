"""GGUF metadata of hybrid models, and the configuration that each gives: rows of `test_gguf_families.py`."""

from __future__ import annotations

from typing import Any

LAYERS = 8
FULL = "full_attention"
EXPERTS = {"expert_count": 8, "expert_used_count": 2}
LINEAR = "linear_attention"
HYBRID = [FULL if i in (1, 6) else LINEAR for i in range(LAYERS)]
CONVOLUTIONS = [FULL if i in (2, 5) else "conv" for i in range(LAYERS)]
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16}
DELTA |= {"linear_value_head_dim": 24, "linear_conv_kernel_dim": 3, "partial_rotary_factor": 0.5}
STORED = {"norm_offset": 0, "linear_stored_decay": True}
DELTA_KEYS = {"ssm.conv_kernel": 3, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 6}
DELTA_KEYS |= {"ssm.inner_size": 144, "rope.dimension_count": 16}
QWEN_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
QWEN_KEYS = EXPERTS | {"expert_feed_forward_length": 32}

HYBRID_CASES: tuple[tuple[Any, ...], ...] = (
    ("qwen3next", "Qwen3Next", DELTA | STORED | QWEN_EXPERTS | {"shared_expert_intermediate_size": 80},
         DELTA_KEYS | QWEN_KEYS | {"expert_shared_feed_forward_length": 80}, {"output.weight"}),
    ("qwen35", "Qwen3_5",
         DELTA | STORED | {"linear_tiled": True, "full_attention_interval": 3, "mrope_section": [4, 2, 2]},
         DELTA_KEYS | {"full_attention_interval": 3, "rope.dimension_sections": [4, 2, 2, 0],
                       "nextn_predict_layers": 1, "block_count": LAYERS + 1}, {"output.weight"}),
    ("qwen35", "Qwen3_5", DELTA | STORED | {"linear_tiled": True, "layer_types": HYBRID},
         DELTA_KEYS | {"attention.head_count_kv": [0 if each == LINEAR else 2 for each in HYBRID],
                       "ssm.v_head_reordered": True, "rope.mrope_interleaved": True}, {"output.weight"}),
    ("qwen35moe", "Qwen3_5Moe", DELTA | STORED | QWEN_EXPERTS
         | {"linear_tiled": True, "shared_expert_intermediate_size": 80, "layer_types": HYBRID},
         DELTA_KEYS | QWEN_KEYS | {"expert_shared_feed_forward_length": 80, "feed_forward_length": None,
                                   "attention.recurrent_layers": [each == LINEAR for each in HYBRID]}),
    ("lfm2", "Lfm2", {"conv_L_cache": 4, "layer_types": CONVOLUTIONS, "norm_eps": 1e-4,
                          "block_auto_adjust_ff_dim": False},
         {"attention.head_count_kv": [0 if each == "conv" else 2 for each in CONVOLUTIONS], "shortconv.l_cache": 4,
          "attention.layer_norm_rms_epsilon": 1e-4}),
    ("lfm2moe", "Lfm2Moe", {"conv_L_cache": 3, "layer_types": CONVOLUTIONS, "norm_eps": 1e-4, "num_experts": 8,
                                "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 2},
         EXPERTS | {"attention.head_count_kv": [0 if each == "conv" else 2 for each in CONVOLUTIONS],
                    "shortconv.l_cache": 3, "attention.layer_norm_rms_epsilon": 1e-4, "expert_gating_func": 2,
                    "expert_feed_forward_length": 32, "leading_dense_block_count": 2},
         {"blk.2.exp_probs_b.bias"}),
)  # fmt: skip
"""GGUF's name, the class, fields of `config.json` in addition to the common ones, metadata, and tensors that decide."""
