"""Adapters that cannot be applied exactly are refused, by the tensor or the field that says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from adapter_cases import ALL, ATTENTION, BASES, EXPERTS, TIED
from adapter_kit import AdapterCase, adapted_twin, opened, save
from adapter_writers import CONFIG, FILE, PREFIX, Tensors, edit
from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError, FerrumError, Unsupported
from ferrum.sources.adapters.open_adapter import open_adapter
from ferrum.sources.read_model import read_spec
from tiny import directory_of

PLAIN = AdapterCase("plain", BASES["qwen3"], ATTENTION)
DORA = AdapterCase("dora", BASES["qwen3"], {**ATTENTION, "use_dora": True})
EMBEDS = AdapterCase("embeds", BASES["qwen3"], {**ATTENTION, "target_modules": ["embed_tokens"]})
SAVED = AdapterCase("saved", BASES["qwen3"], {**ATTENTION, "modules_to_save": ["embed_tokens"]})
ROWS = AdapterCase("rows", BASES[TIED], {**ATTENTION, "trainable_token_indices": [3, 5]})
SPARSE = AdapterCase("sparse", BASES["qwen3-moe"], EXPERTS)

ALORA = {"alora_invocation_tokens": [1]}
SWITCHED = AdapterCase("switched", BASES["qwen3"], {**ATTENTION, **ALORA, "modules_to_save": ["embed_tokens"]})
SWITCHED_NORM = AdapterCase("switched", BASES["qwen3"], {**ATTENTION, **ALORA, "modules_to_save": ["input_layernorm"]})
SWITCHED_BIAS = AdapterCase("switched", BASES["llama-linear"], {**ATTENTION, **ALORA, "bias": "lora_only"})

NORMS = AdapterCase("norms", BASES["qwen3"], {**ATTENTION, "modules_to_save": ["input_layernorm"]})
DORA_EMBEDS = AdapterCase("dora embeds", BASES["qwen3"], {**EMBEDS.config, "use_dora": True})

NORM = f"{PREFIX}model.layers.0.input_layernorm"
Q = f"{PREFIX}model.layers.0.self_attn.q_proj"
EMBEDDING = f"{PREFIX}model.embed_tokens"
GATE_UP = f"{PREFIX}model.layers.0.mlp.experts.base_layer.lora_A.weight"

FIELDS: dict[str, Any] = {
    "use_qalora": True,
    "use_bdlora": {"nblocks": 2},
    "layer_replication": [[0, 1], [0, 1]],
    "arrow_config": {"top_k": 2},
    "kasa_config": {"beta": 1},
    "velora_config": {"rank": 1},
    "monteclora_config": {"samples": 2},
    "invocation_string": "<|start_of_role|>",
    "a_field_of_the_future": 3,
    "peft_type": "LOHA",
    "init_lora_weights": "pissa_niter_4",
    "r": 0,
    "lora_alpha": "8",
    "rank_pattern": {"q_proj": 513},
    "alpha_pattern": {"(": 1, "(a+)+": 2},
    "alora_invocation_tokens": [],
}


STRANGE = (
    *(
        None,
        True,
        0,
        -1,
        3,
        10**400,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "q_proj",
        "LORA",
        "9" * 50,
        [],
        [[]],
        [None],
    ),
    *([3], [-1, 10**30], ["x"], {}, {"": 3}, {"q_proj": None}, {"q_proj": [3]}, {"(": 1}, {"embed_tokens": [10**30]}),
)
"""Values of fields that no program writes."""


def refusal(case: AdapterCase, path: Any) -> str:
    with pytest.raises((CheckpointError, Unsupported)) as caught:
        opened(path, directory_of(case.model))
    return str(caught.value)


@pytest.mark.parametrize("field", FIELDS)
def test_fields_that_change_the_result_are_refused_by_name(field: str, tmp_path) -> None:
    def change(_: Tensors, config: dict[str, Any]) -> None:
        config[field] = FIELDS[field]

    assert field in refusal(PLAIN, edit(save(adapted_twin(PLAIN), tmp_path), change))


def _set(name: str, values: np.ndarray) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: values.astype(np.float32)})


def _without(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def _with(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: function(tensors[name])})


def _nan(values: np.ndarray) -> np.ndarray:
    return np.where(np.arange(values.size).reshape(values.shape) == 1, np.float32(np.nan), values)


NEW = {
    "unknown module": (PLAIN, f"{PREFIX}model.layers.0.mlp.nothing.lora_A.weight", np.ones((3, 48))),
    "unknown layer": (PLAIN, f"{PREFIX}model.layers.7.self_attn.q_proj.lora_A.weight", np.ones((3, 48))),
    "vision tower": (PLAIN, f"{PREFIX}model.visual.blocks.0.attn.qkv.lora_A.weight", np.ones((3, 48))),
    "unknown part": (PLAIN, f"{Q}.lora_C.weight", np.ones((3, 3))),
    "name of a training state": (PLAIN, f"{Q}.lora_A.default.weight", np.ones((3, 48))),
    "without the prefix": (PLAIN, "model.layers.0.self_attn.q_proj.lora_A.weight", np.ones((3, 48))),
    "width of a norm": (PLAIN, f"{NORM}.weight", np.ones(47)),
    "matrix for a norm": (PLAIN, f"{NORM}.weight", np.ones((48, 1))),
    "bias of a norm that has none": (PLAIN, f"{NORM}.bias", np.ones(48)),
    "pair for a norm": (NORMS, f"{NORM}.lora_B.bias", np.ones(48)),
    "norm of a layer that the model lacks": (PLAIN, f"{NORM.replace('.0.', '.2.')}.weight", np.ones(48)),
    "bias that the model lacks": (PLAIN, f"{Q}.base_layer.bias", np.ones(96)),
    "magnitude without use_dora": (PLAIN, f"{Q}.lora_magnitude_vector", np.ones(96)),
    "magnitude of an embedding": (EMBEDS, f"{EMBEDDING}.lora_magnitude_vector", np.ones(48)),
    "linear pair of an embedding": (SAVED, f"{EMBEDDING}.lora_A.weight", np.ones((3, 48))),
    "copy of a linear base": (PLAIN, f"{Q}.base_layer.weight", np.ones((96, 48))),
    "weight under a product": (PLAIN, f"{Q}.weight", np.ones((96, 48))),
    "bias of experts": (SPARSE, GATE_UP.replace("lora_A.weight", "lora_B.bias"), np.ones(64)),
}

CHANGED = {
    "missing half": (PLAIN, f"{Q}.lora_B.weight", _without(f"{Q}.lora_A.weight")),
    "other missing half": (PLAIN, f"{Q}.lora_A.weight", _without(f"{Q}.lora_B.weight")),
    "missing magnitude": (DORA, f"{Q}.lora_A.weight", _without(f"{Q}.lora_magnitude_vector")),
    "missing magnitude of an embedding": (
        DORA_EMBEDS,
        f"{EMBEDDING}.lora_embedding_A",
        _without(f"{EMBEDDING}.lora_magnitude_vector"),
    ),
    "magnitude of an embedding's rows": (
        DORA_EMBEDS,
        f"{EMBEDDING}.lora_magnitude_vector",
        _with(f"{EMBEDDING}.lora_magnitude_vector", lambda m: np.resize(m, 131)),
    ),
    "NaN of a norm": (NORMS, f"{NORM}.weight", _with(f"{NORM}.weight", _nan)),
    "missing half of an embedding": (
        EMBEDS,
        f"{EMBEDDING}.lora_embedding_B",
        _without(f"{EMBEDDING}.lora_embedding_A"),
    ),
    "missing half of experts": (SPARSE, GATE_UP.replace("_A", "_B"), _without(GATE_UP)),
    "wide A": (PLAIN, f"{Q}.lora_A.weight", _with(f"{Q}.lora_A.weight", lambda a: np.hstack((a, a)))),
    "transposed B": (PLAIN, f"{Q}.lora_B.weight", _with(f"{Q}.lora_B.weight", np.transpose)),
    "another rank": (PLAIN, f"{Q}.lora_A.weight", _with(f"{Q}.lora_A.weight", lambda a: a[:2])),
    "NaN": (PLAIN, f"{Q}.lora_B.weight", _with(f"{Q}.lora_B.weight", _nan)),
    "infinity": (PLAIN, f"{Q}.lora_B.weight", _with(f"{Q}.lora_B.weight", lambda b: b / np.float32(0))),
    "NaN of experts": (SPARSE, GATE_UP, _with(GATE_UP, _nan)),
    "another number of experts": (SPARSE, GATE_UP, _with(GATE_UP, lambda a: a[3:])),
    "another base": (
        EMBEDS,
        f"{EMBEDDING}.base_layer.weight",
        _with(f"{EMBEDDING}.base_layer.weight", lambda e: e + np.float32(0.01)),
    ),
    "resized base": (
        EMBEDS,
        f"{EMBEDDING}.base_layer.weight",
        _with(f"{EMBEDDING}.base_layer.weight", lambda e: np.vstack((e, e[:2]))),
    ),
    "resized vocabulary": (SAVED, f"{EMBEDDING}.weight", _with(f"{EMBEDDING}.weight", lambda e: e[:-1])),
    "too many rows": (
        ROWS,
        f"{EMBEDDING}.token_adapter.trainable_tokens_delta",
        _with(f"{EMBEDDING}.token_adapter.trainable_tokens_delta", lambda rows: np.vstack((rows, rows))),
    ),
    "integers": (PLAIN, f"{Q}.lora_B.weight", _with(f"{Q}.lora_B.weight", lambda b: b.astype(np.int32))),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("case", "name", "change"),
    [(case, name, _set(name, values)) for case, name, values in NEW.values()] + list(CHANGED.values()),
    ids=[*NEW, *CHANGED],
)
def test_tensors_that_cannot_be_applied_are_refused_by_name(
    case: AdapterCase, name: str, change: Callable[[Tensors], object], tmp_path
) -> None:
    edit(save(adapted_twin(case), tmp_path), lambda tensors, _: change(tensors))
    assert name in refusal(case, tmp_path)


def test_invocations_of_another_vocabulary_are_refused(tmp_path) -> None:
    edit(save(adapted_twin(PLAIN), tmp_path), lambda _, config: config.update(alora_invocation_tokens=[131]))
    assert "invocation token 131" in refusal(PLAIN, tmp_path)


def test_damaged_files_raise_no_other_errors(tmp_path) -> None:
    """Any byte may be damaged, and any field may have any JSON value."""
    save(adapted_twin(ROWS), tmp_path)
    model = read_spec(ModelConfig(model=str(directory_of(ROWS.model))))
    config, tensors = (tmp_path / CONFIG).read_bytes(), (tmp_path / FILE).read_bytes()
    header, random = 8 + int.from_bytes(tensors[:8], "little"), np.random.default_rng(1)
    fields = json.loads(config)
    for _ in range(300):
        kind, damaged = random.integers(3), fields
        if kind == 0:
            field, value = random.choice(list(fields)), STRANGE[random.integers(len(STRANGE))]
            damaged = {**fields, field: value}
        (tmp_path / CONFIG).write_text(json.dumps(damaged))
        changed = bytearray(tensors)
        if kind == 1:
            changed[random.integers(header)] = random.integers(256)
        (tmp_path / FILE).write_bytes(changed[: random.integers(len(changed))] if kind == 2 else changed)
        with suppress(FerrumError):
            open_adapter(str(tmp_path), model)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(.*.*)+", ".*a.*b.*c.*d"])
def test_patterns_that_take_long_are_refused(pattern: str, tmp_path) -> None:
    edit(save(adapted_twin(PLAIN), tmp_path), lambda _, config: config.update(rank_pattern={pattern: 3}))
    assert "rank_pattern" in refusal(PLAIN, tmp_path)


@pytest.mark.parametrize(
    ("case", "name"),
    [(SWITCHED, f"{EMBEDDING}.weight"), (SWITCHED_NORM, f"{NORM}.weight"), (SWITCHED_BIAS, f"{Q}.base_layer.bias")],
)
def test_aloras_with_parts_that_are_always_on_are_refused(case: AdapterCase, name: str, tmp_path) -> None:
    assert name in refusal(case, save(adapted_twin(case), tmp_path))


def test_rows_without_a_tensor_are_refused(tmp_path) -> None:
    name = f"{EMBEDDING}.token_adapter.trainable_tokens_delta"
    edit(save(adapted_twin(ROWS), tmp_path), lambda tensors, _: tensors.pop(name))
    assert "trainable_token_indices" in refusal(ROWS, tmp_path)


@pytest.mark.parametrize("rows", [[3, 3], [3, -1], [3, 9999], {"lm_head": [1, 2]}, 7])
def test_rows_must_be_tokens(rows: object, tmp_path) -> None:
    def change(_: Tensors, config: dict[str, Any]) -> None:
        config["trainable_token_indices"] = rows

    assert "trainable_token_indices" in refusal(ROWS, edit(save(adapted_twin(ROWS), tmp_path), change))


def test_pickles_and_empty_files_are_refused(tmp_path) -> None:
    save(adapted_twin(PLAIN), tmp_path)
    edit(tmp_path, lambda tensors, _: tensors.clear())
    assert "has no tensors" in refusal(PLAIN, tmp_path)
    (tmp_path / FILE).rename(tmp_path / "adapter_model.bin")
    assert "adapter_model.bin" in refusal(PLAIN, tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"peft_type": "LORA", "r": '])
def test_damaged_configurations_are_refused(content: str, tmp_path) -> None:
    save(adapted_twin(PLAIN), tmp_path)
    (tmp_path / CONFIG).write_text(content)
    assert CONFIG in refusal(PLAIN, tmp_path)


@pytest.mark.parametrize("model", ["qwen3-bias", "llama2", "phi3"])
def test_adapters_of_other_models_are_refused(model: str, tmp_path) -> None:
    case = AdapterCase("all", BASES["qwen3"], ALL)
    assert "tensor 'base_model.model.model.layers" in refusal(
        AdapterCase("other", BASES[model], {}), save(adapted_twin(case), tmp_path)
    )
