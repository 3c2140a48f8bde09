"""Quantised safetensors directories hold exactly the numbers of their layouts, and give those numbers' logits."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.quant.bit_words import unpack_raised
from ferrum.quant.ordered_weight import ordered
from ferrum.runtime.load import plan_model
from ferrum.sources.model_source import DirectoryModel
from ferrum.verbs.load_executor import load_executor
from quantized_kit import (
    E8M0,
    Quantized,
    awq,
    awq_by_outputs,
    compressed,
    float4,
    float8,
    gptq,
    int8,
    mlx,
    nf4,
    packed,
    save,
    words,
    write_module,
    write_quantized,
)
from tiny import Case, directory_of

MODEL = Case(
    "llama-quantized",
    "LlamaConfig",
    {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
)
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
TILES = compressed("float-quantized", num_bits=8, type="float", block_structure=[24, 128])
NARROW = compressed("float-quantized", num_bits=8, type="float", block_structure=[24, 40])
ROWS = compressed("float-quantized", num_bits=8, type="float")
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 100, 7]

CASES: dict[str, tuple[Any, str | None]] = {
    "gptq": (gptq(), "q4_0"),
    "gptq-64": (gptq(group=64), "q4_0"),
    "gptq-row": (gptq(group=-1), "q4_128"),
    "gptq-128": (gptq(group=128, shuffled=True), "q4_128"),
    "gptq-zeros": (gptq(zeros=True), "q4_z32"),
    "gptq-v2": (gptq(group=64, zeros=True, version=2), "q4_z64"),
    "gptq-3": (gptq(3, group=128, zeros=True), "q3_z128"),
    "gptq-3-order": (gptq(3, shuffled=True), "q3_z32"),
    "gptq-2": (gptq(2, group=64, zeros=True), "q2_z64"),
    "gptq-2-v2": (gptq(2, group=-1, zeros=True, version=2), "q2_z128"),
    "gptq-8": (gptq(8), "q8_0"),
    "gptq-8-zeros": (gptq(8, zeros=True), "q8_0"),
    "gptq-order": (gptq(shuffled=True), "q4_0"),
    "gptq-16": (gptq(group=16), None),
    "awq": (awq(group=128), "q4_z128"),
    "awq-gemv": (awq_by_outputs(32), "q4_z32"),
    "awq-gemv-128": (awq_by_outputs(128), "q4_z128"),
    "awq-centred": (awq(zeros=False), "q4_0"),
    "mlx": (mlx(), "q4_m64"),
    "mlx-3": (mlx(3, 128, np.float16), "q4_m128"),
    "mlx-32": (mlx(4, 32), "q4_1"),
    "mlx-8": (mlx(8), None),
    "nf4": (nf4(), "nf4"),
    "nf4-nested": (nf4(nested=True), "nf4"),
    "fp4": (nf4(kind="fp4"), None),
    "packed": (packed(), "q4_0"),
    "packed-row": (packed(group=-1), "q4_128"),
    "packed-float16": (packed(dtype=np.float16), "q4_0"),
    "packed-zeros": (packed(zeros=True), "q4_z32"),
    "packed-8": (packed(8), "q8_0"),
    "packed-order": (packed(shuffled=True), "q4_0"),
    "packed-float32": (packed(dtype=np.float32), None),
    "int8": (int8(), "q8_0"),
    "int8-zeros": (int8(zeros=True), "q8_0"),
    "int8-float32": (int8(dtype=np.float32), None),
    "fp8": (float8((128, 128), FP8, "weight_scale_inv"), "fp8"),
    "fp8-powers": (float8((128, 128), FP8, "weight_scale_inv", E8M0), "fp8"),
    "fp8-tiles": (float8((24, 128), TILES), "fp8"),
    "fp8-narrow": (float8((24, 40), NARROW), None),
    "fp8-channel": (float8("channel", ROWS), "fp8"),
    "fp8-tensor": (float8("tensor", ROWS), "fp8"),
    "fp8-modelopt": (float8("tensor", MODELOPT), "fp8"),
    "fp8-auto": (float8("tensor", {"quant_method": "fp8", "activation_scheme": "static"}), "fp8"),  # AutoFP8
    "fp8-fbgemm": (float8("channel", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}), "fp8"),
    "nvfp4": (float4("nvfp4-pack-quantized"), "nvfp4_scaled"),
    "nvfp4-modelopt": (float4("modelopt"), "nvfp4_scaled"),
    "mxfp4": (float4("mxfp4-pack-quantized"), "mxfp4"),
}
"""Packers, and the block formats of their matrices."""

LARGER = ("int8", "int8-zeros", "mlx-3", "mxfp4")
"""Those whose blocks exceed 1.05 times the file's bytes: by more or wider scales, or by wider integers."""


def written(name: str, folder: Path, **extra: np.ndarray) -> Quantized:
    return write_quantized(directory_of(MODEL), folder, CASES[name][0], **extra)


@pytest.mark.parametrize("name", CASES)
def test_matrices_have_the_numbers_of_the_layout(name: str, tmp_path: Path) -> None:
    found = written(name, tmp_path)
    ours, plain = (DirectoryModel(each).checkpoint() for each in (found.directory, found.plain))
    assert ours.config == plain.config
    assert ours.tensors.keys() == plain.tensors.keys()
    for tensor, info in ours.tensors.items():
        assert info.shape == plain.tensors[tensor].shape
        np.testing.assert_array_equal(ours.read(tensor), plain.read(tensor))
        format = ours.block_format(tensor)
        assert format == (CASES[name][1] if tensor in found.matrices else None)
        if format is not None:
            weight = ordered(ours.blocks(tensor), ours.order(tensor))
            assert (weight.format, weight.shape) == (format, info.shape)
            np.testing.assert_array_equal(weight.dequantize(), plain.read(tensor))
            outputs = 8 * info.shape[0] if format == "nvfp4_scaled" else 0  # little next to the rows of larger models
            assert name in LARGER or weight.nbytes <= 1.05 * info.nbytes + outputs


RAGGED = ((int8(), 72), (packed(group=-1), 72), (gptq(group=-1), 328), (gptq(3, zeros=True), 480))


@pytest.mark.parametrize(("packer", "inputs"), RAGGED)
def test_rows_of_a_length_that_blocks_do_not_divide_are_exact(packer: Any, inputs: int, tmp_path: Path) -> None:
    store = DirectoryModel(write_module(tmp_path, packer, (40, inputs))).checkpoint()
    (name,) = store.tensors
    np.testing.assert_array_equal(store.blocks(name).dequantize(), store.read(name))
    assert store.read(name).any()


def test_a_weight_of_fp8_that_is_nan_reaches_its_output_only(tmp_path: Path) -> None:
    def spoil(tensors: dict[str, np.ndarray]) -> None:
        tensors["weight"].view(np.uint8)[7, 130] = 255

    store = DirectoryModel(write_module(tmp_path, float8("channel", ROWS), (40, 256), spoil)).checkpoint()
    (name,) = store.tensors
    y = store.blocks(name).matmul(np.zeros((2, 256), np.float32))
    assert np.isnan(y[:, 7]).all() and not np.delete(y, 7, axis=1).any()


def test_negative_scales_of_nvfp4_are_exact_in_float32(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def turn(tensors: dict[str, np.ndarray]) -> None:
        tensors["weight_scale"][3] *= -1

    packer = float4("nvfp4-pack-quantized")
    for folder, change in (("plain", lambda tensors: None), ("turned", turn)):
        (tmp_path / folder).mkdir()
        write_module(tmp_path / folder, packer, (40, 64), change)
    plain, turned = (DirectoryModel(tmp_path / folder).checkpoint() for folder in ("plain", "turned"))
    (name,) = plain.tensors
    assert plain.block_format(name) == "nvfp4_scaled" and turned.block_format(name) is None
    assert "negative scales" in caplog.text
    np.testing.assert_array_equal(turned.read(name)[3], -plain.read(name)[3])
    np.testing.assert_array_equal(np.delete(turned.read(name), 3, axis=0), np.delete(plain.read(name), 3, axis=0))


def logits(model: Path, **options: Any) -> np.ndarray:
    with load_executor(str(model), kv_capacity=256, **options) as executor:
        return np.asarray(executor.forward(TOKENS))


@pytest.mark.parametrize("name", ["gptq-zeros", "gptq-order", "gptq-3", "mlx", "int8", "fp8", "nvfp4", "mxfp4"])
def test_logits_are_those_of_the_dequantised_model(name: str, tmp_path: Path) -> None:
    """In float32 bit for bit; in a block format, products round inputs."""
    found = written(name, tmp_path)
    whole = logits(found.plain)
    np.testing.assert_array_equal(logits(found.directory, dtype="float32"), whole)
    ours = logits(found.directory)
    if CASES[name][1] is None:
        np.testing.assert_array_equal(ours, whole)
    else:
        assert 0 < np.linalg.norm(ours - whole) < 0.04 * np.linalg.norm(whole)


@pytest.mark.parametrize("name", ["gptq-order", "awq", "int8-float32", "fp8", "nvfp4", "mxfp4"])
def test_a_plan_equals_the_loaded_model(name: str, tmp_path: Path) -> None:
    model = str(written(name, tmp_path).directory)
    plan = plan_model(ModelConfig(model=model, kv_capacity=256))
    with load_executor(model, kv_capacity=256) as executor:
        assert (plan.info, plan.traits) == (executor.info, executor.traits)


def test_bits_of_a_module_are_those_of_the_first_pattern_that_names_it(tmp_path: Path) -> None:
    """`dynamic` of GPTQModel: patterns match from the beginning of a module's name."""
    (four, settings), (eight, _) = gptq(), gptq(8, group=64)
    changes = {"-:lm_head": {}, r"+:.*\.down": {"bits": 8, "group_size": 64}, r".*down_proj": {"bits": 2}}

    def pack(values: np.ndarray, rng: np.random.Generator) -> Any:
        return (eight if values.shape[1] == 384 else four)(values, rng)

    found = write_quantized(directory_of(MODEL), tmp_path, (pack, {**settings, "dynamic": changes}))
    ours, plain = (DirectoryModel(each).checkpoint() for each in (found.directory, found.plain))
    for name in found.matrices:
        assert ours.block_format(name) == ("q8_0" if "down" in name else "q4_0")
        np.testing.assert_array_equal(ours.read(name), plain.read(name))


def test_modules_of_mlx_may_have_settings_of_their_own(tmp_path: Path) -> None:
    """Also embeddings are quantised; the matrices of all experts are one module."""
    rng, parts, numbers = np.random.default_rng(7), {}, {}
    modules = {"model.embed_tokens": (4, 32), "model.layers.0.mlp.switch_mlp.up_proj": (8, 64), "lm_head": (4, 64)}
    for stem, (bits, group) in modules.items():
        tensors, numbers[stem] = mlx(bits, group)[0](np.zeros((64, 128), np.float32), rng)
        parts |= {f"{stem}.{part}": array for part, array in tensors.items()}
    for part in ("weight", "scales", "biases"):
        name = f"model.layers.0.mlp.switch_mlp.up_proj.{part}"
        parts[name] = parts[name].reshape(2, 32, -1)
    save(parts, tmp_path / "model.safetensors")
    own = {stem: {"bits": bits, "group_size": group} for stem, (bits, group) in modules.items() if stem != "lm_head"}
    (tmp_path / "config.json").write_text(json.dumps({"quantization": {**mlx()[1], **own}}))
    checkpoint = DirectoryModel(tmp_path).checkpoint()
    assert not checkpoint.config
    save({**parts, "model.layers.0.conv1d.weight": np.ones((4, 3, 1), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match=r"convolutions.*\(MLX\).*--quantize"):
        DirectoryModel(tmp_path).checkpoint()
    save(parts, tmp_path / "model.safetensors")
    names = ["model.embed_tokens", "model.layers.0.mlp.experts.up_proj", "lm_head"]
    for stem, name, format in zip(modules, names, ("q4_1", None, "q4_m64"), strict=True):
        np.testing.assert_array_equal(checkpoint.read(f"{name}.weight"), numbers[stem])
        assert checkpoint.block_format(f"{name}.weight") == format


def test_zero_points_of_nought_borrow_from_their_neighbours() -> None:
    """GPTQ's first version subtracts one from whole words of zero points."""
    for bits, one in ((2, 0x55555555), (4, 0x11111111), (8, 0x01010101)):
        zeros = np.random.default_rng(4).integers(0, 3, (50, 16))
        stored = (words(zeros, bits).view(np.uint32) - np.uint32(one)).view(np.int32)
        np.testing.assert_array_equal(unpack_raised(stored, bits, 16), zeros)


def test_float32_is_announced_once_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = written("gptq-16", tmp_path)
    store = DirectoryModel(found.directory).checkpoint()
    with caplog.at_level(logging.WARNING):
        assert [store.block_format(name) for name in found.matrices] == [None] * len(found.matrices)
    (record,) = caplog.records
    assert "groups of 16" in record.message and "--quantize" in record.message


SIDE_FILES = {
    "hf_quant_config.json": ("fp8-modelopt", {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}),
    "quantize_config.json": ("gptq-64", {"bits": 4, "group_size": 64, "damp_percent": 0.01, "sym": True}),
    "quant_config.json": ("awq", {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}),
}
"""Files in which Model Optimizer, AutoGPTQ and AutoAWQ leave their settings, with values as published."""


@pytest.mark.parametrize("file", SIDE_FILES)
def test_settings_are_read_from_the_file_in_which_the_quantiser_left_them(file: str, tmp_path: Path) -> None:
    name, values = SIDE_FILES[file]
    found = written(name, tmp_path)
    (found.directory / "config.json").write_text((found.plain / "config.json").read_text())
    (found.directory / file).write_text(json.dumps(values))
    np.testing.assert_array_equal(logits(found.directory, dtype="float32"), logits(found.plain))


def test_the_first_name_of_compressed_tensors_settings_is_read(tmp_path: Path) -> None:
    found = written("packed", tmp_path)
    path = found.directory / "config.json"
    path.write_text(path.read_text().replace("quantization_config", "compression_config"))
    ours, plain = (DirectoryModel(each).checkpoint() for each in (found.directory, found.plain))
    assert (ours.config, ours.tensors.keys()) == (plain.config, plain.tensors.keys())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("version", [1, 2])
def test_symmetric_zero_points_in_the_other_convention_are_noticed(
    version: int, bits: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Writers of GPTQ's second format have named the first, and the other way round."""
    pack, settings = gptq(bits, version=version)
    named = "gptq_v2" if version == 1 else "gptq"
    found = write_quantized(directory_of(MODEL), tmp_path, (pack, {**settings, "checkpoint_format": named}))
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(logits(found.directory, dtype="float32"), logits(found.plain))
    assert [f"not {named}" in record.message for record in caplog.records] == [True]


def test_zero_points_that_contradict_symmetry_are_refused(tmp_path: Path) -> None:
    pack, settings = gptq(zeros=True)
    found = write_quantized(directory_of(MODEL), tmp_path, (pack, {**settings, "sym": True}))
    with pytest.raises(CheckpointError, match=r"qzeros.*must be 8.*sym"):
        plan_model(ModelConfig(model=str(found.directory)))


def test_biases_of_zeros_are_ignored(tmp_path: Path) -> None:
    found = written("gptq", tmp_path, bias=np.zeros(7, np.float16))
    assert not any(name.endswith("bias") for name in DirectoryModel(found.directory).checkpoint().tensors)


def test_scales_of_activations_and_of_the_cache_are_ignored(tmp_path: Path) -> None:
    scale = np.array([0.5], np.float32)
    found = written("fp8-tensor", tmp_path, input_scale=scale, k_scale=scale, kv_scale=scale)
    assert DirectoryModel(found.directory).checkpoint().tensors.keys() == (
        DirectoryModel(found.plain).checkpoint().tensors.keys()
    )


def test_tiles_of_fp8_give_the_numbers_of_transformers() -> None:
    """In bfloat16, the dtype in which transformers loads such a model."""
    rng = np.random.default_rng(2)
    pack, _ = float8((16, 8), FP8, "weight_scale_inv")
    tensors, ours = pack(rng.standard_normal((48, 32)).astype(np.float32), rng)
    stored = torch.from_numpy(tensors["weight"].view(np.uint8)).view(torch.float8_e4m3fn)
    scales = torch.from_numpy(tensors["weight_scale_inv"])
    theirs = Fp8Dequantize(None)._dequantize_one(stored, scales, torch.bfloat16)
    assert torch.equal(torch.from_numpy(ours).to(torch.bfloat16), theirs)


def test_experts_of_gpt_oss_have_the_numbers_of_transformers(tmp_path: Path) -> None:
    """Rows of gate and up alternate in the file; the reference has inputs before outputs."""
    rng, stem = np.random.default_rng(3), "model.layers.0.mlp.experts"
    parts: dict[str, np.ndarray] = {f"{stem}.gate_up_proj_bias": rng.standard_normal((2, 6)).astype(np.float32)}
    theirs = {}
    for name, outputs in (("gate_up_proj", 6), ("down_proj", 5)):
        blocks = rng.integers(0, 256, (2, outputs, 3, 16), np.uint8)
        scales = rng.integers(0, 250, (2, outputs, 3)).astype(np.uint8)
        parts |= {f"{stem}.{name}_blocks": blocks, f"{stem}.{name}_scales": scales}
        whole = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
        theirs[name] = whole.numpy().swapaxes(1, 2)
    gate_up = theirs.pop("gate_up_proj")
    theirs |= {"gate_proj": gate_up[:, ::2], "up_proj": gate_up[:, 1::2]}
    save(parts, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "mxfp4"}}')
    checkpoint = DirectoryModel(tmp_path).checkpoint()
    assert checkpoint.tensors.keys() == {f"{stem}.gate_up_proj_bias", *(f"{stem}.{name}.weight" for name in theirs)}
    for name, numbers in theirs.items():
        full = f"{stem}.{name}.weight"
        assert checkpoint.block_format(full) == "mxfp4"
        np.testing.assert_array_equal(checkpoint.blocks(full).dequantize(), numbers.reshape(-1, 96))
        np.testing.assert_array_equal(checkpoint.read(full), numbers.reshape(-1, 96))
    sizes = [info.nbytes for info in checkpoint.tensors.values()]
    assert sum(sizes) == sum(array.nbytes for array in parts.values())
    for damaged, problem in ((None, "is missing"), (np.zeros((2, 6, 2), np.uint8), "expected shape")):
        name = f"{stem}.gate_up_proj_scales"
        changed = {key: array for key, array in parts.items() if key != name}
        save(changed if damaged is None else changed | {name: damaged}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=rf"gate_up_proj_scales.*{problem}"):
            DirectoryModel(tmp_path).checkpoint()
