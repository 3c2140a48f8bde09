"""Gemma 2 and 3 (Gemma Team 2024, 2025)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from ferrum.models.attention_spec import AttentionSpec, QkNorm, RopeSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.llama import (
    FULL,
    SLIDING,
    activation_of,
    attention_of,
    by_pattern,
    decoder_of,
    heads_of,
    layer_types,
    mlp_of,
    norms_of,
)
from ferrum.models.rope import of_layers, rope_spec
from ferrum.models.spec import DecoderSpec, sandwich


@FAMILIES.register("Gemma2ForCausalLM")
def gemma2(config: FamilyConfig) -> DecoderSpec:
    """Return sandwich norms, softcaps, and a sliding window in every other layer."""
    kinds = layer_types(config, ((SLIDING, FULL)[i % 2] for i in range(config.num_layers())))
    heads = heads_of(config)
    rope = rope_spec(config, heads.head_dim)
    return _gemma("gemma2", config, kinds, dict.fromkeys((SLIDING, FULL), rope))


@FAMILIES.register("Gemma3ForCausalLM")
def gemma3(config: FamilyConfig) -> DecoderSpec:
    """Return Gemma 2 with norms of q and k, five sliding layers to a full one, and a rope for each kind."""
    head_dim = heads_of(config).head_dim
    own = {SLIDING: of_layers(config, SLIDING, "rope_local_base_freq"), FULL: of_layers(config, FULL)}
    ropes = {kind: rope_spec(each, head_dim) for kind, each in own.items()}
    return _gemma("gemma3", config, by_pattern(config), ropes, qk_norm=QkNorm())


def _bfloat16(x: float) -> float:
    """Round to the nearest bfloat16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    rounded = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    (y,) = struct.unpack("<f", struct.pack("<I", rounded))
    return float(y)


def embedding_scale(config: FamilyConfig) -> float:
    """Return the square root of the hidden size, in the format that the checkpoint's embeddings were trained in."""
    root = math.sqrt(config.integer("hidden_size"))
    kept = config.values.get("dtype", config.values.get("torch_dtype"))
    return _bfloat16(root) if kept == "bfloat16" else root


def _gemma(
    family: str,
    config: FamilyConfig,
    kinds: list[str],
    ropes: Mapping[str, RopeSpec],
    **fields: Any,
) -> DecoderSpec:
    """Return what both have in common."""
    config.require("use_bidirectional_attention", False, False)
    heads, bias = heads_of(config), config.flag("attention_bias")
    window = config.optional_integer("sliding_window")
    mlp = mlp_of(config, activation=activation_of(config, "hidden_activation"))

    def attention(kind: str) -> AttentionSpec:
        return attention_of(
            heads,
            rope=ropes[kind],
            window=window if kind == SLIDING else None,
            scale=config.number("query_pre_attn_scalar") ** -0.5,
            softcap=config.optional_number("attn_logit_softcapping"),
            bias=bias,
            output_bias=bias,
            **fields,
        )

    return decoder_of(
        family,
        config,
        (sandwich(attention(kind), mlp) for kind in kinds),
        norms=norms_of(config, offset=float(config.integer("norm_offset", 1, minimum=0, maximum=1))),
        embedding_scale=embedding_scale(config),
        softcap=config.optional_number("final_logit_softcapping"),
    )
