"""Families read configurations strictly: both spellings of rope, and errors that name the field."""

from __future__ import annotations

from typing import Any

import pytest

from ferrum.core.errors import CheckpointError, FerrumError, Unsupported
from ferrum.core.kv_shape import KvShape
from ferrum.models.decoder import inventory
from ferrum.models.families import decoder_spec

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    "scaling",
    [
        {"factor": 4.0, "rope_type": "linear"},
        {"factor": 4.0, "rope_type": "dynamic"},
        {"factor": 4.0, "rope_type": "yarn", "original_max_position_embeddings": 64},
        {
            "factor": 8.0,
            "rope_type": "llama3",
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_both_spellings_of_rope_are_equal(scaling):
    new = decoder_spec({**CONFIG, "rope_parameters": {**scaling, "rope_theta": 5e5}}, context=300)
    legacy = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    for section in (scaling, legacy):
        old = decoder_spec({**CONFIG, "rope_theta": 5e5, "rope_scaling": section}, context=300)
        assert old == new
    assert new != decoder_spec({**CONFIG, "rope_theta": 5e5}, context=300)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, Unsupported, ("MambaForCausalLM", "LlamaForCausalLM")),
        ({"architectures": []}, CheckpointError, ("architectures",)),
        ({"architectures": "LlamaForCausalLM"}, CheckpointError, ("architectures",)),
        ({"hidden_size": None}, CheckpointError, ("hidden_size",)),
        ({"hidden_size": "48"}, CheckpointError, ("hidden_size", "'48'")),
        ({"num_hidden_layers": -1}, CheckpointError, ("num_hidden_layers",)),
        ({"num_key_value_heads": 4}, CheckpointError, ("6", "4")),
        ({"rms_norm_eps": float("nan")}, CheckpointError, ("rms_norm_eps",)),
        ({"tie_word_embeddings": "yes"}, CheckpointError, ("tie_word_embeddings",)),
        ({"hidden_act": "tanh"}, Unsupported, ("hidden_act", "tanh", "gelu")),
        ({"model_type": "gemma"}, Unsupported, ("model_type", "gemma", "LlamaForCausalLM")),
        ({"model_type": "mistral"}, Unsupported, ("model_type", "mistral", "LlamaForCausalLM")),
        ({"is_causal": False}, Unsupported, ("is_causal",)),
        ({"is_causal": None}, Unsupported, ("is_causal",)),
        ({"per_layer_config": {"1": {"sliding_window": 8}}}, Unsupported, ("per_layer_config",)),
        ({"transformers_weights": "other.safetensors"}, Unsupported, ("transformers_weights", "other.safetensors")),
        ({"mlp_bias": 1}, CheckpointError, ("mlp_bias",)),
        ({"partial_rotary_factor": 0.5}, Unsupported, ("partial_rotary_factor", "0.5")),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, Unsupported, ("partial_rotary_factor", "0.5")),
        ({"rope_scaling": {"type": "spiral", "factor": 2.0}}, Unsupported, ("spiral", "yarn")),
        ({"rope_scaling": {"type": "linear"}}, CheckpointError, ("factor",)),
        ({"rope_scaling": "linear"}, CheckpointError, ("rope_scaling",)),
        ({"head_dim": 7}, CheckpointError, ("7", "even")),
        ({"max_position_embeddings": 10**30}, CheckpointError, ("max_position_embeddings",)),
        ({"num_hidden_layers": 10**6}, CheckpointError, ("num_hidden_layers", "10000")),
        ({"rms_norm_eps": 10**400}, CheckpointError, ("rms_norm_eps",)),
        ({"architectures": ["Qwen3ForCausalLM"], "max_window_layers": "28"}, CheckpointError, ("max_window_layers",)),
        ({"architectures": ["Qwen3ForCausalLM"], "layer_types": [[]] * 4}, CheckpointError, ("layer_types",)),
        ({"architectures": ["MistralForCausalLM"], "layer_types": ["chunked"] * 4}, CheckpointError, ("layer_types",)),
        ({"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}, CheckpointError, ("yarn", "rope")),
        ({"rope_scaling": {"type": "linear", "factor": 5e-324}}, CheckpointError, ("linear", "finite")),
        ({"rope_theta": 5e-324}, CheckpointError, ("default", "finite")),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, Unsupported, ("rope", "kind of layer")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_invalid_configurations_are_refused_by_field(changes, error, words):
    with pytest.raises(error) as caught:
        decoder_spec({**CONFIG, **changes})
    assert isinstance(caught.value, FerrumError)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("idle", [{"pretraining_tp": 2}, {"partial_rotary_factor": 1.0}, {"is_causal": True}])
def test_fields_without_effect_are_accepted(idle):
    """Llama 2 13B has `pretraining_tp`, slices of the same products."""
    assert decoder_spec({**CONFIG, **idle}) == decoder_spec(CONFIG)


def test_a_pattern_of_windows_is_a_list_of_layers():
    pattern = ["sliding_attention", "full_attention"] * 2
    config = {**CONFIG, "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "sliding_window": 32}
    spec = decoder_spec({**config, "layer_types": pattern})
    assert [layer.part("self_attn").window for layer in spec.layers] == [32, None, 32, None]
    assert inventory(spec).kv_layers == (KvShape(3, 128, 128, 32, num_layers=2), KvShape(3, 128, 128, num_layers=2))
    with pytest.raises(CheckpointError, match="layer_types"):
        decoder_spec({**config, "layer_types": pattern[:3]})


def test_mistrals_layer_types_select_sliding_layers():
    """Ministral 8B is published as a Mistral with `layer_types`; `transformers` saves it under another name."""
    pattern = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config = {**CONFIG, "sliding_window": 32, "layer_types": pattern}
    spec = decoder_spec({**config, "architectures": ["MistralForCausalLM"], "model_type": "ministral"})
    assert [layer.part("self_attn").window for layer in spec.layers] == [None, 32, 32, None]
    assert spec == decoder_spec({**config, "architectures": ["MinistralForCausalLM"]})


def test_a_null_window_means_no_window():
    config = {**CONFIG, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "max_window_layers": 0}
    for changes, window in (({}, 4096), ({"sliding_window": 32}, 32), ({"sliding_window": None}, None)):
        assert {layer.part("self_attn").window for layer in decoder_spec({**config, **changes}).layers} == {window}
    assert decoder_spec({**config, "max_window_layers": None}) == decoder_spec({**config, "max_window_layers": 28})


@pytest.mark.parametrize(
    ("own", "changes", "context"),
    [
        (64, {"original_max_position_embeddings": 64}, 256),  # as model cards tell users to add it
        (200, {"original_max_position_embeddings": 64}, 256),
        (300, {"original_max_position_embeddings": 64}, 300),
        (64, {}, 64),  # before or after scaling
        (256, {"original_max_position_embeddings": 64, "factor": None}, 256),
    ],
)
def test_yarn_extends_the_context_by_its_factor(own, changes, context):
    config = {**CONFIG, "max_position_embeddings": own, "rope_scaling": {"type": "yarn", "factor": 4.0, **changes}}
    assert decoder_spec(config).max_sequence_length == context


def test_linear_scaling_extends_the_context_by_its_factor():
    """Vicuna 16k: `max_position_embeddings` is the context before scaling."""
    config = {**CONFIG, "max_position_embeddings": 64, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert decoder_spec({**config, "max_sequence_length": 256}).max_sequence_length == 256
    assert decoder_spec(config).max_sequence_length == 64


def test_a_model_without_a_head_has_the_whole_models_architecture():
    config = {**CONFIG, "architectures": ["Qwen3Model"], "model_type": "qwen3"}
    assert decoder_spec(config) == decoder_spec({**config, "architectures": ["Qwen3ForCausalLM"]})
    assert decoder_spec({**CONFIG, "architectures": ["LLaMAForCausalLM"]}) == decoder_spec(CONFIG)
    with pytest.raises(Unsupported, match="BertModel"):
        decoder_spec({**CONFIG, "architectures": ["BertModel"]})


LATENT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 64,
    "num_key_value_heads": 6,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "scoring_func": "sigmoid",
}


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"num_experts_per_tok": 9}, CheckpointError, "choose 9"),
        ({"n_routed_experts": 2**31 - 1}, CheckpointError, "2147483647 experts.*4096"),
        ({"n_group": 3}, CheckpointError, "3 groups"),
        ({"n_group": 4, "topk_group": 5}, CheckpointError, "5 are kept"),
        ({"n_group": 8, "topk_group": 1}, CheckpointError, "choose 2"),
        ({"moe_intermediate_size": 40}, Unsupported, "from 64 numbers to 40"),
        ({"moe_intermediate_size": None}, CheckpointError, "moe_intermediate_size"),
    ],
)
def test_impossible_choices_of_experts_are_refused(changes, error, named):
    with pytest.raises(error, match=named):
        inventory(decoder_spec({**CONFIG, **LATENT, **changes}))


def test_kimi_k2_is_a_deepseek_v3():
    """Its files name DeepSeek's architecture, another type, and one group."""
    config = {**CONFIG, **LATENT, "n_group": 1, "topk_group": 1}
    kimi = decoder_spec({**config, "model_type": "kimi_k2"})
    assert kimi == decoder_spec({**config, "model_type": "deepseek_v3"})


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("DeepseekV3ForCausalLM", {**LATENT, "scoring_func": "softmax"}, "scoring_func"),
        ("DeepseekV2ForCausalLM", {**LATENT, "scoring_func": None, "topk_method": "noaux_tc"}, "topk_method"),
        ("DeepseekV3ForCausalLM", {**LATENT, "v_head_dim": 24}, "v_head_dim 24"),
        ("DeepseekV3ForCausalLM", {**LATENT, "num_key_value_heads": 3}, "num_key_value_heads"),
        ("MiniMaxM2ForCausalLM", {"attn_type_list": [1, 0, 1, 1]}, "attn_type_list"),
        ("MiniMaxM2ForCausalLM", {"shared_intermediate_size": 64}, "shared_intermediate_size"),
        ("HunYuanDenseV1ForCausalLM", {"use_cla": True}, "use_cla"),
        ("Cohere2ForCausalLM", {"use_parallel_block": False}, "use_parallel_block"),
        ("Starcoder2ForCausalLM", {"mlp_type": "gated"}, "mlp_type"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Gemma4ForCausalLM", {"per_layer_config": {"1": {"sliding_window": 8}}}, "per_layer_config"),
        ("GptOssForCausalLM", {"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_fields_that_would_change_results_are_refused_by_name(architecture, changes, named):
    with pytest.raises(Unsupported, match=named):
        decoder_spec({**CONFIG, **changes, "architectures": [architecture]})


@pytest.mark.parametrize("name", ["llama", "LlamaForSequenceClassification", "LlamaModelForCausalLM"])
def test_a_type_is_no_architecture(name):
    with pytest.raises(Unsupported, match=f"the architecture '{name}'"):
        decoder_spec({**CONFIG, "architectures": [name]})


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("MiniMaxM2ForCausalLM", {"hidden_act": []}, "hidden_act"),
        ("MiniMaxM2ForCausalLM", {"attn_type_list": 1}, "attn_type_list"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": "x"}, "mlp_only_layers"),
        ("Gemma4ForCausalLM", {"rope_parameters": {"full_attention": 3}}, "full_attention"),
    ],
)
def test_values_of_another_type_are_refused_by_name(architecture, changes, named):
    with pytest.raises(FerrumError, match=named):
        decoder_spec({**CONFIG, **changes, "architectures": [architecture]})
