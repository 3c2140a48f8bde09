"""The families, by architecture name. A module in this folder registers its own; its presence is all it takes."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import ferrum.models
from ferrum.core.errors import CheckpointError
from ferrum.core.registry import Registry
from ferrum.models.config import FamilyConfig
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
    return FAMILIES.get(names[0])(FamilyConfig(config, context))
