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
    decoder_of,
    heads_of,
    layer_types,
    mlp_of,
    norms_of,
    sliding_but_every,
)
from ferrum.models.rope import rope_spec
from ferrum.models.spec import DecoderSpec, sandwich


@FAMILIES.register("Gemma2ForCausalLM")
def gemma2(config: FamilyConfig) -> DecoderSpec:
    """Return sandwich norms, softcaps, and a sliding window in every other layer."""
    kinds = layer_types(config, ((SLIDING, FULL)[i % 2] for i in range(config.num_layers())))
    heads = heads_of(config, 256)
    rope = rope_spec(config, heads.head_dim)
    return _gemma("gemma2", config, kinds, dict.fromkeys((SLIDING, FULL), rope), (50.0, 30.0))


@FAMILIES.register("Gemma3ForCausalLM")
def gemma3(config: FamilyConfig) -> DecoderSpec:
    """Return Gemma 2 with norms of q and k, five sliding layers to a full one, and a rope for each kind."""
    period = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", 6))
    kinds = sliding_but_every(config, period)
    config = config.with_defaults(max_position_embeddings=131072, tie_word_embeddings=True)
    heads = heads_of(config, 256)
    local = config
    if not isinstance((config.values.get("rope_parameters") or {}).get(SLIDING), dict):
        # Older files scale the rope of full layers only, and name the base of the others.
        theta = config.number("rope_local_base_freq", 10000.0)
        local = FamilyConfig({"rope_theta": theta, "max_position_embeddings": 131072}, config.context)
        config = config.with_defaults(rope_theta=1000000.0)
    ropes = {kind: rope_spec(own, heads.head_dim, kind) for kind, own in ((SLIDING, local), (FULL, config))}
    return _gemma("gemma3", config, kinds, ropes, (None, None), qk_norm=QkNorm())


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
    softcaps: tuple[float | None, float | None],
    **fields: Any,
) -> DecoderSpec:
    """Return what both have in common; `softcaps` are the defaults of attention's and the head's."""
    config.require("use_bidirectional_attention", False, False)
    config = config.with_defaults(tie_word_embeddings=True, max_position_embeddings=8192)
    heads, bias = heads_of(config, 256), config.flag("attention_bias", False)
    window = config.integer("sliding_window", 4096)
    mlp = mlp_of(config, activation=activation_of(config, "hidden_activation", "gelu_pytorch_tanh"))

    def attention(kind: str) -> AttentionSpec:
        return attention_of(
            heads,
            rope=ropes[kind],
            window=window if kind == SLIDING else None,
            scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
            softcap=config.optional_number("attn_logit_softcapping", softcaps[0]),
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
        softcap=config.optional_number("final_logit_softcapping", softcaps[1]),
    )
