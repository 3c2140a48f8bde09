"""Configurations of known models, for measuring their speed with random weights. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import ConfigError

_QWEN3: Final[Mapping[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
}
"""Values all dense Qwen3 models share, in the names of their `config.json`."""


def _qwen3(hidden: int, layers: int, heads: int, inner: int, **others: Any) -> Mapping[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**_QWEN3, **sizes, "intermediate_size": inner, **others}


SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728),
    "qwen3-8b": _qwen3(4096, 36, 32, 12288, tie_word_embeddings=False),
    "tiny": _qwen3(64, 2, 4, 96, vocab_size=512, head_dim=16, num_key_value_heads=2),
}
"""`config.json` by name. `tiny` is not a real model: it is for trying the benchmark itself."""


def shape_config(name: str) -> Mapping[str, Any]:
    """Return the configuration of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in SHAPES:
        raise ConfigError(f"must be one of {', '.join(SHAPES)}, not {name!r}", param="shape")
    return SHAPES[name]
