"""The kinds of adapters that PEFT writes, on tiny models of several families."""

from __future__ import annotations

from adapter_kit import AdapterCase
from tiny import find

ALL = {"r": 4, "target_modules": "all-linear"}

DENSE = (
    AdapterCase("qwen3", find("qwen3"), {**ALL, "lora_alpha": 8}),
    AdapterCase("llama-biases", find("llama-linear"), {**ALL, "lora_alpha": 4}),
    AdapterCase("float-alpha", find("qwen2-tied-mha"), {**ALL, "lora_alpha": 2.5}),
    AdapterCase("rslora", find("mistral"), {**ALL, "r": 9, "use_rslora": True}),
    AdapterCase("rank-1", find("qwen3"), {"r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}),
    AdapterCase(
        "patterns",
        find("llama3"),
        {
            **ALL,
            "rank_pattern": {"q_proj": 7, "^model.layers.1.mlp.up_proj": 3},
            "alpha_pattern": {r"layers\.0\.mlp\..*": 3},
        },
    ),
)
