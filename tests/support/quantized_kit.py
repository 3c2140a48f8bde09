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
    "int64": "I64", "int32": "I32", "uint32": "U32", "int8": "I8", "uint8": "U8",
}  # fmt: skip
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NF4 = np.array(
    (
        *(0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0, 0xBE91A24D, 0xBE3D353F, 0xBDBA7871, 0),
        *(0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A, 0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3, 0x3F800000),
    ),
    np.uint32,
).view(np.float32)  # `quant_map` of bitsandbytes 0.50
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
    each = (integers[..., None] >> np.arange(bits) & 1).reshape(*integers.shape[:-1], -1)
    whole = np.pad(each, [(0, 0)] * (each.ndim - 1) + [(0, -each.shape[-1] % 32)])
    return np.ascontiguousarray(np.packbits(whole, axis=-1, bitorder="little")).view(np.int32)


def integers_of(
    values: np.ndarray, group: int, bits: int, rng: np.random.Generator | None, dtype: Any = np.float16
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Quantise a matrix: codes [N, K], zero points and scales [N, G], and the numbers. No generator: symmetric."""
    outputs, inputs = values.shape
    groups = np.arange(inputs) // group
    count = int(groups[-1]) + 1
    top, centre = (1 << bits) - 1, 1 << (bits - 1)
    peaks = np.stack([np.abs(values[:, groups == each]).max(axis=1) for each in range(count)], axis=1)
    scales = (peaks / max(1, centre - 1)).astype(dtype)
    low, high = {8: (centre, centre + 3)}.get(bits, (0, top + 1))
    zeros = np.full((outputs, count), centre) if rng is None else rng.integers(low, high, (outputs, count))
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
        stored = words(points.T - 1 & 7 if (bits, version) == (3, 1) else points.T, bits)
        if version == 1 and bits != 3:  # GPTQModel subtracts from whole words, but from integers of 3 bits one by one
            ones = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}[bits]
            stored = (stored.view(np.uint32) - np.uint32(ones)).view(np.int32)
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


def awq_by_outputs(group: int) -> Any:
    """Return a packer of AWQ's version "gemv", which pads zero points and scales (`calculate_zeros_width`)."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> Packed:
        codes, points, scales, numbers = integers_of(values, group, 4, rng)
        multiple = max(1, 128 // group)
        width = -(-max(1, -(-(values.shape[1] // group) // 8)) // multiple) * multiple
        pad = ((0, 0), (0, width * 8 - scales.shape[1]))
        tensors = {"qweight": words(codes, 4), "qzeros": words(np.pad(points, pad), 4), "scales": np.pad(scales, pad)}
        return tensors, numbers

    return pack, {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemv", "zero_point": True}


def mlx(bits: int = 4, group: int = 64, dtype: Any = BF16) -> Any:
    """Return a packer of MLX; the first outputs are zeros, whose scale is MLX's smallest one."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> Packed:
        codes = rng.integers(0, 1 << bits, values.shape)
        shape = len(values), values.shape[1] // group
        scales, biases = ((sign * (1 + rng.random(shape))).astype(dtype) for sign in (0.01, -0.05))
        codes[:3], scales[:3], biases[:3] = 0, np.array(1e-7, dtype), 0
        wide = codes.reshape(*shape, group).astype(np.float32) * scales.astype(np.float32)[..., None]
        numbers = (wide + biases.astype(np.float32)[..., None]).reshape(values.shape)
        return {"weight": words(codes, bits).view(np.uint32), "scales": scales, "biases": biases}, numbers

    return pack, {"group_size": group, "bits": bits, "mode": "affine"}


def nf4(*, nested: bool = False, kind: str = "nf4") -> Any:
    """Return a packer of bitsandbytes with 4 bits; the numbers of another kind than NF4 are its own."""

    def pack(values: np.ndarray, rng: np.random.Generator) -> Packed:
        codes, runs = rng.integers(0, 16, values.shape), -(-values.size // 64)
        table = NF4 if kind == "nf4" else np.sort(rng.standard_normal(16)).astype(np.float32)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": list(values.shape)}
        scales = (0.05 * (1 + rng.random(runs))).astype(np.float32)
        tensors = {
            "weight": (codes[:, ::2] << 4 | codes[:, 1::2]).astype(np.uint8).reshape(-1, 1),
            "weight.quant_map": table,
        }
        if nested:
            levels = np.linspace(-1, 1, 256, dtype=np.float32)
            own, factors = rng.integers(0, 256, runs), rng.random(-(-runs // 256)).astype(np.float32)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.0625}
            scales = levels[own] * factors[np.arange(runs) // 256] + np.float32(0.0625)
            tensors |= {"weight.nested_absmax": factors, "weight.nested_quant_map": levels}
        tensors["weight.absmax"] = own.astype(np.uint8) if nested else scales
        name = f"weight.quant_state.bitsandbytes__{kind}"
        tensors[name] = np.frombuffer(json.dumps(state).encode(), np.uint8)
        return tensors, table[codes] * np.repeat(scales, 64)[: values.size].reshape(values.shape)

    return pack, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}


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
