"""GGUF files of tiny models, written by the `gguf` library as the converter of llama.cpp writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

from ferrum.models.families import load_families
from ferrum.models.gguf_architecture import ARCHITECTURES, hf_name

TOKENIZER: dict[str, Any] = {
    "tokenizer__ggml__model": ("gpt2", GGUFValueType.STRING),
    "tokenizer__ggml__pre": ("gpt-2", GGUFValueType.STRING),
    "tokenizer__ggml__tokens": ([*"abcdefgh", "ab", "<end>"], GGUFValueType.ARRAY),
    "tokenizer__ggml__token_type": ([1] * 9 + [3], GGUFValueType.ARRAY),
    "tokenizer__ggml__merges": (["a b"], GGUFValueType.ARRAY),
    "tokenizer__ggml__eos_token_id": (9, GGUFValueType.UINT32),
    "tokenizer__chat_template": ("{{ messages[0].content }}", GGUFValueType.STRING),
}
"""Metadata of a small tokenizer."""

load_families()
KINDS = {entry.name: kind for kind, entry in reversed(ARCHITECTURES.items())}


def add_sizes(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Add the sizes of a text model, from its configuration."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)


def permuted(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return the rows of q or k in the order for rotation of adjacent pairs."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def gguf_names(layers: int, name: str) -> dict[str, str]:
    """Return GGUF's name of every tensor of an architecture by its Hugging Face name."""
    attention = [f"attn_{each}" for each in ("q", "k", "v", "output", "q_norm", "k_norm", "norm")]
    parts = attention + [f"ffn_{each}" for each in ("norm", "gate", "up", "down")]
    stems = ["token_embd", "output_norm", "output", *(f"blk.{i}.{part}" for i in range(layers) for part in parts)]
    names = [f"{stem}.{kind}" for stem in stems for kind in ("weight", "bias")]
    return {str(hf_name(each, ARCHITECTURES[name])): each for each in names}


def write_gguf(directory: Path, target: Path, kind: str = "F32", **metadata: Any) -> dict[str, NDArray[np.float32]]:
    """Write a model's directory as a GGUF file with matrices of a type.

    Returns: the numbers that the file holds, by Hugging Face name.
    """
    config = json.loads((directory / "config.json").read_text())
    name = KINDS[config["architectures"][0]]
    writer = GGUFWriter(target, name)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    add_sizes(writer, config)
    writer.add_rope_freq_base((config.get("rope_parameters") or {}).get("rope_theta", 10000.0))
    for key, value in metadata.items():
        writer.add_key_value(key.replace("__", "."), *value)
    names, held = gguf_names(config["num_hidden_layers"], name), {}
    for full, values in load_file(directory / "model.safetensors").items():
        numbers = np.ascontiguousarray(values, np.float32)
        stored, type = numbers, GGMLQuantizationType.F32
        if name == "llama" and (".q_proj." in full or ".k_proj." in full):
            stored = permuted(numbers, heads if ".q_proj." in full else kv_heads)
        if kind != "F32" and numbers.ndim == 2:
            type = GGMLQuantizationType[kind]
            blocks = quantize(stored, type)
            writer.add_tensor(names[full], blocks, raw_dtype=type)
            numbers = dequantize(quantize(numbers, type), type).reshape(numbers.shape)
        else:
            writer.add_tensor(names[full], stored)
        held[full] = numbers
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held
