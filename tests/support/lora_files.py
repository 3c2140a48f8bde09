"""Adapters written by hand for tiny models: directories in PEFT's layout, drawn from a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tiny import Case, model_of

MODULES = ("q_proj", "v_proj", "down_proj")


def write_lora(
    directory: Path,
    case: Case,
    seed: int,
    *,
    rank: int = 4,
    modules: Sequence[str] = MODULES,
    invocation: Sequence[int] = (),
    size: float = 0.3,
) -> Path:
    """Write an adapter of a tiny model; a seed has the same numbers each time."""
    random, tensors = np.random.default_rng(seed), dict[str, Any]()
    for name, module in model_of(case).named_modules():
        if name.split(".")[-1] in modules:
            rows, columns = module.weight.shape
            key = f"base_model.model.{name}"
            tensors[f"{key}.lora_A.weight"] = random.normal(0, size, (rank, columns)).astype(np.float32)
            tensors[f"{key}.lora_B.weight"] = random.normal(0, size, (rows, rank)).astype(np.float32)
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(modules),
    }
    if invocation:
        config["alora_invocation_tokens"] = list(invocation)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory
