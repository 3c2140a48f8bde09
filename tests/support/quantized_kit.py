"""Quantised directories of tiny models, packed here by the published layouts, with the numbers that they hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

from ferrum.sources.tensor_file import file_header

BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8",
}  # fmt: skip
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Tensors = dict[str, np.ndarray]
Packed = tuple[Tensors, np.ndarray]
"""A module's tensors by the last parts of their names, and its matrix f32 [N, K]."""


def save(tensors: Tensors, path: Path) -> None:
    """Write a safetensors file; the library's function for numpy lacks the dtypes of 8 bits."""
    entries = [(name, NAMES[array.dtype.name], array.shape, array.nbytes) for name, array in tensors.items()]
    path.write_bytes(file_header(entries) + b"".join(array.tobytes() for array in tensors.values()))


def words(integers: np.ndarray, bits: int) -> np.ndarray:
    """Pack integers along the last axis into int32, the first in the lowest bits; zeros complete the last word."""
    per_word = 32 // bits
    whole = np.zeros((*integers.shape[:-1], -(-integers.shape[-1] // per_word) * per_word), np.uint64)
    whole[..., : integers.shape[-1]] = integers
    shifts = np.arange(per_word, dtype=np.uint64) * np.uint64(bits)
    packed = (whole.reshape(*whole.shape[:-1], -1, per_word) << shifts).sum(axis=-1, dtype=np.uint64)
    return packed.astype(np.uint32).view(np.int32)


def integers_of(
    values: np.ndarray, group: int, bits: int, rng: np.random.Generator | None, dtype: Any = np.float16
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Quantise a matrix: codes [N, K], zero points and scales [N, G], and the numbers. No generator: symmetric."""
    outputs, inputs = values.shape
    groups = np.arange(inputs) // group
    count = int(groups[-1]) + 1
    top, centre = (1 << bits) - 1, 1 << (bits - 1)
    peaks = np.stack([np.abs(values[:, groups == each]).max(axis=1) for each in range(count)], axis=1)
    scales = (peaks / (centre - 1)).astype(dtype)
    low = 0 if bits == 4 else centre
    zeros = np.full((outputs, count), centre) if rng is None else rng.integers(low, centre + 3, (outputs, count))
    codes = np.clip(np.rint(values / scales.astype(np.float32)[:, groups]) + zeros[:, groups], 0, top).astype(np.int64)
    if bits == 8:  # such codes fit int8 with every zero point
        codes = np.maximum(codes, 3)
        codes = np.minimum(codes, zeros[:, groups] + 127)
    numbers = (codes - zeros[:, groups]).astype(np.float32) * scales.astype(np.float32)[:, groups]
    return codes, zeros, scales, numbers


def gptq(bits: int = 4, group: int = 32, *, zeros: bool = False, version: int = 1, shuffled: bool = False) -> Any:
    """Return a packer of GPTQ; shuffled: groups have scattered inputs (`desc_act`)."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> Packed:
        inputs = values.shape[1]
        order = np.argsort(rng.permutation(inputs) if shuffled else np.arange(inputs))
        own = inputs if group == -1 else group
        codes, points, scales, numbers = integers_of(values[:, order], own, bits, rng if zeros else None)
        back = np.argsort(order)
        stored = words(points.T, bits)
        if version == 1:
            stored = (stored.view(np.uint32) - np.uint32(0x11111111 if bits == 4 else 0x01010101)).view(np.int32)
        tensors = {
            "qweight": np.ascontiguousarray(words(codes[:, back], bits).T),
            "qzeros": stored,
            "scales": np.ascontiguousarray(scales.T),
            "g_idx": (np.arange(inputs) // own)[back].astype(np.int32),
        }
        return tensors, numbers[:, back]

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": shuffled, "sym": not zeros}
    return pack, config | ({} if version == 1 else {"checkpoint_format": "gptq_v2"})


def awq(group: int = 32, *, zeros: bool = True) -> Any:
    def pack(values: np.ndarray, rng: np.random.Generator) -> Packed:
        codes, points, scales, numbers = integers_of(values, group, 4, rng if zeros else None)

        def ordered(matrix: np.ndarray) -> np.ndarray:
            return words(matrix.reshape(len(matrix), -1, 8)[..., AWQ_ORDER].reshape(len(matrix), -1), 4)

        return {"qweight": ordered(codes.T), "qzeros": ordered(points.T), "scales": scales.T}, numbers

    return pack, {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """Return the configuration of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def packed(bits: int = 4, group: int = 32, *, zeros: bool = False, shuffled: bool = False, dtype: Any = BF16) -> Any:
    """Return a packer of "pack-quantized"."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> Packed:
        outputs, inputs = values.shape
        own = inputs if group == -1 else group
        order = np.argsort(rng.permutation(inputs) if shuffled else np.arange(inputs))
        codes, points, scales, numbers = integers_of(values[:, order], own, bits, rng if zeros else None, dtype)
        back = np.argsort(order)
        tensors = {
            "weight_packed": words(codes[:, back], bits),
            "weight_scale": scales,
            "weight_shape": np.array([outputs, inputs]),
        }
        if zeros:
            tensors["weight_zero_point"] = np.ascontiguousarray(words(points.T, bits).T)
        if shuffled:
            tensors["weight_g_idx"] = (np.arange(inputs) // own)[back].astype(np.int32)
        return tensors, numbers[:, back]

    return pack, compressed("pack-quantized", num_bits=bits, group_size=group, symmetric=not zeros)


def int8(*, zeros: bool = False, dtype: Any = BF16) -> Any:
    def pack(values: np.ndarray, rng: np.random.Generator) -> Packed:
        codes, points, scales, numbers = integers_of(values, values.shape[1], 8, rng if zeros else None, dtype)
        tensors = {"weight": (codes - 128).astype(np.int8), "weight_scale": scales}
        return tensors | ({"weight_zero_point": (points - 128).astype(np.int8)} if zeros else {}), numbers

    return pack, compressed("int-quantized", num_bits=8, strategy="channel")


def float8(
    tile: tuple[int, int] | str, config: dict[str, Any], part: str = "weight_scale", dtype: Any = np.float32
) -> Any:
    """Return a packer of FP8 with a scale for each tile, "tensor" or "channel"."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> Packed:
        outputs, inputs = values.shape
        height, width = {"tensor": values.shape, "channel": (1, inputs)}.get(tile, tile)  # type: ignore[call-overload]
        rows, columns = np.arange(outputs) // height, np.arange(inputs) // width
        scales = (0.0004 * (1 + rng.random((rows[-1] + 1, columns[-1] + 1)))).astype(dtype)
        spread = scales.astype(np.float32)[rows][:, columns]
        stored = np.clip(values / spread, -448, 448).astype(E4M3)
        held = scales.reshape(1) if tile == "tensor" else scales
        return {"weight": stored, part: held}, stored.astype(np.float32) * spread

    return pack, config


def float4(form: str) -> Any:
    """Return a packer of "nvfp4-pack-quantized", "modelopt" or "mxfp4-pack-quantized"."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> Packed:
        group = 32 if form.startswith("mxfp4") else 16
        codes = rng.integers(0, 16, values.shape)
        tensors = {"weight_packed": (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)}
        shape = len(values), values.shape[1] // group
        if form.startswith("mxfp4"):
            exponents = rng.integers(118, 123, shape).astype(np.uint8)
            tensors["weight_scale"], scales = exponents, (2.0 ** (exponents.astype(int) - 127)).astype(np.float32)
        else:
            own = (1 + 200 * rng.random(shape)).astype(E4M3)
            tensors["weight_scale"] = own
            if form == "modelopt":
                tensors["weight_scale_2"] = np.array(0.00031, np.float32)
                tensors["weight"] = tensors.pop("weight_packed")
                scales = own.astype(np.float32) * np.float32(0.00031)
            else:
                tensors["weight_global_scale"] = np.array([3210.5], np.float32)
                scales = own.astype(np.float32) / np.float32(3210.5)
        return tensors, FP4[codes] * np.repeat(scales, group, axis=1)

    if form == "modelopt":
        return pack, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    return pack, compressed(form, type="float")


@dataclass(frozen=True)
class Quantized:
    """A quantised directory, the directory of its dequantised model, and that model's matrices."""

    directory: Path
    plain: Path
    matrices: Tensors


def write_quantized(
    source: Path,
    folder: Path,
    packer: tuple[Callable[..., Packed], dict[str, Any]],
    chosen: str = r"_proj\.weight",
    **extra: np.ndarray,
) -> Quantized:
    """Quantise the linear layers of a model's directory into `folder`.

    Args:
        chosen: pattern of the names of those layers.
        extra: other tensors of each quantised module.
    """
    pack, quantization = packer
    rng = np.random.default_rng(5)
    stored: Tensors = {}
    plain: Tensors = {}
    matrices: Tensors = {}
    for name, values in load_file(source / "model.safetensors").items():
        plain[name] = stored[name] = values
        if not re.search(chosen, name):
            continue
        parts, plain[name] = pack(values, rng)
        del stored[name]
        stem = name.removesuffix(".weight")
        stored |= {f"{stem}.{part}": array for part, array in {**parts, **extra}.items()}
        matrices[name] = plain[name]
    config = json.loads((source / "config.json").read_text())
    found = Quantized(folder / "quantized", folder / "plain", matrices)
    for directory, tensors, own in (
        (found.directory, stored, config | {"quantization_config": quantization}),
        (found.plain, plain, config),
    ):
        directory.mkdir()
        save(tensors, directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps(own))
    return found


STEM = "model.layers.0.mlp.up_proj"
Change = Callable[[Tensors], object]


def write_module(
    directory: Path, packer: Any, shape: tuple[int, int], change: Change = lambda tensors: None, **config: Any
) -> Path:
    """Write one quantised module, `STEM`, after a change of its tensors and of its configuration."""
    pack, quantization = packer
    rng = np.random.default_rng(0)
    tensors, _ = pack(rng.standard_normal(shape).astype(np.float32), rng)
    change(tensors)
    save({f"{STEM}.{part}": array for part, array in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"quantization_config": {**quantization, **config}}))
    return directory
