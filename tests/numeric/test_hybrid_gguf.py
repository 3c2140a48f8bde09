"""GGUF files of hybrid models in the layout of llama.cpp's converter, against their twins in `transformers`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter
from safetensors.numpy import load_file

from family_twin import MODELS, TOLERANCE, logits_of
from ferrum.core.errors import CheckpointError, FerrumError
from ferrum.core.logging import info_once
from ferrum.runtime.load import load_executor
from gguf_converter import converted
from tiny import directory_of, model_of, reference_logits, tokens_of

KINDS = {
    "qwen3-next": "qwen3next",
    "qwen3.5": "qwen35",
    "qwen3.5-tied": "qwen35",
    "qwen3.5-moe": "qwen35moe",
    "qwen3.5-moe-tied": "qwen35moe",
    "lfm2": "lfm2",
    "lfm2-moe": "lfm2moe",
}
"""Tiny models, and GGUF's names of their architectures."""

SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.key_length": "head_dim",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "num_dense_layers",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "shortconv.l_cache": "conv_L_cache",
}
TYPES = {float: GGUFValueType.FLOAT32, int: GGUFValueType.UINT32, list: GGUFValueType.ARRAY, bool: GGUFValueType.BOOL}
Tensors = dict[str, np.ndarray]
LENGTH = 24


@cache
def tensors_of(name: str) -> Tensors:
    """Return the tensors of a tiny model as the converter writes them."""
    kind, directory = KINDS[name], directory_of(MODELS[name])
    config = model_of(MODELS[name]).config.to_dict()
    tensors = load_file(directory / "model.safetensors")
    if kind == "qwen3next":
        tensors = apart(tensors, config)
    return converted(kind, config, tensors)


def apart(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """Return the tensors with q, k and v in one and z in another one, as newer files of Qwen3-Next have them."""
    heads, keys = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    found: Tensors = {}
    for name, array in tensors.items():
        if not name.endswith("in_proj_qkvz.weight"):
            found[name] = array
            continue
        parts = np.split(array.reshape(heads, -1, array.shape[1]), np.cumsum((keys, keys, values)), axis=1)
        q, k, v, z = (part.reshape(-1, array.shape[1]) for part in parts)
        found[name.replace("qkvz", "qkv")], found[name.replace("qkvz", "z")] = np.concatenate((q, k, v)), z
    return found


def metadata_of(name: str) -> dict[str, Any]:
    config = model_of(MODELS[name]).config.to_dict()
    found = {ours: config[theirs] for ours, theirs in SIZES.items() if config.get(theirs) is not None}
    rope = config.get("rope_parameters") or {}
    found["rope.freq_base"] = float(rope.get("rope_theta", 10000.0))
    found["attention.layer_norm_rms_epsilon"] = config.get("rms_norm_eps") or config["norm_eps"]
    kinds, heads = config["layer_types"], config["num_key_value_heads"]
    if KINDS[name].startswith("lfm2"):
        (width,) = {len(array) for each, array in tensors_of(name).items() if each.endswith("ffn_up.weight")} or {96}
        found["feed_forward_length"] = width
        found["attention.head_count_kv"] = [0 if kind == "conv" else heads for kind in kinds]
        return found
    found["feed_forward_length"] = config.get("intermediate_size") or 96
    found["ssm.inner_size"] = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    found["attention.head_count_kv"] = heads
    found["attention.recurrent_layers"] = [kind == "linear_attention" for kind in kinds]
    found["rope.dimension_count"] = int(found["attention.key_length"] * rope["partial_rotary_factor"])
    if KINDS[name] != "qwen3next":
        found["rope.dimension_sections"] = [11, 11, 10, 0]
    return found


def written(path: Path, name: str, change: Callable[[Tensors], object] = lambda tensors: None, **metadata: Any) -> Path:
    """Write a file with changed tensors and metadata."""
    tensors = dict(tensors_of(name))
    change(tensors)
    writer = GGUFWriter(path, KINDS[name])
    for key, value in {
        **metadata_of(name),
        **{key.replace("__", "."): value for key, value in metadata.items()},
    }.items():
        writer.add_key_value(f"{KINDS[name]}.{key}", value, TYPES[type(value)])
    for full, array in tensors.items():
        writer.add_tensor(full, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(path: Path, name: str) -> np.ndarray:
    with load_executor(path, kernels="reference", kv_capacity=64) as executor:
        return logits_of(executor, tokens_of(MODELS[name], LENGTH))


def theirs(name: str) -> np.ndarray:
    return reference_logits(MODELS[name], tokens_of(MODELS[name], LENGTH))


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_the_twin(name: str, tmp_path: Path) -> None:
    """The converter tiles value heads of Qwen3.5 only, and adds 1 to the weights of norms."""
    found, expected = logits(written(tmp_path / "m.gguf", name), name), theirs(name)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_older_files_of_qwen3_next_have_the_same_bits(tmp_path: Path) -> None:
    """They hold all projections of a layer in one tensor, key head after key head."""
    name, plain = "qwen3-next", load_file(directory_of(MODELS["qwen3-next"]) / "model.safetensors")

    def older(tensors: Tensors) -> None:
        for layer in range(3):
            tensors[f"blk.{layer}.ssm_in.weight"] = plain[f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight"]
            del tensors[f"blk.{layer}.attn_qkv.weight"], tensors[f"blk.{layer}.attn_gate.weight"]

    new, old = written(tmp_path / "new.gguf", name), written(tmp_path / "old.gguf", name, older)
    np.testing.assert_array_equal(logits(old, name), logits(new, name))


@pytest.mark.parametrize("name", ["qwen3-next", "qwen3.5", "qwen3.5-moe"])
def test_norms_have_1_added_once_whether_the_file_has_it_or_not(name: str, tmp_path: Path) -> None:
    """Their mean decides: trained weights without the 1 are near 0."""

    def shift(by: float) -> Callable[[Tensors], None]:
        def change(tensors: Tensors) -> None:
            for each in [each for each in tensors if "norm" in each and "ssm" not in each]:
                tensors[each] = tensors[each] - np.float32(by)

        return change

    added, bare = (written(tmp_path / f"{by}.gguf", name, shift(by)) for by in (1.0, 2.0))
    expected = logits(added, name)
    assert np.abs(logits(bare, name) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_layers_for_further_tokens_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def add(tensors: Tensors) -> None:
        tensors["blk.4.nextn.eh_proj.weight"] = np.ones((64, 128), np.float32)
        tensors["blk.4.attn_q.weight"] = np.ones((64, 64), np.float32)

    more = {"nextn_predict_layers": 1, "block_count": 5}
    kinds = [*metadata_of("qwen3.5")["attention.recurrent_layers"], False]
    path = written(tmp_path / "m.gguf", "qwen3.5", add, attention__recurrent_layers=kinds, **more)
    info_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="ferrum"):
        found = logits(path, "qwen3.5")
    assert any("2 tensors blk.4.* are left out" in message for message in caplog.messages)
    np.testing.assert_array_equal(found, logits(written(tmp_path / "plain.gguf", "qwen3.5"), "qwen3.5"))


def replaced(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


@pytest.mark.parametrize(
    ("name", "tensor", "change"),
    [
        ("qwen3.5", "blk.0.ssm_a", np.negative),
        ("qwen3-next", "blk.1.ssm_a", lambda values: values * np.array([1, 1, np.nan, 1], np.float32)),
        ("qwen3.5", "blk.0.ssm_conv1d.weight", lambda values: values[:, :3]),
        ("qwen3-next", "blk.2.ssm_conv1d.weight", lambda values: values.T),
        ("lfm2", "blk.0.shortconv.conv.weight", lambda values: np.concatenate((values, values), axis=1)),
    ],
)
def test_wrong_decays_and_convolutions_are_refused_by_tensor(
    name: str, tensor: str, change: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        logits(written(tmp_path / "m.gguf", name, replaced(tensor, change)), name)
    assert tensor in str(caught.value)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("qwen3.5", "ssm.inner_size", 127),
        ("qwen3.5", "ssm.v_head_reordered", False),
        ("qwen3.5", "attention.recurrent_layers", [True, False]),
        ("lfm2", "attention.head_count_kv", [0, 2, 1]),
        ("qwen3.5-moe", "norm_top_k_prob", False),
        ("lfm2", "attention.head_count_kv", [0, 2]),
    ],
)
def test_metadata_that_fit_no_model_are_refused_by_key(name: str, key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(FerrumError) as caught:
        logits(written(tmp_path / "m.gguf", name, **{key.replace(".", "__"): value}), name)
    assert key in str(caught.value)
