"""The configuration of the text model inside one that also sees images or hears.

Such a model's `config.json` holds its text model's as `text_config`. Names of tensors are in `sources/checkpoint.py`.
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


_TEXT_TYPES: Final = {
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "exaone4_5": "exaone4",
    "fast_vlm": "qwen2",
    "got_ocr2": "qwen2",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "lighton_ocr": "qwen3",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "ovis2": "qwen2",
    "perception_lm": "llama",
    "pp_chart2table": "qwen2",
    "qianfan_ocr": "qwen3",
    "shieldgemma2": "gemma3_text",
    "smolvlm": "llama",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
}
"""The text models of whole ones whose `text_config` does not name a `model_type`, by the type of the whole.

Others have the type of the whole.
"""


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
    deep = (config.get("vision_config") or {}).get("deepstack_visual_indexes")
    if deep is not None:
        outside["n_deepstack_layers"] = len(deep)  # as GGUF files say it
    text, whole = config["text_config"], config.get("model_type")
    kind = text.get("model_type") or _TEXT_TYPES.get(str(whole), whole)
    return {**text, **outside, "model_type": kind, "architectures": config["architectures"]}
