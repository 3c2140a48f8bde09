"""What the converter of llama.cpp makes of a checkpoint's tensors, for the families whose tensors it changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from gguf.constants import MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map

from gguf_twin import permuted

Tensors = dict[str, np.ndarray]
TILED = ("qwen35", "qwen35moe")
TRANSPOSED = ("gpt-oss", "llama4", "qwen3vlmoe")
"""Architectures whose checkpoints have experts transposed."""

PERMUTED = ("llama", "granite", "granitemoe", "smollm3", "mistral3")


def converted(kind: str, config: dict[str, Any], tensors: Tensors) -> Tensors:
    """Return the tensors of a GGUF file of an architecture, by its names."""
    (arch,) = [arch for arch, name in MODEL_ARCH_NAMES.items() if name == kind]
    known, stored = get_tensor_name_map(arch, config["num_hidden_layers"]), {}
    for name, values in _merged(tensors).items():
        for own, part in _parts(kind, config, name, values):
            full = own if own.startswith("blk.") else known.get_name(own, (".weight", ".bias"))
            assert full is not None, own
            stored[full] = np.ascontiguousarray(part.squeeze() if part.ndim > 1 else part, np.float32)
    return stored


def _merged(tensors: Tensors) -> Tensors:
    """Return the tensors with those of all experts stacked."""
    whole, experts = {}, dict[str, dict[int, np.ndarray]]()
    for name, values in tensors.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)(\.\w+\.weight)", name)
        if found is None:
            whole[name] = values
        else:
            experts.setdefault(found[1] + found[3], {})[int(found[2])] = values
    return whole | {name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in experts.items()}


def tiled(values: np.ndarray, config: dict[str, Any], width: int, axis: int = 0) -> np.ndarray:
    """Return value heads of a width, those of a key head adjacent, in the order of key heads, again and again."""
    heads, shape = config["linear_num_key_heads"], values.shape
    parted = values.reshape(*shape[:axis], heads, -1, width, *shape[axis + 1 :])
    return parted.swapaxes(axis, axis + 1).reshape(shape)


def _recurrent(kind: str, config: dict[str, Any], name: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the name of a tensor of a gated DeltaNet as the library knows it, and its numbers."""
    width = config["linear_value_head_dim"]
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    part = name.partition(".linear_attn.")[2].removesuffix(".weight")
    if part == "A_log":
        values = -np.exp(values)
    if kind in TILED and part != "norm":
        if part in ("in_proj_qkv", "conv1d"):
            values = np.concatenate((values[:keys], tiled(values[keys:], config, width)))
        elif part == "out_proj":
            values = tiled(values, config, width, axis=1)
        else:
            values = tiled(values, config, width if part == "in_proj_z" else 1)
    return name.replace("dt_bias", "dt_proj.bias"), values


def _parts(kind: str, config: dict[str, Any], name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what becomes of a tensor: names that the library knows, or those of GGUF, with numbers."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    block = ".".join(["blk", *name.split(".")[2:3]])
    if ".linear_attn." in name:
        yield _recurrent(kind, config, name, values)
    elif kind in ("lfm2", "lfm2moe"):
        name = re.sub(r"^model\.(.*\.experts\.)", r"\1", name.replace(".expert_bias", ".expert_bias.bias"))
        yield name, values
    elif kind in PERMUTED and re.search(r"\.[qk]_proj\.", name):
        yield name, permuted(values, heads if ".q_proj." in name else kv_heads)
    elif kind in ("gemma2", "gemma3", "qwen3next", *TILED) and name.endswith("norm.weight"):
        yield name, values + 1
    elif name.endswith("kv_b_proj.weight"):
        nope, width = config["qk_nope_head_dim"], config["v_head_dim"]
        both = values.reshape(heads, nope + width, -1)
        yield name.replace("kv_b", "k_b"), both[:, :nope].swapaxes(1, 2)
        yield name.replace("kv_b", "v_b"), both[:, nope:]
    elif "experts.gate_up_proj" in name and kind in TRANSPOSED:
        turned, inner = values if name.endswith("_bias") else values.swapaxes(1, 2), values.shape[-1] // 2
        halves = (slice(0, None, 2), slice(1, None, 2)) if kind == "gpt-oss" else (slice(0, inner), slice(inner, None))
        for part, rows in zip(("gate", "up"), halves, strict=True):
            yield f"{block}.ffn_{part}_exps.{'bias' if name.endswith('_bias') else 'weight'}", turned[:, rows]
    elif name.endswith("experts.down_proj_bias"):
        yield f"{block}.ffn_down_exps.bias", values
    elif name.endswith("experts.down_proj") and kind in TRANSPOSED:
        yield f"{block}.ffn_down_exps.weight", values.swapaxes(1, 2)
    elif name.endswith("block_sparse_moe.input_linear.weight"):
        for part, rows in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
            yield f"{block}.ffn_{part}_exps.weight", rows
    elif name.endswith(("router.scale", "router.per_expert_scale")):
        yield f"{block}.{'ffn_gate_inp' if name.endswith('.scale') else 'ffn_down_exps'}.scale", values
    elif name.endswith(("sinks", "layer_scalar", "experts.gate_up_proj", "experts.down_proj")):
        yield f"{name}.weight", values
    else:
        yield name.replace("correction_bias", "correction.bias"), values
