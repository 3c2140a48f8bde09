"""Directories of hybrid models as their makers publish them: wrapped, with fused experts, towers and further heads."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from family_twin import MODELS, logits_of
from ferrum.core.errors import CheckpointError
from ferrum.core.logging import info_once
from ferrum.runtime.packing import pack_directory
from ferrum.sources.checkpoint import Checkpoint
from ferrum.sources.model_source import DirectoryModel
from ferrum.verbs.load_executor import load_executor
from quantized_kit import awq, float8, gptq, packed, write_quantized
from tiny import directory_of, tokens_of

Tensors = dict[str, np.ndarray]
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
PARTS = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": 2, "w2": 2}
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
QUANTISERS = {"gptq": gptq(), "awq": awq(), "pack": packed(), "fp8": float8((32, 32), FP8, "weight_scale_inv")}
LEFT_OUT = {
    "nothing": r"(_proj|in_proj_\w+|\.w\d)\.weight",
    "small": r"(_proj|in_proj_(qkvz?|z)|\.w\d)\.weight",  # as published files in FP8
    "recurrent": r"(self_attn|mlp|feed_forward)\..*(_proj|\.w\d)\.weight",  # as published files of GPTQ
}
WHOLE = {"qwen3.5": "Qwen3_5ForConditionalGeneration", "qwen3.5-moe-tied": "Qwen3_5MoeForConditionalGeneration"}


def fused(tensors: Tensors) -> Tensors:
    """Return the tensors with those of all experts in two."""
    plain: Tensors = {}
    stacks: dict[str, dict[tuple[int, int], np.ndarray]] = {}
    for name, values in tensors.items():
        found = EXPERT.fullmatch(name)
        if found is None:
            plain[name] = values
        else:
            stacks.setdefault(found[1], {})[int(found[2]), PARTS[found[3]]] = values
    for name, each in stacks.items():
        gate, up, down = (np.stack([each[i, part] for i in range(len(each) // 3)]) for part in range(3))
        plain |= {f"{name}.gate_up_proj": np.concatenate((gate, up), axis=1), f"{name}.down_proj": down}
    return plain


def written(name: str, folder: Path, tensors: Tensors, **config: Any) -> Path:
    """Write a directory with the configuration of a tiny model, or its wrapped one, and these tensors."""
    values = json.loads((directory_of(MODELS[name]) / "config.json").read_text())
    if name in WHOLE:
        outside = {key: values.pop(key) for key in ("architectures", "tie_word_embeddings")} | config
        values = {**outside, "architectures": [WHOLE[name]], "text_config": values}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    save_file({each: np.ascontiguousarray(array) for each, array in tensors.items()}, folder / "model.safetensors")
    return folder


def tensors_of(name: str) -> Tensors:
    return load_file(directory_of(MODELS[name]) / "model.safetensors")


def logits(directory: Path, name: str, **options: Any) -> np.ndarray:
    with load_executor(directory, kernels="reference", kv_capacity=64, **options) as executor:
        return logits_of(executor, tokens_of(MODELS[name], 12))


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-next", "qwen3.5-moe", "lfm2-moe", "deepseek-v3"])
def test_fused_experts_have_the_bits_of_single_ones(name: str, tmp_path: Path) -> None:
    """`transformers` saves a tensor for each expert; published files of Qwen3.5 have two for all."""
    tensors = fused(tensors_of(name))
    assert not any(EXPERT.fullmatch(each) for each in tensors)
    directory = written(name, tmp_path / "fused", tensors)
    np.testing.assert_array_equal(logits(directory, name), logits(directory_of(MODELS[name]), name))


@pytest.mark.parametrize("name", WHOLE)
def test_a_wrapped_directory_has_the_bits_of_its_text_model(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Vision parts are skipped, and the log names the heads for further tokens."""
    own = fused(tensors_of(name))
    tensors = {each.replace("model.", "model.language_model.", 1): values for each, values in own.items()}
    blank = np.ones((3, 5), np.float32)
    tensors |= {"model.visual.patch_embed.proj.weight": blank, "mtp.fc.weight": blank, "mtp.layers.0.mlp.x": blank}
    directory = written(name, tmp_path / "whole", tensors, model_type="qwen3_5", mtp_num_hidden_layers=1)
    info_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="ferrum"):
        found = logits(directory, name)
    assert any("2 tensors mtp.* are left out" in message for message in caplog.messages)
    np.testing.assert_array_equal(found, logits(directory_of(MODELS[name]), name))


@pytest.mark.parametrize(("name", "conv"), [("qwen3.5", "linear_attn.conv1d"), ("lfm2", "conv.conv")])
@pytest.mark.parametrize("wrong", ["wider", "turned"])
def test_a_convolution_of_another_width_is_refused_by_tensor(name: str, conv: str, wrong: str, tmp_path: Path) -> None:
    full, tensors = f"model.layers.0.{conv}.weight", tensors_of(name)
    values = tensors[full]
    tensors[full] = np.concatenate((values, values), axis=2) if wrong == "wider" else values.transpose(2, 1, 0)
    with pytest.raises(CheckpointError, match=rf"tensor '{full}' in .*: expected shape \[\d+, {values.shape[2]}\]"):
        logits(written(name, tmp_path / "wrong", tensors), name)


@pytest.mark.parametrize("scheme", ["q8_0", "q4_k_m", "q4_0"])
@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next", "lfm2-moe"])
def test_convolutions_and_decays_stay_float32_in_every_scheme(name: str, scheme: str, tmp_path: Path) -> None:
    pack_directory(DirectoryModel(directory_of(MODELS[name])), tmp_path / "packed", scheme)
    plain, packed = Checkpoint(directory_of(MODELS[name])), Checkpoint(tmp_path / "packed")
    kept = {"A_log", "dt_bias", "conv1d.taps", "conv.taps", "norm.weight"}
    held = {each: info.dtype for each, info in packed.tensors.items() if any(each.endswith(end) for end in kept)}
    assert set(held.values()) == {"F32"}
    assert {each.rpartition(".")[2] for each in held} >= {"taps", "weight"}
    for each in held:
        if each in plain.tensors:
            np.testing.assert_array_equal(packed.read(each), plain.read(each))


@pytest.mark.parametrize(
    ("name", "format", "left_out"),
    [
        ("qwen3.5", "pack", "nothing"),
        ("qwen3.5", "fp8", "small"),
        ("qwen3.5", "gptq", "recurrent"),
        ("qwen3-next", "fp8", "nothing"),
        ("qwen3-next", "awq", "small"),
        ("lfm2", "gptq", "nothing"),
        ("lfm2", "awq", "nothing"),
        ("lfm2", "pack", "recurrent"),
    ],
)
def test_quantised_projections_have_the_numbers_of_their_twins(
    name: str, format: str, left_out: str, tmp_path: Path
) -> None:
    """Projections of recurrent layers are quantised, or some or all are left out."""
    found = write_quantized(directory_of(MODELS[name]), tmp_path, QUANTISERS[format], LEFT_OUT[left_out])
    assert any(".linear_attn.in" in each or ".conv.in" in each for each in found.matrices) == (left_out != "recurrent")
    np.testing.assert_array_equal(logits(found.directory, name, dtype="float32"), logits(found.plain, name))
    assert np.isfinite(logits(found.directory, name)).all()
