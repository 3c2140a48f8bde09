"""Metadata keys of GGUF files: absent ones have llama.cpp's values, and none is dropped silently."""

from __future__ import annotations

import math
from typing import Any

import pytest
from gguf.constants import Keys
from test_gguf_families import BASE, CASES, EPS, EXPERTS, GEMMA4_KEYS, ROUTED_KEYS, metadata_of

from ferrum.core.errors import CheckpointError, FerrumError, Unsupported
from ferrum.models.families import decoder_spec
from ferrum.models.gguf_architecture import WITHOUT_EFFECT
from ferrum.models.gguf_keys import architecture_of, hf_config

SPECIFIED = [
    value.removeprefix("{arch}.")
    for group in (Keys.LLM, Keys.Attention, Keys.Attention.Indexer, Keys.Rope)
    for value in vars(group).values()
    if isinstance(value, str) and value.startswith("{arch}.") and "{dense}" not in value
]
"""Keys of an architecture that the library of the format knows."""

ODD: dict[str, Any] = {
    "rope.scaling.type": "su",
    "rope.scaling.finetuned": False,
    "attention.causal": False,
    "use_parallel_residual": True,
    "expert_weights_norm": True,
}
"""Values that are not the usual ones, of keys that are not numbers."""

YARN_ONLY = {f"rope.scaling.{part}" for part in ("original_context_length", "yarn_beta_fast", "yarn_beta_slow")}
"""Keys without effect unless the scaling is YaRN or longrope, in llama.cpp as well."""

ELSEWHERE = {
    "gpt-oss": {"feed_forward_length"},  # the width of experts counts
    "minimax-m2": {"feed_forward_length"},
    "deepseek2": {"attention.key_length", "attention.head_count_kv"},  # those of the latent count
}
"""Keys without effect, as the files of their architecture have others for the same."""

CONTRADICTED = {
    *("attention.key_length", "attention.key_length_swa", "attention.shared_kv_layers", "attention.temperature_scale"),
    *("embedding_length", "rope.dimension_count", "rope.scaling.factor", "rope.scale_linear", "nextn_predict_layers"),
    *("expert_count", "expert_gating_func", "expert_group_count"),
}
"""Keys that other keys contradict if they change: the error names one of these."""


def config_of(kind: str, keys: dict[str, Any], tensors: set[str] | None = None, **factors: list[float]) -> Any:
    return hf_config(metadata_of(kind, EPS, keys), tensors or set(), BASE["vocab_size"], factors)


def first_cases() -> list[Any]:
    """Return the first case of every architecture."""
    return list({each.values[0]: each for each in reversed(CASES)}.values())


@pytest.mark.parametrize(("kind", "name", "fields", "keys", "tensors", "factors"), first_cases())
def test_no_key_of_the_specification_is_dropped_silently(
    kind: str,
    name: str,
    fields: dict[str, Any],
    keys: dict[str, Any],
    tensors: set[str],
    factors: dict[str, list[float]],
) -> None:
    """A key changes the configuration, is refused by name, or is listed as one without effect."""
    metadata = metadata_of(kind, fields, keys)
    plain = hf_config(metadata, tensors, 67, factors)
    entry = architecture_of(metadata, tensors)[1]
    scaled = (plain.get(entry.rope) or {}).get("rope_type") in ("yarn", "longrope")
    usual = {("expert_gating_func", entry.gating), ("expert_weights_norm", entry.fixed.get("norm_topk_prob"))}
    unread = () if plain.get("sliding_window") and "layer_types" in plain else ("attention.sliding_window_pattern",)
    off = ("rope.scaling.factor", "rope.scale_linear") if keys.get("rope.scaling.type") == "none" else ()
    listed = {*unread, *off, *entry.ignored, *WITHOUT_EFFECT, *ELSEWHERE.get(kind, ()), *(() if scaled else YARN_ONLY)}
    for key in sorted({*SPECIFIED, *entry.only} - (listed - {*entry.only}) - {"expert_count"}):
        for value in (ODD[key],) if key in ODD else (5, 7.5):
            if metadata.get(f"{kind}.{key}") == value or (key, value) in usual:
                continue
            try:
                found = hf_config({**metadata, f"{kind}.{key}": value}, tensors, 67, factors)
            except (Unsupported, CheckpointError) as error:
                assert key in str(error) or key in CONTRADICTED, error
            else:
                assert found != plain, key


@pytest.mark.parametrize(("kind", "name", "fields", "keys", "tensors", "factors"), CASES)
def test_a_file_without_a_key_is_read_or_refused_by_its_name(
    kind: str,
    name: str,
    fields: dict[str, Any],
    keys: dict[str, Any],
    tensors: set[str],
    factors: dict[str, list[float]],
) -> None:
    whole = metadata_of(kind, fields, keys)
    for key in list(whole)[1:]:
        try:
            decoder_spec(hf_config({each: whole[each] for each in whole if each != key}, tensors, 67, factors))
        except FerrumError as error:
            own = key.partition(".")[2]
            assert own in str(error) or own in CONTRADICTED, (key, error)
        for value in ("text", -1, [1], 2**70, None, 0.5, True, [None] * 8, float("nan")):
            try:
                decoder_spec(hf_config({**whole, key: value}, tensors, 67, factors))
            except FerrumError:
                continue


HEADS_ARE_KV_HEADS = {"attention.head_count_kv": None}
LINEAR = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("kind", "keys", "fields"),
    [
        ("llama", HEADS_ARE_KV_HEADS, {"num_key_value_heads": 4}),
        ("llama", {"attention.key_length": None, "attention.value_length": None}, {"head_dim": 16}),
        ("qwen3", {"attention.key_length": None, "attention.value_length": None}, {"head_dim": 16}),
        ("qwen2", {"rope.freq_base": None}, {"rope_theta": 10000.0}),
        ("smollm3", {"rope.freq_base": None}, {"rope_theta": 10000.0}),
        ("mistral3", {"rope.freq_base": None}, {"rope_theta": 10000.0}),
        ("gemma2", {}, {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
        ("gemma4", GEMMA4_KEYS | {"final_logit_softcapping": None}, {"final_logit_softcapping": 30.0}),
        ("glm4", {}, {"partial_rotary_factor": 1.0}),
        ("glm4moe", ROUTED_KEYS | {"expert_weights_norm": None}, {"norm_topk_prob": False}),
        ("glm4moe", ROUTED_KEYS | {"leading_dense_block_count": None}, {"first_k_dense_replace": 0}),
        ("qwen3moe", EXPERTS, {"moe_intermediate_size": 48}),
        ("qwen2moe", EXPERTS, {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 96}),
        ("exaone4", {"block_count": 64}, {"sliding_window": 4096}),
        ("llama", {"rope.scaling.factor": 4.0}, {"rope_scaling": LINEAR}),
        ("llama", {"rope.scale_linear": 4.0}, {"rope_scaling": LINEAR}),
        ("gemma3", {"rope.scaling.factor": 4.0}, {"rope_scaling": LINEAR}),
        ("llama", {"rope.scaling.type": "linear"}, {}),
        ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, {}),
        ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
        ("llama", {"tensor_data_layout": "Meta AI original pth", "attention.clamp_kqv": 0.0}, {}),
        ("llama", {"attention.causal": True, "expert_count": 0, "expert_used_count": 0}, {}),
    ],
)
def test_an_absent_key_has_the_value_of_llama_cpp(kind: str, keys: dict[str, Any], fields: dict[str, Any]) -> None:
    factors = {"rope_freqs.weight": [1.0] * 8 + [1e30] * 24} if kind == "gemma4" else {}
    found = config_of(kind, keys, **factors)
    assert fields.items() <= found.items()
    assert "rope_scaling" in fields or not found.get("rope_scaling")
    decoder_spec(found)


def test_factors_of_the_rope_without_a_scaling_are_read_with_a_linear_one_of_1() -> None:
    config = config_of("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, None,
                       **{"rope_freqs.weight": [2.0] * 16})  # fmt: skip
    assert config["rope_scaling"] == {"rope_type": "factors", "factors": [2.0] * 16}


OWN = 1 + 0.1 * math.log(4)
"""YaRN's factor of q . k for a factor of 4."""


@pytest.mark.parametrize(
    ("key", "value", "factor"),
    [
        ("attn_factor", 1.0, OWN),
        ("attn_factor", 1.25, 1.25 * OWN),
        ("attn_factor", OWN, OWN),
        ("yarn_attn_factor", 1.25, 1.25),
        ("yarn_attn_factor", 1.0, 1.0),
    ],
)
def test_one_factor_of_yarn_multiplies_its_default_and_another_replaces_it(
    key: str, value: float, factor: float
) -> None:
    """llama.cpp multiplies by `attn_factor` (its logits are these); converters write the checkpoint's to the other."""
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, f"rope.scaling.{key}": value}
    assert config_of("llama", yarn)["rope_scaling"]["attention_factor"] == pytest.approx(factor)


@pytest.mark.parametrize(
    ("kind", "keys", "tensors", "named"),
    [
        ("granite", {"rope.scaling.finetuned": False}, set(), "rope.scaling.finetuned"),
        ("llama", {"attention.causal": False}, set(), "attention.causal"),
        ("llama", {"rope.scaling.attn_factor": 1.5}, set(), "rope.scaling.attn_factor"),
        ("llama", {"attention.head_count_kv": [2, 1] * 4}, set(), "attention.head_count_kv"),
        ("llama4", EXPERTS | {"attention.sliding_window": 0}, set(), "attention.sliding_window"),
        ("qwen2", {}, {"output.bias"}, "output.bias"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    kind: str, keys: dict[str, Any], tensors: set[str], named: str
) -> None:
    with pytest.raises((Unsupported, CheckpointError), match=named):
        config_of(kind, keys, tensors)
