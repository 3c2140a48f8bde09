"""Adapters in other forms than the installed PEFT writes: GGUF files, and the layouts of older versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH_NAMES
from gguf.quants import dequantize, quantize
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.numpy import load_file, save_file

from gguf_converter import PERMUTED, converted
from gguf_twin import permuted

Tensors = dict[str, np.ndarray]
PREFIX = "base_model.model."
FILE, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def edit(directory: Path, change: Callable[[Tensors, dict[str, Any]], None]) -> Path:
    """Change the tensors and the configuration of a PEFT directory."""
    tensors = load_file(directory / FILE)
    config = json.loads((directory / CONFIG).read_text())
    change(tensors, config)
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, directory / FILE)
    (directory / CONFIG).write_text(json.dumps(config))
    return directory


def gguf_tensors(directory: Path, kind: str, model: dict[str, Any]) -> Tensors:
    """Return the tensors of a PEFT directory with the names and the row orders of llama.cpp's converter.

    Args:
        directory: of an adapter of linear layers, the embedding, the head and norms.
        kind: GGUF's name of the architecture.
        model: the base's configuration.
    """
    (arch,) = [arch for arch, name in MODEL_ARCH_NAMES.items() if name == kind]
    known, stored = get_tensor_name_map(arch, model["num_hidden_layers"]), Tensors()
    for name, values in load_file(directory / FILE).items():
        if ".base_layer." in name:
            continue
        module, _, part = name.removeprefix(PREFIX).partition(".lora_")
        if not part:  # a norm
            stored |= converted(kind, model, {module: values})
            continue
        base = known.get_name(f"{module}.weight", (".weight",))
        assert base is not None, module
        end = "a" if part in ("A.weight", "embedding_A") else "b"
        if part == "embedding_A":
            values = values.T
        if end == "b" and kind in PERMUTED and ".q_proj" in module:
            values = permuted(values, model["num_attention_heads"])
        if end == "b" and kind in PERMUTED and ".k_proj" in module:
            values = permuted(values, model["num_key_value_heads"])
        stored[f"{base}.lora_{end}"] = values
    return stored


def write_gguf_adapter(
    path: Path, kind: str, tensors: Tensors, alpha: float | None = 8.0, type: str = "F32", **metadata: Any
) -> Tensors:
    """Write a GGUF file of an adapter; `metadata` adds texts and lists of tokens.

    Returns: the numbers that the file holds.
    """
    writer = gguf.GGUFWriter(path, kind)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for key, value in metadata.items():
        name = key.replace("__", ".")
        writer.add_string(name, value) if isinstance(value, str) else writer.add_array(name, value)
    held = {}
    for name, values in tensors.items():
        format = gguf.GGMLQuantizationType[type]
        blocks = quantize(np.ascontiguousarray(values, np.float32), format)
        held[name] = dequantize(blocks, format)
        writer.add_tensor(name, blocks, raw_dtype=format)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def expert_factors(tensors: Tensors, stem: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A [experts, r, K] and B [experts, N, r] of a PEFT module of all experts."""
    a, b = tensors[f"{stem}.lora_A.weight"], tensors[f"{stem}.lora_B.weight"]
    return a.reshape(count, -1, a.shape[1]), b.reshape(b.shape[0], -1, count).transpose(2, 0, 1)
