"""The `quantization_config` of a directory: that of `config.json`, or of the file in which a quantiser left it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ferrum.text.model_files import ModelFiles, read_json_object

KEY: Final = "quantization_config"

_OLDER: Final = "compression_config"
"""What the first versions of compressed-tensors called it."""


def _model_optimizer(values: Mapping[str, Any]) -> dict[str, Any]:
    section = values.get("quantization")
    return {"quant_method": "modelopt", **(section if isinstance(section, dict) else {})}


PACKED: Final = "ferrum"
"""The method of packed directories (`packed.py`)."""

FILES: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "hf_quant_config.json": _model_optimizer,
    "quantize_config.json": lambda values: {"quant_method": "gptq", **values},
    "quant_config.json": lambda values: {"quant_method": "awq", **values},
}
"""Files of Model Optimizer, AutoGPTQ and AutoAWQ, and the `quantization_config` that their values mean."""


def with_quantization(config: dict[str, Any], files: ModelFiles) -> dict[str, Any]:
    """Return a model's configuration with its `quantization_config`, wherever it is.

    Raises:
        CheckpointError: a file of `FILES` is damaged.
    """
    if config.get(KEY):
        return config
    if config.get(_OLDER):
        return {name: value for name, value in config.items() if name != _OLDER} | {KEY: config[_OLDER]}
    for name, meaning in FILES.items():
        values = read_json_object(files, name)
        if values is not None:
            return {**config, KEY: meaning(values)}
    return config


def quantization_method(config: Mapping[str, Any]) -> str | None:
    """Return the quantisation method in a model's `config.json`, or None.

    MLX has no name of a method, and bitsandbytes had none at first.
    """
    quantization = config.get("quantization_config") or config.get("quantization")
    if not quantization:
        return None
    if not isinstance(quantization, dict):
        return str(quantization)
    if named := quantization.get("quant_method"):
        return str(named)
    if "load_in_8bit" in quantization or "load_in_4bit" in quantization:
        return "bitsandbytes"
    return "MLX" if {"group_size", "bits"} <= quantization.keys() else "unnamed method"
