"""Fields as published files spell them: other names, letters, numbers that are 0, and tensors that no model uses."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file

from family_cases import FAMILY_CASES
from family_twin import MODELS, alone, compare_logits, logits_of, twin_config
from ferrum.core.errors import FerrumError, Unsupported
from ferrum.models.attention_spec import AttentionSpec
from ferrum.models.families import decoder_spec
from ferrum.models.spec import DecoderSpec
from ferrum.text.text_config import _TEXT_TYPES
from ferrum.verbs.load_executor import load_executor
from native_twin import require_native
from tiny import BASE, directory_of, model_of, tokens_of

SLIDING, FULL = "sliding_attention", "full_attention"
FIELDS = {
    config.replace("TextConfig", "Config").replace("Config", "ForCausalLM"): x for _, config, x in FAMILY_CASES[::-1]
}
FIELDS |= {f"{name}ForCausalLM": {} for name in ("Llama", "Mistral", "Ministral", "Qwen2", "Qwen3")}


def spec_of(architecture: str, **changes: Any) -> DecoderSpec:
    return decoder_spec({**BASE, **FIELDS[architecture], **changes, "architectures": [architecture]})


def attention_of(spec: DecoderSpec) -> list[AttentionSpec]:
    parts = [layer.part("self_attn") for layer in spec.layers]  # type: ignore[attr-defined]
    return [part for part in parts if isinstance(part, AttentionSpec)]


def windows_of(spec: DecoderSpec) -> list[int | None]:
    return [part.window for part in attention_of(spec)]


def test_attention_in_both_directions_among_images_does_not_concern_text() -> None:
    """Gemma 4 26B-A4B, 31B and 12B."""
    assert spec_of("Gemma4ForCausalLM", use_bidirectional_attention="vision") == spec_of("Gemma4ForCausalLM")
    for value in ("all", True):
        with pytest.raises(Unsupported, match="use_bidirectional_attention"):
            spec_of("Gemma4ForCausalLM", use_bidirectional_attention=value)


def test_the_last_layer_of_gemma_4_is_full() -> None:
    kinds = [SLIDING, SLIDING]
    config = transformers.Gemma4TextConfig(num_hidden_layers=2, layer_types=[*kinds])
    assert config.layer_types == [SLIDING, FULL]
    assert windows_of(spec_of("Gemma4ForCausalLM", layer_types=kinds)) == [20, None]


def test_letters_name_the_kinds_of_layers() -> None:
    """EXAONE-4.0-32B: `sliding_window_pattern` has letters, and `layer_types` the same layers."""
    fields = {"num_hidden_layers": 9, "sliding_window": 20, "layer_types": None}
    letters = spec_of("Exaone4ForCausalLM", **fields, sliding_window_pattern="LLLG")
    assert windows_of(letters) == [20, 20, 20, None] * 2 + [None]
    assert windows_of(spec_of("Exaone4ForCausalLM", **fields, sliding_window_pattern=4))[:8] == windows_of(letters)[:8]
    kinds = [SLIDING if window else FULL for window in windows_of(letters)]
    assert spec_of("Exaone4ForCausalLM", **{**fields, "layer_types": kinds}, sliding_window_pattern="GL") == letters
    with pytest.raises(FerrumError, match="sliding_window_pattern must be a number or letters L and G, got 'LLXG'"):
        spec_of("Exaone4ForCausalLM", **fields, sliding_window_pattern="LLXG")


@pytest.mark.parametrize("layers", [{}, {"max_window_layers": 2}, {"layer_types": [FULL, FULL, FULL]}])
def test_a_window_of_qwen3_moe_is_that_of_all_layers(layers: dict[str, Any]) -> None:
    """`transformers` reads neither of the fields for this class."""
    fields = {**FIELDS["Qwen3MoeForCausalLM"], "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 8}
    twin = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**{**BASE, **fields, **layers}))
    assert {layer.self_attn.sliding_window for layer in twin.model.layers} == {8}
    assert windows_of(spec_of("Qwen3MoeForCausalLM", **fields, **layers)) == [8, 8, 8]


@pytest.mark.parametrize("architecture", ["Olmo3ForCausalLM", "Gemma3ForCausalLM", "Gemma4ForCausalLM"])
def test_one_rope_for_all_kinds_of_layers_is_refused(architecture: str) -> None:
    flat = {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0}
    with pytest.raises(Unsupported, match="rope_parameters without sliding_attention and full_attention"):
        spec_of(architecture, rope_parameters=flat)


@pytest.mark.parametrize("architecture", ["Olmo3ForCausalLM", "Gemma3ForCausalLM"])
def test_the_older_spelling_scales_full_layers(architecture: str) -> None:
    kinds, scaling = {"layer_types": [SLIDING, FULL], "num_hidden_layers": 2}, {"rope_type": "linear", "factor": 8.0}
    sliding, full = attention_of(spec_of(architecture, **kinds, rope_scaling=scaling))
    plain = [part.rope for part in attention_of(spec_of(architecture, **kinds))]
    assert sliding.rope == plain[0] and full.rope is not None and plain[1] is not None
    assert full.rope.frequencies == tuple(each / 8 for each in plain[1].frequencies)


LONG = {"long_factor": [2.0] * 8, "short_factor": [1.0] * 8}


@pytest.mark.parametrize(
    ("architecture", "spelled", "known"),
    [
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "su", **LONG}}, {"rope_scaling": {"type": "longrope", **LONG}}),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "yarn", **LONG}}, {"rope_scaling": {"type": "longrope", **LONG}}),
        (
            "LlamaForCausalLM",
            {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4.0}},
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        ),
        (
            "DeepseekV3ForCausalLM",
            {"rope_parameters": {"type": "deepseek_yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}},
            {"rope_parameters": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}},
        ),
        ("Qwen2ForCausalLM", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 4]}}, {}),
        ("Llama4ForCausalLM", {"attn_temperature_tuning": 4}, {"attn_temperature_tuning": True}),
        ("Llama4ForCausalLM", {"attn_temperature_tuning": 0}, {"attn_temperature_tuning": False}),
        ("GptOssForCausalLM", {"num_local_experts": None, "num_experts": 6}, {"num_local_experts": 6}),
        ("MixtralForCausalLM", {"num_local_experts": None, "num_experts": 6}, {"num_local_experts": 6}),
        ("Qwen3MoeForCausalLM", {"num_experts": None, "num_local_experts": 6}, {"num_experts": 6}),
        ("Glm4MoeForCausalLM", {"n_routed_experts": None, "num_local_experts": 6}, {"n_routed_experts": 6}),
    ],
)
def test_other_spellings_mean_the_same(architecture: str, spelled: dict[str, Any], known: dict[str, Any]) -> None:
    assert spec_of(architecture, **spelled) == spec_of(architecture, **known)


@pytest.mark.parametrize(
    ("whole", "text", "architecture"),
    [
        ({"architectures": ["KimiK25ForConditionalGeneration"]}, {"model_type": "kimi_k2"}, "DeepseekV3ForCausalLM"),
        (
            {"architectures": ["Gemma4UnifiedForConditionalGeneration"], "model_type": "gemma4_unified"},
            {"model_type": "gemma4_unified_text", "hidden_size_per_layer_input": 0},
            "Gemma4ForCausalLM",
        ),
        ({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}, {}, "MistralForCausalLM"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}, {}, "Gemma3ForCausalLM"),
    ],
)
def test_text_models_in_whole_ones_are_known_by_type(
    whole: dict[str, Any], text: dict[str, Any], architecture: str
) -> None:
    fields = {**BASE, **FIELDS[architecture]}
    assert decoder_spec({**whole, "text_config": {**fields, **text}}) == spec_of(architecture, **text)


def test_types_of_text_models_are_those_of_the_wholes_classes() -> None:
    for whole, text in _TEXT_TYPES.items():
        config = transformers.models.auto.configuration_auto.CONFIG_MAPPING[whole]()
        assert (whole, config.get_text_config().model_type) == (whole, text)


def test_a_text_config_of_a_few_fields_has_the_classes_values() -> None:
    """gemma-3-4b: `text_config` has what differs from the class."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    text |= {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    saved = transformers.Gemma3Config(text_config={**text, "rope_scaling": {**text["rope_scaling"]}}).text_config
    spec = decoder_spec({**saved.to_dict(), "dtype": None, "architectures": ["Gemma3ForCausalLM"]})
    assert decoder_spec(whole) == spec
    assert (spec.vocab_size, attention_of(spec)[0].num_heads, attention_of(spec)[0].num_kv_heads) == (262208, 8, 4)


@pytest.mark.parametrize(
    ("architecture", "zero", "without"),
    [
        ("MistralForCausalLM", {"sliding_window": 0}, {"sliding_window": None}),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": 0.0}, {"attn_logit_softcapping": None}),
        ("Gemma3ForCausalLM", {"final_logit_softcapping": 0}, {"final_logit_softcapping": None}),
        ("Llama4ForCausalLM", {"attention_chunk_size": 0}, {"attention_chunk_size": None}),
        ("Llama4ForCausalLM", {"attn_scale": 0.0}, {"attn_temperature_tuning": False}),
        ("DeepseekV3ForCausalLM", {"n_shared_experts": 0}, {"n_shared_experts": None}),
        ("DeepseekV3ForCausalLM", {"q_lora_rank": 0}, {"q_lora_rank": None}),
    ],
)
def test_zero_is_none(architecture: str, zero: dict[str, Any], without: dict[str, Any]) -> None:
    assert spec_of(architecture, **zero) == spec_of(architecture, **without)


def test_zeros_of_ropes_are_none() -> None:
    """Devstral 2 has a `llama_4_scaling_beta` and an `mscale_all_dim` of 0."""
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 64.0, "original_max_position_embeddings": 64}
    none = spec_of("Ministral3ForCausalLM", rope_parameters=rope)
    zeros = {"llama_4_scaling_beta": 0.0, "mscale": 1.0, "mscale_all_dim": 0.0, "beta_fast": 0, "beta_slow": 0}
    assert spec_of("Ministral3ForCausalLM", rope_parameters={**rope, **zeros}) == none
    assert {part.temperature for part in attention_of(none)} == {None}


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("granite", {"residual_multiplier": 0.0, "attention_multiplier": 0.0}),
        ("granite-moe", {"embedding_multiplier": 0.0}),
        ("cohere2", {"logit_scale": 0.0}),
        ("glm4-moe", {"routed_scaling_factor": 0.0}),
        ("ernie-moe", {"moe_norm_min": 0.0}),
        ("qwen3-moe", {"num_experts": 0}),
        ("olmo2", {"rms_norm_eps": 0.0}),
    ],
)
def test_factors_of_zero_give_the_twins_logits(case: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """`num_experts` of 0 makes all layers dense."""
    require_native()
    architecture, values = type(model_of(MODELS[case])).__name__, {**BASE, **MODELS[case].changes, **changes}
    compare_logits(architecture, values, twin_config(architecture, values), tmp_path)


@pytest.mark.parametrize("field", ["clip_qkv", "attn_logit_softcapping", "embedding_multiplier"])
def test_factors_that_a_family_does_not_have_are_refused(field: str) -> None:
    for idle in (None, 0, 1):
        assert spec_of("LlamaForCausalLM", **{field: idle}) == spec_of("LlamaForCausalLM")
    with pytest.raises(Unsupported, match=f"{field}=8.0"):
        spec_of("LlamaForCausalLM", **{field: 8.0})


def ignores(spec: DecoderSpec, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in spec.ignored_names)


@pytest.mark.parametrize("architecture", FIELDS)
def test_heads_for_further_tokens_are_left_out(architecture: str) -> None:
    """The patterns are those of `transformers`' classes, and the names those of ERNIE-4.5-21B and others."""
    names = [f"model.mtp_{each}.0.weight" for each in ("block", "emb_norm", "hidden_norm", "linear_proj", "layers")]
    names += ["mtp.layers.0.mlp.up_proj.weight", "model.mtp.layers.0.eh_proj.weight"]
    assert all(ignores(spec_of(architecture), name) for name in names)
    for pattern in getattr(transformers, architecture)._keys_to_ignore_on_load_unexpected or ():
        for count in re.findall(r"layers\\\.(\d+)", pattern):
            for extra in (None, 0):
                fields = {"num_hidden_layers": int(count), "mlp_layer_types": None, "num_nextn_predict_layers": extra}
                assert ignores(spec_of(architecture, **fields), f"model.layers.{count}.eh_proj.weight")
    assert not ignores(spec_of(architecture), "model.layers.0.mlp.up_proj.weight")


def test_keys_and_values_of_layers_that_read_others_are_left_out() -> None:
    """Published files of Gemma 4 E2B and E4B have them. `transformers` lists them when it makes the model."""
    spec, twin = spec_of("Gemma4ForCausalLM", **MODELS["gemma4-shared"].changes), model_of(MODELS["gemma4-shared"])
    patterns = twin.model._keys_to_ignore_on_load_unexpected
    assert len(patterns) == 8 and all(ignores(spec, f"model.{pattern}.weight") for pattern in patterns)
    assert not ignores(spec, "model.layers.1.self_attn.k_proj.weight")


@pytest.mark.parametrize(
    ("case", "extra"),
    [
        ("ernie-moe", "model.mtp_block.0.mlp.up_proj.weight"),
        ("gemma4-shared", "model.layers.3.self_attn.k_proj.weight"),
    ],
)
def test_tensors_that_are_left_out_change_no_bit(case: str, extra: str, tmp_path: Path) -> None:
    require_native()
    tensors = load_file(directory_of(MODELS[case]) / "model.safetensors")
    save_file({**tensors, extra: np.ones((3, 5), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((directory_of(MODELS[case]) / "config.json").read_text())
    with load_executor(tmp_path) as executor:
        np.testing.assert_array_equal(
            logits_of(executor, tokens_of(MODELS[case], len(alone(case, "native")))), alone(case, "native")
        )
