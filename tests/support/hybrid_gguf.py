"""GGUF files of tiny hybrid models in the layout of llama.cpp's converter, written by the `gguf` library."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType, GGUFWriter
from safetensors.numpy import load_file

from family_twin import MODELS
from gguf_converter import converted
from tiny import directory_of, model_of

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
    return hybrid_metadata(KINDS[name], model_of(MODELS[name]).config.to_dict(), tensors_of(name))


def hybrid_metadata(kind: str, config: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Return the metadata of a file by keys without the architecture, from a configuration and the file's tensors."""
    found = {ours: config[theirs] for ours, theirs in SIZES.items() if config.get(theirs) is not None}
    rope = config.get("rope_parameters") or {}
    found["rope.freq_base"] = float(rope.get("rope_theta", 10000.0))
    found["attention.layer_norm_rms_epsilon"] = config.get("rms_norm_eps") or config["norm_eps"]
    kinds, heads = config["layer_types"], config["num_key_value_heads"]
    if kind.startswith("lfm2"):
        (width,) = {len(array) for each, array in tensors.items() if each.endswith("ffn_up.weight")} or {96}
        found["feed_forward_length"] = width
        found["attention.head_count_kv"] = [0 if each == "conv" else heads for each in kinds]
        return found
    found["feed_forward_length"] = config.get("intermediate_size") or 96
    found["attention.value_length"] = found["attention.key_length"]
    found["ssm.inner_size"] = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    found["attention.head_count_kv"] = heads
    found["attention.recurrent_layers"] = [each == "linear_attention" for each in kinds]
    found["rope.dimension_count"] = int(found["attention.key_length"] * rope["partial_rotary_factor"])
    if kind != "qwen3next":
        found["rope.dimension_sections"] = [*rope.get("mrope_section", (11, 11, 10)), 0]
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
