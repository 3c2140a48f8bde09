"""Absent fields have the values of the configuration classes of `transformers`, in every architecture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

from family_twin import CHANGES, TWINS, WITHOUT_EFFECT, compare_logits, twin_config
from ferrum.core.errors import FerrumError
from ferrum.models.class_defaults import ALIASES, CLASS_DEFAULTS
from ferrum.models.decoder import inventory
from ferrum.models.families import FAMILIES, decoder_spec, load_families
from ferrum.models.spec import DecoderSpec
from native_twin import require_native
from tiny import BASE

Values = dict[str, Any]

NOT_BUILT = {
    *(
        (f"{name}ForCausalLM", field)
        for name in ("HunYuanDenseV1", "Ministral")
        for field in ("head_dim", "everything")
    ),
    ("DeepseekV2ForCausalLM", "moe_intermediate_size"),
    ("Lfm2MoeForCausalLM", "layer_types"),
    ("Lfm2MoeForCausalLM", "everything"),
}
"""Models that `transformers` does not make without a field, or whose experts are of a width that no kernel has."""

OF_ROPE = {"rope_theta", "rope_local_base_freq", "partial_rotary_factor", "rope_parameters"}
"""Fields that the classes put into `rope_parameters` as they read them."""

OF_FILES = {
    *("sliding_window_pattern", "global_head_dim", "first_k_dense_replace", "num_mtp_layers"),
    "rope_interleave",
}
"""Fields of released files that some classes replace by others as they read them, or lack."""


SIZES = {
    *BASE,
    *("head_dim", "global_head_dim", "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    *("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp"),
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "moe_k"),
    *("vocab_size_per_layer_input", "n_group", "topk_group"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
}
"""Fields that a small model sets."""


def tiny_values(architecture: str) -> Values:
    return {**BASE, **CHANGES[TWINS[architecture]]}


def spec_of(architecture: str, values: Values) -> DecoderSpec | str:
    """Return the spec of a configuration, or why there is none."""
    try:
        return decoder_spec({**json.loads(json.dumps(values)), "architectures": [architecture]})
    except FerrumError as error:
        return str(error)


def read_whole(architecture: str, config: PreTrainedConfig) -> DecoderSpec | str:
    """Return the spec of a configuration as `transformers` saves it, with all fields."""
    return spec_of(architecture, {name: value for name, value in config.to_dict().items() if name != "dtype"})


def unused_of(architecture: str) -> set[str]:
    """Return the fields that say nothing of latent attention, whose heads share one latent vector."""
    return {"num_key_value_heads"} if "kv_lora_rank" in CLASS_DEFAULTS[architecture] else set()


def without_a_field(architecture: str) -> Iterator[tuple[str, Values, PreTrainedConfig]]:
    """Return each tiny configuration that lacks a field, if the class accepts it."""
    whole = tiny_values(architecture)
    for name in ("nothing", *(whole.keys() - unused_of(architecture) - WITHOUT_EFFECT), "everything"):
        values = {} if name == "everything" else {key: value for key, value in whole.items() if key != name}
        try:
            yield name, values, twin_config(architecture, values)
        except Exception:  # noqa: BLE001 - sizes that do not fit each other
            assert name in BASE, f"the class refuses a configuration without {name}"


@pytest.mark.parametrize("architecture", TWINS)
def test_rows_are_the_classes(architecture: str) -> None:
    row, twin = CLASS_DEFAULTS[architecture], getattr(transformers, TWINS[architecture])
    fields = {each.name: each.default for each in dataclasses.fields(twin)}
    read_otherwise = OF_ROPE | OF_FILES | unused_of(architecture)
    common = {"hidden_act", "rms_norm_eps"} - fields.keys()  # this class has other names for them
    for name in row.keys() - read_otherwise - common:
        assert (name, row[name] or None) == (name, fields[name] or None)
    for name in fields.keys() - WITHOUT_EFFECT - read_otherwise - ALIASES.get(architecture, {}).keys():
        assert (name, fields[name] or None) == (name, row.get(name) or None)


def test_every_architecture_has_a_row() -> None:
    load_families()
    assert set(FAMILIES.names()) == CLASS_DEFAULTS.keys() == TWINS.keys()


def test_another_class_of_an_architecture_has_its_own_values() -> None:
    """Gemma 4 12B is a Gemma 4 without embeddings per layer."""
    config = {"architectures": ["Gemma4UnifiedForCausalLM"], "num_hidden_layers": 2}
    saved = transformers.Gemma4UnifiedTextConfig(num_hidden_layers=2).to_dict() | {"dtype": None}
    spec = decoder_spec({**saved, "architectures": ["Gemma4ForCausalLM"]})
    assert decoder_spec(config) == spec == decoder_spec({**config, "model_type": "gemma4_unified_text"})
    assert (spec.max_sequence_length, len(spec.layers[0].branches)) == (262144, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("architecture", TWINS)
def test_other_names_of_fields_are_the_classes(architecture: str) -> None:
    config = twin_config(architecture, {})
    for alias, name in ALIASES.get(architecture, {}).items() - {("_sliding_window_pattern", "sliding_window_pattern")}:
        assert (alias, name) in config.attribute_map.items() or (name, alias) in config.attribute_map.items()


@pytest.mark.parametrize("architecture", TWINS)
def test_absent_fields_mean_what_the_class_has(architecture: str) -> None:
    """The class writes a configuration with all fields, which give the twin's logits (`test_family_models.py`)."""
    for name, values, config in without_a_field(architecture):
        assert spec_of(architecture, values) == read_whole(architecture, config), name


WINDOW = {"use_sliding_window": True, "sliding_window": 20, "num_hidden_layers": 5, "layer_types": None}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("Qwen2ForCausalLM", {**WINDOW, "max_window_layers": 2}),
        ("Qwen3ForCausalLM", {**WINDOW, "max_window_layers": 2}),
        ("Qwen2MoeForCausalLM", {**WINDOW, "max_window_layers": 3}),
        ("Qwen3MoeForCausalLM", WINDOW),
        ("SmolLM3ForCausalLM", {**WINDOW, "no_rope_layers": [1, 1, 0, 1, 0]}),
        ("SmolLM3ForCausalLM", {**WINDOW, "no_rope_layers": None, "no_rope_layer_interval": 2}),
        ("Cohere2ForCausalLM", {**WINDOW, "sliding_window_pattern": 2}),
        ("Gemma3ForCausalLM", {**WINDOW, "sliding_window_pattern": 2}),
        ("Gemma4ForCausalLM", WINDOW),
        ("Exaone4ForCausalLM", {**WINDOW, "sliding_window_pattern": 3}),
        ("Olmo3ForCausalLM", WINDOW),
        ("Llama4ForCausalLM", {**WINDOW, "no_rope_layers": [], "interleave_moe_layer_step": 2, "moe_layers": None}),
        ("DeepseekV3ForCausalLM", {"num_hidden_layers": 5, "first_k_dense_replace": 2}),
        ("Ernie4_5_MoeForCausalLM", {"num_hidden_layers": 5, "moe_layer_interval": 2, "moe_layer_end_index": -1}),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.5}),
        ("MiniMaxM2ForCausalLM", {"rotary_dim": 8}),
    ],
)
def test_kinds_of_layers_are_those_that_the_class_writes(architecture: str, changes: Values) -> None:
    values = {**tiny_values(architecture), **changes}
    assert spec_of(architecture, values) == read_whole(architecture, twin_config(architecture, values))


def numbers_of(model: torch.nn.Module) -> int:
    """Return the numbers of a model in its files, each once."""
    parameters = sum(each.numel() for each in model.parameters())
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return parameters + sum(each.numel() for name, each in model.state_dict().items() if name not in names)


def compare_sizes(architecture: str, values: Values, config: PreTrainedConfig) -> None:
    with torch.device("meta"):
        count = numbers_of(AutoModelForCausalLM.from_config(config))
    spec = spec_of(architecture, values)
    assert isinstance(spec, DecoderSpec)
    assert sum(map(prod, inventory(spec).shapes.values())) == count


@pytest.mark.parametrize("architecture", [*TWINS][::3])
def test_sizes_alone_give_the_twins_logits(architecture: str, tmp_path: Path) -> None:
    """Sizes and rope are as in the tiny models, all other fields are absent."""
    require_native()
    needed = SIZES | {name for owner, name in NOT_BUILT if owner == architecture}
    values = {name: value for name, value in tiny_values(architecture).items() if name in needed}
    compare_logits(architecture, values, twin_config(architecture, values), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("architecture", TWINS)
def test_every_absent_field_gives_the_twins_logits(architecture: str, tmp_path: Path) -> None:
    require_native()
    for name, values, config in without_a_field(architecture):
        if (architecture, name) in NOT_BUILT:
            continue
        if name not in {*SIZES, "everything"}:
            compare_logits(architecture, values, config, tmp_path / name)
        elif isinstance(spec_of(architecture, values), DecoderSpec):
            compare_sizes(architecture, values, config)
