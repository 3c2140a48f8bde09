"""Registry of model families by architecture name. Each module in this folder registers its families on import."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import ferrum.models
from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.registry import Registry
from ferrum.models.attention_spec import AttentionSpec
from ferrum.models.builder import LayerSpec
from ferrum.models.class_defaults import CLASS_DEFAULTS, with_defaults
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.spec import BlockSpec, DecoderSpec, MlpSpec
from ferrum.text.text_config import WRAPPER, text_config

FAMILIES: Registry[Callable[[FamilyConfig], DecoderSpec]] = Registry("architecture")

MODEL_TYPES: dict[str, str] = {}
"""The architecture of each `model_type` that its name does not say."""

LAYER_CONFIGS: set[str] = set()
"""Architectures that read `per_layer_config`."""


_ENDING: Final = "ForCausalLM"

_FACTORS: Final = (
    *("clip_qkv", "scale_emb", "scale_depth", "logit_scale", "logits_scaling", "attn_logit_softcapping"),
    *("final_logit_softcapping", "embedding_multiplier", "residual_multiplier", "attention_multiplier"),
)
"""Fields that change results and add no tensor. In files of a family that does not read them they must be 0 or 1."""


def load_families() -> None:
    """Import every module of this folder, which registers all families."""
    for module in pkgutil.iter_modules(ferrum.models.__path__, "ferrum.models."):
        import_module(module.name)


def decoder_spec(config: Mapping[str, Any], context: int | None = None) -> DecoderSpec:
    """Return the spec of a checkpoint.

    Args:
        config: the parsed `config.json`.
        context: sequence length configured by the user, or None.

    Raises:
        CheckpointError: a field is missing or invalid.
        Unsupported: the architecture or a feature is not implemented.
    """
    config = text_config(config)
    name, kind = _architecture(config)
    family = FAMILIES.get(name)
    _refuse(config, name)
    _check_type(config.get("model_type"), name, family)
    spec = family(FamilyConfig(with_defaults(name, kind, config), context))
    return with_biases(spec, config[LAYER_BIASES]) if LAYER_BIASES in config else spec


def head_is_tied(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` ties the head to the embedding, or else its class. Errors as `decoder_spec`."""
    config = text_config(config)
    return with_defaults(*_architecture(config), config).get("tie_word_embeddings") is True


def _architecture(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the architecture and the type of a text model's `config.json`, as `_known` does."""
    load_families()
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointError(f"config.json: architectures must name one architecture, got {names!r}")
    return _known(names[0], config.get("model_type"))


def _known(name: str, kind: Any) -> tuple[str, str]:
    """Return an architecture as it is registered, and its type as `_plain` returns it.

    `transformers` saves embedding models without a head (`Qwen3Model`). That of a text model in a whole one is known by
    its `model_type`. Other names of an architecture have its type before their ending.
    """
    whole = f"{name.removesuffix('Model')}{_ENDING}" if name.endswith("Model") else name
    if whole in FAMILIES:
        return whole, _plain(kind)
    stem = whole.removesuffix(_ENDING) if whole.endswith(_ENDING) else None
    plain = _plain(kind if name.endswith(WRAPPER) else stem)
    found = next((each for each in FAMILIES.names() if plain in _types_of(each)), None)
    if found is None and name.endswith(WRAPPER):
        known = ", ".join(FAMILIES.names())
        raise Unsupported(f"the architecture {name} with a text model of type {kind!r}", f"known text models: {known}")
    return found or name, plain


def _refuse(config: Mapping[str, Any], name: str) -> None:
    """Raise Unsupported for fields that change results and that the family does not implement.

    Some embedding models have a decoder's architecture with `is_causal` false (gte-Qwen2). There null means false.
    """
    if not config.get("is_causal", True):
        raise Unsupported(f"config.json: is_causal={config['is_causal']!r}", "only causal attention is implemented")
    if config.get("per_layer_config") and name not in LAYER_CONFIGS:
        raise Unsupported("config.json: per_layer_config", "all layers must have the same configuration")
    for field in _FACTORS:
        if config.get(field) not in (None, 0, 1) and name in CLASS_DEFAULTS and field not in CLASS_DEFAULTS[name]:
            raise Unsupported(f"config.json: {field}={config[field]!r}", f"{name} does not have it in `transformers`")
    if config.get("transformers_weights") is not None:
        file = config["transformers_weights"]
        raise Unsupported(f"config.json: transformers_weights={file!r}", "only the default file names are read")


def _check_type(kind: Any, name: str, family: Callable[[FamilyConfig], DecoderSpec]) -> None:
    """Refuse a `model_type` that contradicts the architecture. `transformers` chooses the model by `model_type`."""
    names = [each for each in FAMILIES.names() if FAMILIES.get(each) is family]
    if kind is not None and not any(_plain(kind) in _types_of(each) for each in names):
        raise Unsupported(f"config.json: model_type={kind!r} with architecture {name}", "they name different models")


def _types_of(architecture: str) -> set[str]:
    """Return the types of an architecture's configurations, as `_plain` returns them."""
    others = {_plain(kind) for kind, name in MODEL_TYPES.items() if name == architecture}
    return {_plain(architecture.removesuffix(_ENDING)), *others}


def _plain(kind: Any) -> str:
    """Return a type in lower case without underscores; that of a text model in a whole one may end in `_text`."""
    return str(kind).lower().removesuffix("_text").replace("_", "")


# ---- Biases of layers that a GGUF file has, whatever its family has: `layer_biases` in the configuration ----
#
# llama.cpp applies a bias of attention or feed-forward wherever a file has one, in every layer by itself.

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
