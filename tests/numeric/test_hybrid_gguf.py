"""GGUF files of hybrid models in the layout of llama.cpp's converter, against their twins in `transformers`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from family_twin import MODELS, TOLERANCE, logits_of
from ferrum.core.errors import CheckpointError, FerrumError
from ferrum.core.logging import info_once
from ferrum.verbs.load_executor import load_executor
from hybrid_gguf import KINDS, Tensors, metadata_of, written
from tiny import directory_of, reference_logits, tokens_of

LENGTH = 24


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
