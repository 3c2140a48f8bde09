"""Damaged quantised directories, and variants that are not read, are refused by the name of what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.sources.model_source import DirectoryModel
from quantized_kit import (
    STEM,
    Change,
    Tensors,
    awq,
    compressed,
    float4,
    float8,
    gptq,
    int8,
    mlx,
    nf4,
    packed,
    write_module,
)

ROWS = compressed("float-quantized", num_bits=8, type="float")
TILES = {"quant_method": "fp8", "weight_block_size": [16, 16]}
KINDS: dict[str, Any] = {
    "gptq": gptq(),
    "awq": awq(),
    "packed": packed(zeros=True),
    "order": packed(shuffled=True),
    "int8": int8(),
    "fp8": float8((16, 16), TILES, "weight_scale_inv"),
    "channel": float8("channel", ROWS),
    "nvfp4": float4("nvfp4-pack-quantized"),
    "mxfp4": float4("mxfp4-pack-quantized"),
    "mlx": mlx(),
    "nf4": nf4(nested=True),
}

STATE = "weight.quant_state.bitsandbytes__nf4"
WRONG = {"weight_shape": np.float32}


def write(kind: str, directory: Path, change: Change = lambda tensors: None, **config: Any) -> Path:
    return write_module(directory, KINDS[kind], (48, 64), change, **config)


def opened(directory: Path) -> None:
    store = DirectoryModel(directory).checkpoint()
    for name in store.tensors:
        store.block_format(name)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("gptq", "qzeros"),
        ("gptq", "scales"),
        ("awq", "qzeros"),
        ("packed", "weight_shape"),
        ("packed", "weight_scale"),
        ("int8", "weight_scale"),
        ("fp8", "weight_scale_inv"),
        ("nvfp4", "weight_scale"),
        ("nvfp4", "weight_global_scale"),
        ("mxfp4", "weight_scale"),
        ("mlx", "biases"),
        ("nf4", "weight.nested_absmax"),
    ],
)
def test_missing_tensor_is_named(kind: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"'{STEM}\.{part}' is missing"):
        opened(write(kind, tmp_path, lambda tensors: tensors.pop(part)))


@pytest.mark.parametrize("kind", KINDS)
def test_tensor_of_another_shape_or_dtype_is_named(kind: str, tmp_path: Path) -> None:
    tensors: Tensors = {}
    write(kind, tmp_path, tensors.update)
    for part, array in tensors.items():
        if part in ("qweight", "weight_packed", "weight"):  # they say what the shapes of the others must be
            continue
        for wrong in (np.stack((array, array)), array.astype(np.float64).astype(WRONG.get(part, np.int64))):
            with pytest.raises(CheckpointError, match=rf"{STEM}\.{part}'"):
                opened(write(kind, tmp_path, lambda found, part=part, wrong=wrong: found.update({part: wrong})))


@pytest.mark.parametrize(
    ("kind", "part", "value", "message"),
    [
        ("gptq", "g_idx", np.full(64, 2, np.int32), "names group 2 of 2"),
        ("gptq", "g_idx", np.arange(64, dtype=np.int32) - 32, "negative"),
        ("order", "weight_g_idx", np.full(64, 9, np.int32), "names group 9 of 2"),
        ("packed", "weight_shape", np.array([48, 32]), r"\[48, 32\] is not that of"),
        ("packed", "weight_shape", np.array([48, -64]), "is not that of"),
        ("packed", "weight_scale", np.ones((48, 3), np.float16), "do not divide"),
        ("int8", "weight_scale", np.ones((48, 5), np.float16), "do not divide"),
        ("channel", "weight_scale", np.ones((48, 7), np.float32), "do not divide"),
        ("fp8", "weight_scale_inv", np.ones((4, 4), np.float32), r"expected shape \[3, 4\], found \[4, 4\]"),
        ("gptq", "weight", np.ones((48, 64), np.float32), "is there as floats"),
        ("nf4", STATE, np.frombuffer(b"[4]", np.uint8), "is no state of a matrix"),
        ("mlx", "weight", np.ones((48, 7), np.uint32), "cannot be cut into groups of 64"),
    ],
)
def test_contradiction_is_named(kind: str, part: str, value: np.ndarray, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        opened(write(kind, tmp_path, lambda tensors: tensors.update({part: value})))
    assert STEM in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("gptq", {"group_size": 48}, "qweight.*64 inputs cannot be cut into groups of 48"),
        ("gptq", {"group_size": 0}, "group_size must be a positive integer or -1"),
        ("gptq", {"group_size": "all"}, "group_size"),
        ("gptq", {"dynamic": ["x"]}, "dynamic must be an object"),
        ("gptq", {"dynamic": {"+:(": {}}}, "is no pattern"),
        ("gptq", {"dynamic": {"(a+)+$": {}}}, "repeats a repetition"),
        ("gptq", {"dynamic": {"x": 4}}, "must have an object"),
        ("gptq", {"bits": 3}, r"no whole number of integers of 3 bits"),
        ("awq", {"group_size": 20}, "qweight.*64 inputs cannot be cut into groups of 20"),
        ("awq", {"group_size": 16}, r"qzeros.*expected shape \[4, 6\], found \[2, 6\]"),
        ("packed", {"config_groups": [1]}, "config_groups must be an object"),
        ("packed", {"config_groups": {"group_0": {"weights": 4}}}, "weights must be an object"),
        ("fp8", {"weight_block_size": [16]}, "weight_block_size must be two positive integers"),
    ],
)
def test_settings_are_checked(kind: str, config: dict[str, Any], message: str, tmp_path: Path) -> None:
    opened(write(kind, tmp_path))
    with pytest.raises(CheckpointError, match=message):
        opened(write(kind, tmp_path, **config))


def group(**weights: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("kind", "config", "feature"),
    [
        ("gptq", {"bits": 5}, r"5 bits \(gptq\)"),
        ("gptq", {"checkpoint_format": "marlin"}, "format marlin"),
        ("gptq", {"dynamic": {"+:.*down.*": {"bits": 6}}}, "6 bits"),
        ("awq", {"version": "gemv_fast"}, "version gemv_fast"),
        ("awq", {"bits": 3}, "3 bits"),
        ("mlx", {"mode": "mxfp4"}, "mode mxfp4"),
        ("nf4", {"load_in_8bit": True, "load_in_4bit": False}, r"8 bits \(bitsandbytes\)"),
        ("nf4", {"bnb_4bit_quant_storage": "bfloat16"}, "storage in bfloat16"),
        ("packed", {"format": "marlin-24"}, "format marlin-24"),
        ("packed", group(num_bits=2), "2 bits"),
        ("packed", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse weights"),
        ("packed", {"transform_config": {"config_groups": {"R1": {}}}}, "transforms of activations"),
        ("channel", {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo W4A8_AWQ"),
    ],
)
def test_variants_are_refused_by_name(kind: str, config: dict[str, Any], feature: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=rf"{feature}.*--quantize, or a GGUF"):
        opened(write(kind, tmp_path, **config))


def test_modules_kept_in_floats_may_be_named(tmp_path: Path) -> None:
    opened(write("gptq", tmp_path, dynamic={"-:.*lm_head.*": {}}))
