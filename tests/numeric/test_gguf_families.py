"""GGUF metadata and tensor names of every architecture give the spec and the parameters of its checkpoint.

The metadata are those that the converter of llama.cpp writes for a small configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import load_file

from family_cases import FAMILY_CASES
from ferrum.core.errors import CheckpointError, FerrumError, Unsupported
from ferrum.models.decoder import inventory
from ferrum.models.families import decoder_spec, load_families
from ferrum.models.gguf_architecture import ARCHITECTURES, hf_name, hf_shape
from ferrum.models.gguf_keys import architecture_of, hf_config
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.gguf_model import GgufModel
from ferrum.sources.viewed_tensors import with_views
from gguf_converter import converted
from hybrid_cases import HYBRID_CASES
from tiny import Case, directory_of

load_families()

LAYERS = 8
BASE = {
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_theta": 50000.0,
    "vocab_size": 67,
}
EPS = {"rms_norm_eps": 1e-5}
KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
EXPERTS = {"expert_count": 8, "expert_used_count": 2}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
ROUTED |= {"first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
ROUTED_KEYS = EXPERTS | {"expert_feed_forward_length": 32, "expert_shared_count": 1, "leading_dense_block_count": 1}
ROUTED_KEYS |= {"expert_weights_scale": 2.5, "expert_weights_norm": True}
SLIDING, FULL = "sliding_attention", "full_attention"
PATTERN = [bool((i + 1) % 3) for i in range(LAYERS)]
KINDS = [SLIDING if each else FULL for each in PATTERN]
LATENT = {"q_lora_rank": 48, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
LATENT |= {"head_dim": 16, "num_key_value_heads": 4, "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}
LATENT_KEYS = {"attention.q_lora_rank": 48, "attention.kv_lora_rank": 64, "rope.dimension_count": 16} | YARN_KEYS
LATENT_KEYS |= {"attention.head_count_kv": 1, "attention.key_length": 80, "attention.value_length": 64}
LATENT_KEYS |= {"attention.key_length_mla": 48, "attention.value_length_mla": 32}
LATENT_KEYS |= {"rope.scaling.yarn_log_multiplier": float(np.float32(0.0707))}
OLD_LATENT_KEYS = LATENT_KEYS | {"attention.head_count_kv": 4, "attention.key_length": 48, "attention.value_length": 32}
OLD_LATENT_KEYS |= {"attention.key_length_mla": None, "attention.value_length_mla": None}
GRANITE = {"attention_multiplier": 0.2, "embedding_multiplier": 12.0, "residual_multiplier": 0.3, "logits_scaling": 8.0}
GRANITE_KEYS = {"attention.scale": 0.2, "embedding_scale": 12.0, "residual_scale": 0.3, "logit_scale": 8.0}
GEMMA4_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 50000.0},
}
GEMMA4 = {
    "global_head_dim": 64,
    "layer_types": KINDS,
    "sliding_window": 20,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
    "final_logit_softcapping": 30.0,
    "rope_parameters": GEMMA4_ROPES,
}
GEMMA4_KEYS = {
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.key_length_swa": 32,
    "attention.value_length_swa": 32,
    "attention.sliding_window": 20,
    "attention.sliding_window_pattern": PATTERN,
    "attention.shared_kv_layers": 3,
    "feed_forward_length": [96] * 5 + [192] * 3,
    "embedding_length_per_layer_input": 16,
    "final_logit_softcapping": 30.0,
    "rope.freq_base_swa": 10000.0,
    "rope.dimension_count": 64,
    "rope.dimension_count_swa": 32,
}
GEMMA4_MOE = GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}
GEMMA4_MOE |= {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}
GEMMA4_MOE |= {"num_kv_shared_layers": 0, "use_double_wide_mlp": False}
GEMMA4_MOE_KEYS = GEMMA4_KEYS | EXPERTS | {"expert_feed_forward_length": 32, "attention.shared_kv_layers": 0}
GEMMA4_MOE_KEYS |= {"attention.head_count_kv": [2 if each else 1 for each in PATTERN], "feed_forward_length": 96}
GEMMA4_MOE_KEYS |= {"embedding_length_per_layer_input": 0}
LONG, SHORT = [float(2 + i) for i in range(12)], [float(1 + i) for i in range(12)]
LONGROPE = {"rope_type": "longrope", "long_factor": LONG, "short_factor": SHORT, "attention_factor": 1.25}

BIASES = {f"blk.{i}.attn_{part}.bias" for i in range(LAYERS) for part in ("q", "k", "v")}
ATTENTION_BIASES = BIASES | {f"blk.{i}.attn_output.bias" for i in range(LAYERS)}
MLP_BIASES = {f"blk.{i}.ffn_{part}.bias" for i in range(LAYERS) for part in ("up", "down")}
OUTPUT = {"output.weight"}

# A row: GGUF's name, the checkpoint's architecture and fields, the metadata, tensors that decide, factors of the rope.


def case(
    kind: str,
    name: str,
    fields: dict[str, Any] | None = None,
    keys: dict[str, Any] | None = None,
    tensors: set[str] | None = None,
    **factors: list[float],
) -> Any:
    values = (kind, f"{name}ForCausalLM", EPS | (fields or {}), keys or {}, tensors or set(), factors)
    return pytest.param(*values, id=f"{kind}-{name}")


ALL_TENSORS_BUT_V = {"blk.0.attn_v.weight", "blk.1.attn_v.weight"}
CASES = [
    case("llama", "Llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
         {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0, "rope.dimension_count": 32}, OUTPUT),
    case("llama", "Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}, EXPERTS,
         OUTPUT),
    case("qwen2", "Qwen2", {"rope_scaling": YARN}, YARN_KEYS, OUTPUT | BIASES),
    case("qwen3", "Qwen3", {"tie_word_embeddings": True}),
    case("gemma2", "Gemma2", {"sliding_window": 20, "query_pre_attn_scalar": 32, "norm_offset": 0.0,
                              "attn_logit_softcapping": 40.0, "final_logit_softcapping": 25.0},
         {"attention.sliding_window": 20, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 25.0}),
    case("gemma3", "Gemma3", {"sliding_window": 20, "query_pre_attn_scalar": 32, "norm_offset": 0.0,
                              "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 9000.0},
         {"attention.sliding_window": 20, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
          "rope.freq_base_swa": 9000.0}),
    case("gemma4", "Gemma4", GEMMA4, GEMMA4_KEYS, ALL_TENSORS_BUT_V | {"blk.2.attn_v.weight"},
         **{"rope_freqs.weight": [1.0] * 8 + [1e30] * 24}),
    case("gemma4", "Gemma4", GEMMA4_MOE, GEMMA4_MOE_KEYS, ALL_TENSORS_BUT_V,
         **{"rope_freqs.weight": [1.0] * 8 + [1e30] * 24}),
    case("phi3", "Phi3", {"partial_rotary_factor": 0.75, "sliding_window": 30,
                          "rope_scaling": LONGROPE, "original_max_position_embeddings": 64},
         {"rope.dimension_count": 24, "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.25,
          "attention.sliding_window": 30}, OUTPUT,
         **{"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT}),
    case("phi3", "Phi3", {"sliding_window": None}, {"attention.sliding_window": 0, "rope.dimension_count": 32,
                                                    "rope.scaling.original_context_length": 256}, OUTPUT),
    case("olmo2", "Olmo2", {}, {}, OUTPUT),
    case("olmo2", "Olmo3", {"sliding_window": 20, "layer_types": KINDS, "rope_scaling": YARN},
         {"attention.sliding_window": 20, "attention.sliding_window_pattern": PATTERN, **YARN_KEYS}, OUTPUT),
    case("mistral3", "Mistral", {"sliding_window": None}, {"rope.dimension_count": 32}, OUTPUT),
    case("mistral3", "Ministral3",
         {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.125,
                                     "rope_theta": 50000.0, "beta_fast": 16.0}},
         YARN_KEYS | {"rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.125,
                      "rope.scaling.yarn_beta_fast": 16.0}, OUTPUT),
    case("smollm3", "SmolLM3", {"tie_word_embeddings": True}, {"rope.dimension_count": 32}),
    case("exaone4", "Exaone4", {"sliding_window": 20, "layer_types": KINDS},
         {"attention.sliding_window": 20, "attention.sliding_window_pattern": PATTERN}, OUTPUT),
    case("exaone4", "Exaone4", {"sliding_window": None}, {}, OUTPUT),
    case("seed_oss", "SeedOss", {}, {}, OUTPUT | BIASES),
    case("granite", "Granite", GRANITE, GRANITE_KEYS, OUTPUT),
    case("glm4", "Glm4", {"attention_bias": True}, {"rope.dimension_count": 16}, OUTPUT | BIASES),
    case("cohere2", "Cohere2", {"layer_norm_eps": 1e-4, "sliding_window": 20, "logit_scale": 0.25},
         {"attention.layer_norm_epsilon": 1e-4, "attention.sliding_window": 20, "logit_scale": 0.25,
          "rope.dimension_count": 32, "rope.scaling.type": "none"}),
    case("starcoder2", "Starcoder2", {"norm_epsilon": 1e-4, "sliding_window": 4096},
         {"attention.layer_norm_epsilon": 1e-4}, ATTENTION_BIASES | MLP_BIASES),
    case("ernie4_5", "Ernie4_5", {"tie_word_embeddings": True}),
    case("hunyuan-dense", "HunYuanDenseV1", {"tie_word_embeddings": True},
         {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "rope.scaling.original_context_length": 256}),
    case("qwen2moe", "Qwen2Moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                                  "shared_expert_intermediate_size": 80},
         EXPERTS | {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 80}, OUTPUT | BIASES),
    case("qwen3moe", "Qwen3Moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                                  "norm_topk_prob": True},
         EXPERTS | {"expert_feed_forward_length": 32}, OUTPUT),
    case("qwen3vl", "Qwen3", {"tie_word_embeddings": True, "mrope_section": [6, 5, 5], "n_deepstack_layers": 2},
         {"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 2}),
    case("qwen3vlmoe", "Qwen3Moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                                    "norm_topk_prob": True, "mrope_section": [6, 5, 5]},
         EXPERTS | {"expert_feed_forward_length": 32, "rope.mrope_section": [6, 5, 5]}, OUTPUT),
    case("granitemoe", "GraniteMoe", GRANITE | {"num_local_experts": 8, "num_experts_per_tok": 2},
         GRANITE_KEYS | EXPERTS, OUTPUT),
    case("glm4moe", "Glm4Moe", ROUTED | {"use_qk_norm": True, "n_group": 2, "topk_group": 1},
         ROUTED_KEYS | {"rope.dimension_count": 16, "expert_gating_func": 2, "expert_group_count": 2,
                        "expert_group_used_count": 1, "nextn_predict_layers": 1, "block_count": LAYERS + 1},
         OUTPUT | {"blk.0.attn_q_norm.weight"}),
    case("ernie4_5-moe", "Ernie4_5_Moe",
         {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1,
          "moe_layer_interval": 2, "moe_layer_start_index": 3},
         EXPERTS | {"expert_feed_forward_length": 32, "expert_shared_count": 1, "interleave_moe_layer_step": 2,
                    "leading_dense_block_count": 3, "expert_shared_feed_forward_length": 32}),
    case("llama4", "Llama4", {"num_local_experts": 8, "num_experts_per_tok": 1, "intermediate_size": 32,
                              "intermediate_size_mlp": 96, "interleave_moe_layer_step": 2},
         {"expert_count": 8, "expert_used_count": 1, "expert_feed_forward_length": 32, "feed_forward_length": 96,
          "interleave_moe_layer_step": 2, "rope.dimension_count": 32}, OUTPUT),
    case("gpt-oss", "GptOss", {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 20,
                               "rope_scaling": YARN | {"truncate": False}, "attention_bias": True},
         EXPERTS | YARN_KEYS | {"attention.sliding_window": 20, "expert_feed_forward_length": 96},
         OUTPUT | ATTENTION_BIASES),
    case("minimax-m2", "MiniMaxM2", {"num_local_experts": 8, "num_experts_per_tok": 2, "rotary_dim": 16},
         EXPERTS | {"expert_feed_forward_length": 96, "rope.dimension_count": 16, "expert_gating_func": 2}, OUTPUT),
    case("deepseek2", "DeepseekV2", ROUTED | LATENT | {"q_lora_rank": None, "norm_topk_prob": False},
         ROUTED_KEYS | LATENT_KEYS | {"attention.q_lora_rank": None, "expert_weights_norm": None}, OUTPUT),
    case("deepseek2", "DeepseekV3", ROUTED | LATENT | {"n_group": 4, "topk_group": 2},
         ROUTED_KEYS | OLD_LATENT_KEYS | {"expert_gating_func": 2, "expert_group_count": 4,
                                          "expert_group_used_count": 2}, OUTPUT),
    case("deepseek2", "DeepseekV3", ROUTED | LATENT | {"n_group": 1, "topk_group": 1}, ROUTED_KEYS | LATENT_KEYS,
         OUTPUT | {"blk.1.exp_probs_b.bias"}),
    *(case(*each) for each in HYBRID_CASES),
]  # fmt: skip


def metadata_of(kind: str, fields: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    config = BASE | fields
    own = {key: config[field] for key, field in KEYS.items() if field in config} | keys
    return {"general.architecture": kind, **{f"{kind}.{key}": value for key, value in own.items() if value is not None}}


def tensors_of(kind: str) -> set[str]:
    """Return the names of all tensors that the library knows of an architecture, in every kind."""
    (arch,) = [arch for arch, name in MODEL_ARCH_NAMES.items() if name == kind]
    stems = [TENSOR_NAMES[tensor] for tensor in MODEL_TENSORS[arch] if "nextn" not in TENSOR_NAMES[tensor]]
    names = {stem.format(bid=layer) for stem in stems for layer in range(LAYERS)}
    return names | {f"{name}.{part}" for name in names for part in ("weight", "bias", "scale")}


@pytest.mark.parametrize(("kind", "name", "fields", "keys", "tensors", "factors"), CASES)
def test_a_file_gives_the_spec_of_its_checkpoint(
    kind: str,
    name: str,
    fields: dict[str, Any],
    keys: dict[str, Any],
    tensors: set[str],
    factors: dict[str, list[float]],
) -> None:
    config = hf_config(metadata_of(kind, fields, keys), tensors, BASE["vocab_size"], factors)
    assert config["architectures"] == [name]
    tied = "output.weight" not in tensors
    spec = decoder_spec(config)
    assert spec == decoder_spec({**BASE, "tie_word_embeddings": tied, **fields, "architectures": [name]})
    entry = architecture_of(metadata_of(kind, fields, keys), tensors)[1]
    offered = {hf_name(each, entry) for each in tensors_of(kind)}
    fused = {str(each) for each in offered if str(each).endswith("experts.gate_up_proj.weight")}
    offered |= {each.replace("gate_up", part) for each in fused for part in ("gate", "up")}  # apart in `GgufModel`
    asks = inventory(spec)
    for needed in asks.shapes:
        view = asks.views.get(needed)
        assert needed in offered or (view is not None and set(view.sources) <= offered), needed


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_names_of_tensors_are_those_of_the_converter(kind: str) -> None:
    """The library knows most names of checkpoints; the others are names that specs give to renamed tensors."""
    (arch,) = [arch for arch, name in MODEL_ARCH_NAMES.items() if name == kind]
    known, checked = get_tensor_name_map(MODEL_ARCH(arch), LAYERS), 0
    entry = ARCHITECTURES[kind]
    for name in tensors_of(kind):
        if name.endswith(".weight") and (full := hf_name(name, entry)) is not None:
            stem = known.get_name(full.removesuffix(".weight"))
            assert stem in (None, name.removesuffix(".weight"))
            checked += stem is not None
    assert checked >= 8 * LAYERS


def test_every_architecture_has_a_case() -> None:
    assert {each.values[0] for each in CASES} == ARCHITECTURES.keys()


@pytest.mark.parametrize(
    ("kind", "fields", "keys", "named"),
    [
        ("qwen3moe", {}, EXPERTS | {"expert_weights_scale": 2.0}, "qwen3moe.expert_weights_scale=2.0"),
        ("qwen3moe", {}, EXPERTS | {"expert_gating_func": 2}, "qwen3moe.expert_gating_func=2"),
        ("glm4", {}, {"rope.dimension_sections": [1, 2, 3]}, "glm4.rope.dimension_sections"),
        ("qwen3vl", {}, {"rope.dimension_sections": [4, 4, 4, 4]}, "qwen3vl.rope.dimension_sections=[4, 4, 4, 4]"),
        ("qwen3", {}, {"n_deepstack_layers": 3}, "qwen3.n_deepstack_layers=3"),
        ("smollm3", {}, {"rope.dimension_count": 16}, "smollm3.rope.dimension_count=16"),
        ("granitemoe", {}, EXPERTS | {"expert_shared_feed_forward_length": 32}, "expert_shared_feed_forward_length"),
        ("deepseek2", {}, LATENT_KEYS | ROUTED_KEYS | {"expert_count": 256}, "expert_group_count"),
        ("gemma4", {}, GEMMA4_KEYS | {"feed_forward_length": [96] * 7 + [128]}, "feed_forward_length"),
        ("olmo2", {}, {"attention.sliding_window": 9, "attention.sliding_window_pattern": [True]}, "pattern"),
        ("olmo2", {}, YARN_KEYS | {"rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor=0.5"),
        ("qwen2", {}, {"rope.scaling.type": "longrope"}, "rope.scaling.type='longrope'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    kind: str, fields: dict[str, Any], keys: dict[str, Any], named: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        hf_config(metadata_of(kind, EPS | fields, keys), set(), 67)
    assert named in str(caught.value)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_damaged_metadata_are_errors_that_name_the_architecture(kind: str) -> None:
    whole = metadata_of(kind, EPS, {"attention.sliding_window": 20} if kind in ("gemma3", "gpt-oss") else {})
    for key in list(whole)[1:]:
        for value in ("text", -1, [1], 2**70, None, 0.5):
            try:
                decoder_spec(hf_config({**whole, key: value}, set(), 67))
            except FerrumError:
                continue
    with pytest.raises(CheckpointError, match="block_count"):
        hf_config({key: value for key, value in whole.items() if "block_count" not in key}, set(), 67)


def test_experts_are_one_matrix() -> None:
    assert hf_shape("model.layers.0.mlp.experts.up_proj.weight", (8, 48, 64)) == (384, 64)
    assert hf_shape("model.layers.0.mlp.experts.up_proj.bias", (8, 48)) == (384,)
    assert hf_shape("model.layers.0.mlp.shared_expert_gate.weight", (64,)) == (1, 64)
    assert hf_shape("model.layers.0.mlp.gate.weight", (8, 64)) == (8, 64)


PARAMETERS = {
    "gemma3": ("gemma3", {"attention.sliding_window": 20}),
    "gemma4-experts": ("gemma4", GEMMA4_MOE_KEYS | {"block_count": 2, "attention.sliding_window_pattern": [True, False],
                                                    "attention.head_count_kv": [2, 1]}),
    "gemma4-shared": ("gemma4", GEMMA4_KEYS | {"block_count": 4, "feed_forward_length": [96, 96, 192, 192],
                                               "attention.sliding_window_pattern": [True, False] * 2,
                                               "attention.shared_kv_layers": 2}),
    "phi3": ("phi3", {}),
    "granite": ("granite", GRANITE_KEYS),
    "glm4": ("glm4", {"rope.dimension_count": 8}),
    "starcoder2": ("starcoder2", {"attention.layer_norm_epsilon": 1e-5}),
    "hunyuan": ("hunyuan-dense", {}),
    "llama4": ("llama4", EXPERTS | {"expert_feed_forward_length": 96, "interleave_moe_layer_step": 2}),
    "qwen2-moe": ("qwen2moe", EXPERTS | {"expert_feed_forward_length": 32}),
    "mixtral": ("llama", EXPERTS),
    "gpt-oss": ("gpt-oss", EXPERTS | {"attention.sliding_window": 20, "expert_feed_forward_length": 96}),
    "granite-moe": ("granitemoe", EXPERTS | GRANITE_KEYS),
    "glm4-moe": ("glm4moe", ROUTED_KEYS | {"rope.dimension_count": 8}),
    "ernie-moe": ("ernie4_5-moe", EXPERTS | {"expert_feed_forward_length": 32, "interleave_moe_layer_step": 1,
                                             "leading_dense_block_count": 1,
                                             "expert_shared_feed_forward_length": 32}),
    "minimax-m2": ("minimax-m2", EXPERTS | {"rope.dimension_count": 16, "expert_feed_forward_length": 96}),
    "deepseek-v2": ("deepseek2", ROUTED_KEYS | LATENT_KEYS | {"attention.q_lora_rank": None}),
    "deepseek-v3": ("deepseek2", ROUTED_KEYS | LATENT_KEYS),
}  # fmt: skip
"""By a case of the parity tests: the architecture of its file, and the metadata without which no file is read."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_file_has_the_numbers_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    """The converter's names, orders, merged experts and shifted norms are undone."""
    (small,) = [Case(*each) for each in FAMILY_CASES if each[0] == name]
    directory, (kind, keys) = directory_of(small), PARAMETERS[name]
    checkpoint = Checkpoint(directory)
    files = load_file(directory / "model.safetensors")
    writer = GGUFWriter(tmp_path / "model.gguf", kind)
    for key, value in metadata_of(kind, checkpoint.config, keys).items():
        if key != "general.architecture":
            kind_of = {float: GGUFValueType.FLOAT32, int: GGUFValueType.UINT32, list: GGUFValueType.ARRAY}
            kind_of |= {str: GGUFValueType.STRING, bool: GGUFValueType.BOOL}
            writer.add_key_value(key, value, kind_of[type(value)])
    for full, values in converted(kind, checkpoint.config, files).items():
        writer.add_tensor(full, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    spec = decoder_spec(checkpoint.config)
    asks = inventory(spec)
    theirs = with_views(checkpoint, asks)
    ours = with_views(GgufModel(tmp_path / "model.gguf").checkpoint(), asks)
    assert set(ours.tensors) - {"lm_head.weight"} == set(asks.shapes) - {"lm_head.weight"}
    for each, shape in asks.shapes.items():
        shift = spec.norms.offset if each.endswith("norm.weight") else 0.0
        assert ours.tensors[each].shape == shape
        np.testing.assert_array_equal(ours.read(each), theirs.read(each).astype(np.float32) + np.float32(shift))
