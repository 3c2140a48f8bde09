"""Gemma 2 and 3 (Gemma Team 2024, 2025)."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping
from typing import Any, Final

from ferrum.models.attention_spec import AttentionSpec, QkNorm, RopeSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, RMS_EPSILON, WINDOW, Derive, GgufArchitecture, Values
from ferrum.models.llama import (
    FULL,
    SLIDING,
    activation_of,
    attention_of,
    by_pattern,
    decoder_of,
    heads_of,
    mlp_of,
    norms_of,
    sliding_but_every,
)
from ferrum.models.rope import of_layers, rope_spec
from ferrum.models.spec import DecoderSpec, sandwich

POST_NORMS: Final = {"ffn_norm": "pre_feedforward_layernorm"}
"""The norm before the feed-forward in GGUF files; those after the parts have their common names."""

_KEYS: Final = {
    **WINDOW,
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


@FAMILIES.register("Gemma2ForCausalLM")
def gemma2(config: FamilyConfig) -> DecoderSpec:
    """Return sandwich norms, softcaps, and a sliding window in every other layer."""
    kinds = sliding_but_every(config, 2)
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
        norms=norms_of(config, offset=float(config.integer("norm_offset", 1, minimum=0, maximum=1)), layout_offset=1.0),
        embedding_scale=embedding_scale(config),
        softcap=config.optional_number("final_logit_softcapping"),
    )


def _query_scale(wide_layers: int) -> Derive:
    """Return what derives Gemma's scale of queries: hidden size / heads in the model of that depth."""

    def derive(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:  # noqa: ARG001
        wide = config["num_hidden_layers"] == wide_layers
        per_head = config["hidden_size"] // config["num_attention_heads"]
        return {"query_pre_attn_scalar": per_head if wide else config["head_dim"]}

    return derive


def _derived(values: Values, tensors: Collection[str], config: Values) -> dict[str, Any]:
    """Return the scales of the released models: of queries, and of the rope in files without a key of it (ollama's)."""
    stretched = config["num_hidden_layers"] in (34, 48, 62) and "rope.scaling.factor" not in values
    rope = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}} if stretched else {}
    return {**_query_scale(62)(values, tensors, config), **rope}


ARCHITECTURES["gemma2"] = GgufArchitecture(
    "Gemma2ForCausalLM",
    "gemma2",
    parts=POST_NORMS,
    keys=_KEYS,
    fixed={"norm_offset": 0.0},  # the converter has added 1 to the weights of norms
    absent={"attention.sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    period=2,
    derive=_query_scale(46),
)
ARCHITECTURES["gemma3"] = GgufArchitecture(
    "Gemma3ForCausalLM",
    "gemma3_text",
    parts=POST_NORMS,
    keys={**_KEYS, "rope.freq_base_swa": "rope_local_base_freq"},
    fixed={"norm_offset": 0.0},
    period=6,
    absent={RMS_EPSILON: 1e-6, "rope.freq_base": 1e6},  # ollama's files lack them
    derive=_derived,
)
