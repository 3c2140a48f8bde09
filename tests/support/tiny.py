"""Tiny random models in the Hugging Face layout, made by `transformers`: the independent twin of the parity tests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from shared_models import folder

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

BASE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@dataclass(frozen=True)
class Case:
    """One tiny model: a `transformers` configuration class and its differences from `BASE`."""

    name: str
    config: str
    changes: dict[str, Any] = field(hash=False)
    context: int | None = None
    dtype: str = "float32"


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)

CASES = (
    Case("qwen3", "Qwen3Config", {"head_dim": 16}),
    Case(
        "qwen3-mqa-wide-head-tied",
        "Qwen3Config",
        {"head_dim": 128, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    Case(
        "qwen3-gqa7",
        "Qwen3Config",
        {"head_dim": 32, "num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 40},
    ),
    Case("qwen3-bias", "Qwen3Config", {"head_dim": 64, "attention_bias": True, "vocab_size": 97}),
    Case(
        "qwen3-windows",
        "Qwen3Config",
        {
            "head_dim": 16,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
    ),
    Case(
        "qwen3-yarn", "Qwen3Config", {"head_dim": 16, **rope("yarn", factor=4.0, original_max_position_embeddings=64)}
    ),
    Case("qwen2", "Qwen2Config", {}),
    Case("qwen2-tied-mha", "Qwen2Config", {"num_key_value_heads": 6, "tie_word_embeddings": True, "vocab_size": 257}),
    Case(
        "qwen2-windows",
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 0, "num_attention_heads": 3},
    ),
    Case("llama2", "LlamaConfig", {"num_key_value_heads": 6, "rms_norm_eps": 1e-5}),
    Case("llama3", "LlamaConfig", {"head_dim": 32, **LLAMA3}),
    Case("llama-linear", "LlamaConfig", {**rope("linear", factor=4.0), "attention_bias": True}),
    Case("llama-dynamic", "LlamaConfig", {**rope("dynamic", factor=4.0), "max_position_embeddings": 64}, context=200),
    Case(
        "llama-yarn",
        "LlamaConfig",
        rope("yarn", factor=2.0, original_max_position_embeddings=64, beta_fast=16.0, truncate=None),
    ),
    Case("mistral", "MistralConfig", {"sliding_window": 20}),
    Case(
        "mistral-mixed",
        "MinistralConfig",
        {"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}
        | {"num_hidden_layers": 3, "head_dim": 16},
    ),
    Case("mistral-full", "MistralConfig", {"sliding_window": None, "head_dim": 24, "tie_word_embeddings": True}),
)


def find(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@cache
def model_of(case: Case) -> PreTrainedModel:
    """Return the `transformers` model, with random weights."""
    model = random_model(getattr(transformers, case.config)(**{**BASE, **case.changes}), case.name)
    return model.to(getattr(torch, case.dtype))


def random_model(config: PreTrainedConfig, name: str) -> PreTrainedModel:
    """Return a model with a weight deviation above 0.1 and non-trivial biases and norms; the name is the seed."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            mean = 1.0 if "norm" in parameter_name or "scale" in parameter_name else 0.0
            parameter.copy_(mean + 0.12 * torch.randn(parameter.shape, generator=generator))
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith(("layer_scalar", "e_score_correction_bias")):
                mean = 0.8 if buffer_name.endswith("scalar") else 0.0
                buffer.copy_(mean + 0.12 * torch.randn(buffer.shape, generator=generator))
    return model


@cache
def directory_of(case: Case) -> Path:
    """Return the model saved as a checkpoint directory, without a tokenizer."""
    directory = folder(case.name)
    model_of(case).save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    assert config["architectures"] == [type(model_of(case)).__name__]
    return directory


def reference_logits(case: Case, tokens: list[int]) -> np.ndarray:
    """Return the twin's f32 [len(tokens), V], all positions in one pass, computed in float32."""
    with torch.no_grad():
        return model_of(case).float()(torch.tensor([tokens])).logits[0].float().numpy()


def tokens_of(case: Case, count: int, seed: int = 0) -> list[int]:
    vocabulary = int({**BASE, **case.changes}["vocab_size"])
    return np.random.default_rng(seed).integers(0, vocabulary, count).tolist()
