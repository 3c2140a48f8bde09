"""Biases of layers that a GGUF file has, whatever its family has: `layer_biases` in the configuration.

llama.cpp applies a bias of attention or feed-forward wherever a file has one, in every layer by itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from ferrum.core.errors import CheckpointError
from ferrum.models.attention_spec import AttentionSpec
from ferrum.models.builder import LayerSpec
from ferrum.models.spec import BlockSpec, DecoderSpec, MlpSpec

LAYER_BIASES: Final = "layer_biases"
"""The field: for each layer a list of `attention`, `output` and `mlp`."""

_TENSORS: Final = {
    "attention": ("attn_q", "attn_k", "attn_v", "attn_qkv"),
    "output": ("attn_output",),
    "mlp": ("ffn_gate", "ffn_up", "ffn_down"),
}
"""Tensors of GGUF files whose biases are of a kind."""


def layer_biases(tensors: Collection[str], layers: int) -> list[list[str]]:
    """Return the kinds of biases of each layer that a GGUF file has."""
    return [
        [kind for kind, parts in _TENSORS.items() if any(f"blk.{i}.{part}.bias" in tensors for part in parts)]
        for i in range(layers)
    ]


def with_biases(spec: DecoderSpec, biases: Any) -> DecoderSpec:
    """Return a spec with the biases that the field `layer_biases` names.

    Raises:
        CheckpointError: the field is invalid.
    """
    lists = isinstance(biases, list) and all(isinstance(each, list) and {*each} <= {*_TENSORS} for each in biases)
    if not lists or len(biases) != len(spec.layers):
        raise CheckpointError(f"config.json: {LAYER_BIASES} must list {', '.join(_TENSORS)} for each layer")
    return replace(spec, layers=tuple(map(_with_biases, spec.layers, biases)))


def _with_biases(layer: LayerSpec, kinds: Collection[str]) -> LayerSpec:
    if not isinstance(layer, BlockSpec):
        return layer
    for branch in layer.branches:
        for name, part in branch.parts:
            if isinstance(part, AttentionSpec):
                attention = replace(part, bias=part.bias or "attention" in kinds, output_bias="output" in kinds)
                layer = layer.with_part(name, attention)
            elif isinstance(part, MlpSpec):
                layer = layer.with_part(name, replace(part, bias="mlp" in kinds))
    return layer
