"""Llama, and functions for the families that share its layout."""

from __future__ import annotations

from typing import Any, Final

from ferrum.core.errors import CheckpointError
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.rope import context_length, rope_spec
from ferrum.models.spec import AttentionSpec, DecoderSpec, MlpSpec, PreNormSpec

QWEN_CONTEXT: Final = 1 << 15
"""Context of Qwen models whose configuration does not set one."""

_DEFAULT_WINDOW: Final = 4096
_LAYER_TYPES: Final = ("sliding_attention", "full_attention")


def llama_like(
    family: str,
    config: FamilyConfig,
    *,
    windows: tuple[int | None, ...] | None = None,
    head_dim: int | None = None,
    **attention: Any,
) -> DecoderSpec:
    """Return the spec of a pre-norm decoder with grouped-query attention, rope and a gated MLP.

    Args:
        family: name of the architecture.
        config: of the checkpoint.
        windows: sliding window per layer; None for full attention in all layers.
        head_dim: default of the family (default: hidden size / heads).
        attention: fields of `AttentionSpec` that differ from Llama.
    """
    config.require("hidden_act", "silu", "silu")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads, count = config.integer("num_key_value_heads", heads), config.num_layers()
    dim = config.integer("head_dim", head_dim or hidden // heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        )
    rope = rope_spec(config, dim)
    mlp = MlpSpec(config.integer("intermediate_size"))
    tied = config.flag("tie_word_embeddings", False)
    return DecoderSpec(
        family=family,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        max_sequence_length=context_length(config),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_head=tied,
        layers=tuple(
            PreNormSpec(AttentionSpec(heads, kv_heads, dim, rope, window=window, **attention), mlp)
            for window in windows or (None,) * count
        ),
        ignored_names=("*.rotary_emb.inv_freq", *(("lm_head.weight",) if tied else ())),
    )


def sliding_window(config: FamilyConfig) -> int | None:
    """Return the window of sliding layers. Null turns it off; the default is 4096."""
    off = config.values.get("sliding_window", _DEFAULT_WINDOW) is None
    return None if off else config.integer("sliding_window", _DEFAULT_WINDOW)


def layer_windows(config: FamilyConfig, window: int | None, first: int) -> tuple[int | None, ...]:
    """Return the window of each layer: by `layer_types` if present, else for all layers from `first` on."""
    count, types = config.num_layers(), config.values.get("layer_types")
    if types is None:
        return tuple(window if i >= first else None for i in range(count))
    if not isinstance(types, list) or len(types) != count or any(kind not in _LAYER_TYPES for kind in types):
        raise CheckpointError(
            f"config.json: layer_types must name full_attention or sliding_attention for {count} layers"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def mixed_windows(config: FamilyConfig) -> tuple[int | None, ...]:
    """Return the windows of a Qwen model: with `use_sliding_window`, for all layers from `max_window_layers` on."""
    window = sliding_window(config) if config.flag("use_sliding_window", False) else None
    return layer_windows(config, window, config.integer("max_window_layers", 28, minimum=0))


@FAMILIES.register("LlamaForCausalLM")
def llama(config: FamilyConfig) -> DecoderSpec:
    """Return the spec of Llama 2 and 3.x (Touvron et al. 2023; Grattafiori et al. 2024)."""
    config.require("mlp_bias", False, False)
    bias = config.flag("attention_bias", False)
    return llama_like("llama", config, bias=bias, output_bias=bias)
