"""Llama, and functions for the families that share its layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.kernels.op_attributes import Activation
from ferrum.models.attention_spec import AttentionSpec
from ferrum.models.builder import LayerSpec, NormSpec, PartSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import FAMILIES
from ferrum.models.gguf_architecture import ARCHITECTURES, GgufArchitecture
from ferrum.models.gguf_rope import LOG_MULTIPLIER
from ferrum.models.rope import context_length, rope_spec
from ferrum.models.spec import DecoderSpec, MlpSpec, pre_norm

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"
_LAYER_TYPES: Final = (SLIDING, FULL)

_IGNORED: Final = ("*.rotary_emb.inv_freq", "mtp.*", "model.mtp*")
"""Tensors that some checkpoints have and no model uses: frequencies, and heads that predict further tokens."""

_ACTIVATIONS: Final = {
    "silu": Activation("silu"),
    "swish": Activation("silu"),
    "gelu": Activation("gelu"),
    "gelu_pytorch_tanh": Activation("gelu_tanh"),
    "gelu_new": Activation("gelu_tanh"),
    "relu2": Activation("relu2"),
}
"""Activations by their names in `config.json`."""

ARCHITECTURES["llama"] = GgufArchitecture(
    "LlamaForCausalLM",
    "llama",
    permuted=True,
    ignored=(LOG_MULTIPLIER,),  # in files of Devstral 2; llama.cpp does not read it in this architecture either
)


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of a configuration."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def heads_of(config: FamilyConfig) -> Heads:
    """Return the heads of a configuration. Without a size they have hidden size / heads."""
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        )
    return Heads(heads, kv_heads, config.integer("head_dim", config.integer("hidden_size") // heads))


def attention_of(heads: Heads, **fields: Any) -> AttentionSpec:
    """Return attention with these heads; `fields` are the others of `AttentionSpec`."""
    return AttentionSpec(heads.num_heads, heads.num_kv_heads, heads.head_dim, **fields)


def activation_of(config: FamilyConfig, name: str = "hidden_act") -> Activation:
    """Return the activation that a field names."""
    found = config.values.get(name)
    if not isinstance(found, str) or found not in _ACTIVATIONS:
        raise Unsupported(f"config.json: {name}={found!r}", f"known: {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[found]


def mlp_of(config: FamilyConfig, **fields: Any) -> MlpSpec:
    """Return the gated feed-forward of a configuration; `fields` are others of `MlpSpec`."""
    size = fields.pop("intermediate_size", None) or config.integer("intermediate_size")
    activation = fields.pop("activation", None) or activation_of(config)
    return MlpSpec(size, activation, **fields)


def norms_of(config: FamilyConfig, name: str = "rms_norm_eps", **fields: Any) -> NormSpec:
    """Return the norms of a configuration, whose epsilon that field holds; `fields` are others of `NormSpec`."""
    return NormSpec(config.number(name, zero=True), **fields)


def decoder_of(family: str, config: FamilyConfig, layers: Iterable[LayerSpec], **fields: Any) -> DecoderSpec:
    """Return a decoder with the sizes of a configuration.

    Args:
        family: name of the architecture.
        config: of the checkpoint.
        layers: of the decoder.
        fields: others of `DecoderSpec`, or other values; `extra_layers` that files may have whatever they say.
    """
    tied = fields.pop("tied_head", None)
    tied = config.flag("tie_word_embeddings") if tied is None else tied
    ignored = (*_IGNORED, *_extra_layers(config, fields.pop("extra_layers", 0)), *(("lm_head.weight",) if tied else ()))
    ignored = (*ignored, *fields.pop("ignored_names", ()))
    common = {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": config.integer("hidden_size"),
        "max_sequence_length": context_length(config),
        "norms": fields.pop("norms", None) or norms_of(config),
    }
    return DecoderSpec(family, **{**common, **fields}, tied_head=tied, layers=tuple(layers), ignored_names=ignored)


def _extra_layers(config: FamilyConfig, least: int) -> tuple[str, ...]:
    """Return the patterns of layers after the last one, which predict further tokens and are not part of the model."""
    count, extra = config.num_layers(), config.integer("num_nextn_predict_layers", 0, minimum=0, maximum=100)
    return tuple(f"model.layers.{count + i}.*" for i in range(max(extra, least)))


def llama_like(
    family: str,
    config: FamilyConfig,
    *,
    windows: tuple[int | None, ...] | None = None,
    mlps: Iterable[PartSpec] | None = None,
    **attention: Any,
) -> DecoderSpec:
    """Return the spec of a pre-norm decoder with grouped-query attention, rope and a gated MLP.

    Args:
        family: name of the architecture.
        config: of the checkpoint.
        windows: sliding window per layer; None for full attention in all layers.
        mlps: feed-forward of each layer; None: that of the configuration.
        attention: fields of `AttentionSpec` that differ from Llama.
    """
    heads, count = heads_of(config), config.num_layers()
    rope = attention.pop("rope", None) or rope_spec(config, heads.head_dim)
    each = [mlp_of(config)] * count if mlps is None else list(mlps)
    windows = windows or (None,) * count
    parts = [attention_of(heads, rope=rope, window=window, **attention) for window in windows]
    return decoder_of(family, config, map(pre_norm, parts, each))


def layer_types(config: FamilyConfig, default: Iterable[str], known: tuple[str, ...] = _LAYER_TYPES) -> list[str]:
    """Return the kind of each layer, of `layer_types` if present."""
    count, types = config.num_layers(), config.values.get("layer_types")
    if types is None:
        return list(default)
    if not isinstance(types, list) or len(types) != count or any(kind not in known for kind in types):
        raise CheckpointError(f"config.json: layer_types must name {' or '.join(reversed(known))} for {count} layers")
    return types


def sliding_but_every(config: FamilyConfig, period: int) -> list[str]:
    """Return the kind of each layer, of `layer_types` if present; else every layer of this distance is full."""
    return layer_types(config, (SLIDING if (i + 1) % period else FULL for i in range(config.num_layers())))


def by_pattern(config: FamilyConfig) -> list[str]:
    """Return the kind of each layer, of `layer_types` if present, else by `sliding_window_pattern`.

    That is the distance of full layers, or a letter for each layer of a period: L slides, G is full, as is the last.
    """
    pattern, count = config.values.get("sliding_window_pattern"), config.num_layers()
    if config.values.get("layer_types") is not None:
        return layer_types(config, ())
    if not isinstance(pattern, str):
        return sliding_but_every(config, config.integer("sliding_window_pattern"))
    if not pattern or set(pattern) - {"L", "G"}:
        raise CheckpointError(
            f"config.json: sliding_window_pattern must be a number or letters L and G, got {pattern!r}"
        )
    return [SLIDING if pattern[i % len(pattern)] == "L" and i < count - 1 else FULL for i in range(count)]


def layer_windows(config: FamilyConfig, window: int | None, first: int) -> tuple[int | None, ...]:
    """Return the window of each layer: by `layer_types` if present, else for all layers from `first` on."""
    default = (_LAYER_TYPES[i < first] for i in range(config.num_layers()))
    return tuple(window if kind == _LAYER_TYPES[0] else None for kind in layer_types(config, default))


def mixed_windows(config: FamilyConfig) -> tuple[int | None, ...]:
    """Return the windows of a Qwen model: with `use_sliding_window`, for all layers from `max_window_layers` on."""
    return layer_windows(config, used_window(config), config.integer("max_window_layers", minimum=0))


def used_window(config: FamilyConfig) -> int | None:
    """Return the window of a model with `use_sliding_window`."""
    return config.optional_integer("sliding_window") if config.flag("use_sliding_window") else None


@FAMILIES.register("LlamaForCausalLM")
def llama(config: FamilyConfig) -> DecoderSpec:
    """Return the spec of Llama 2 and 3.x (Touvron et al. 2023; Grattafiori et al. 2024)."""
    bias = config.flag("attention_bias")
    mlp = mlp_of(config, bias=config.flag("mlp_bias"))
    return llama_like("llama", config, bias=bias, output_bias=bias, mlps=[mlp] * config.num_layers())
