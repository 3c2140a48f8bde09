"""The configuration of the text model inside one that also sees images or hears.

Such a model's `config.json` holds its text model's as `text_config`. Names of tensors are in `runtime/checkpoint.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import Unsupported

WRAPPER: Final = "ForConditionalGeneration"
"""Ending of the architectures of such models."""

_OUTSIDE: Final = (
    *("tie_word_embeddings", "quantization_config", "quantization", "dtype", "torch_dtype", "transformers_weights"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)
"""Fields that may stand outside of `text_config` and count there."""

_BOTH_WAYS: Final = ("paligemma",)
"""Types of models whose prompts attend in both directions, which their text model alone does not say."""


def is_wrapped(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` holds that of a text model."""
    names = config.get("architectures")
    named = isinstance(names, list) and any(str(name).endswith(WRAPPER) for name in names)
    return named and isinstance(config.get("text_config"), Mapping)


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the text model's `config.json`, with the architecture of the whole.

    Raises:
        Unsupported: the text model would compute something else by itself.
    """
    if not is_wrapped(config):
        return dict(config)
    if config.get("model_type") in _BOTH_WAYS:
        raise Unsupported(f"config.json: model_type={config['model_type']!r}", "only causal attention is implemented")
    outside = {name: config[name] for name in _OUTSIDE if config.get(name) is not None}
    return {**config["text_config"], **outside, "architectures": config["architectures"]}
