"""The families, by architecture name. A module in this folder registers its own; its presence is all it takes."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import ferrum.models
from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.registry import Registry
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.spec import DecoderSpec

FAMILIES: Registry[Callable[[FamilyConfig], DecoderSpec]] = Registry("architecture")


def load_families() -> None:
    """Import every module of this folder, so that all families are registered."""
    for module in pkgutil.iter_modules(ferrum.models.__path__, "ferrum.models."):
        import_module(module.name)


def decoder_spec(config: Mapping[str, Any], context: int | None = None) -> DecoderSpec:
    """The spec of a checkpoint.

    Args:
        config: the parsed `config.json`.
        context: the sequence length to serve, where the user configured one.

    Raises:
        CheckpointError: a field is missing or makes no sense.
        Unsupported: an architecture or feature that is not implemented.
    """
    load_families()
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointError(f"config.json: architectures must name one architecture, got {names!r}")
    name = _whole(names[0])
    family = FAMILIES.get(name)
    _refuse(config)
    _check_type(config.get("model_type"), name, family)
    return family(FamilyConfig(config, context))


def _whole(name: str) -> str:
    """The architecture with a head: of a model for embeddings, `transformers` saves the one without (`Qwen3Model`)."""
    whole = name.removesuffix("Model") + "ForCausalLM"
    return whole if name.endswith("Model") and whole in FAMILIES.names() else name


def _refuse(config: Mapping[str, Any]) -> None:
    """Refuse what `transformers` reads in any family's configuration, and no family here computes.

    Embedding models are published under a decoder's architecture with `is_causal` false (gte-Qwen2): their tokens look
    ahead. There null is false, too.
    """
    if not config.get("is_causal", True):
        raise Unsupported(f"config.json: is_causal={config['is_causal']!r}", "a token attends to those before it only")
    if config.get("per_layer_config"):
        raise Unsupported("config.json: per_layer_config", "all layers of a model have the same sizes and numbers")
    if config.get("transformers_weights") is not None:
        file = config["transformers_weights"]
        raise Unsupported(f"config.json: transformers_weights={file!r}", "weights have files of the usual names")


def _check_type(kind: Any, name: str, family: Callable[[FamilyConfig], DecoderSpec]) -> None:
    """Refuse a `model_type`, by which `transformers` chooses the model, beside an architecture of another one."""
    kinds = {_type_of(each) for each in FAMILIES.names() if FAMILIES.get(each) is family}
    if kind is not None and str(kind).replace("_", "") not in kinds:
        raise Unsupported(f"config.json: model_type={kind!r} beside the architecture {name}", "it is of another model")


def _type_of(architecture: str) -> str:
    """The type of an architecture's configuration, without underscores."""
    return architecture.removesuffix("ForCausalLM").lower()
