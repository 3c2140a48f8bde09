"""Adapters in GGUF files give the logits of PEFT's models with the same numbers, or are refused by tensor or key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from adapter_cases import BASES, EXPERTS
from adapter_kit import (
    TOLERANCE,
    AdapterCase,
    adapted_twin,
    assert_logits_of_peft,
    error_of,
    executor_of,
    loaded,
    opened,
    save,
    text_of,
    twin_logits,
)
from adapter_writers import FILE, PREFIX, expert_factors, gguf_tensors, write_gguf_adapter
from ferrum.core.errors import CheckpointError, Unsupported
from gguf_twin import write_gguf
from tiny import BASE, directory_of

LINEAR = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}

KINDS = {
    "llama2": "llama",
    "mistral": "llama",
    "qwen2-tied-mha": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "granite": "granite",
}


def case_of(model: str, name: str = "gguf", **config: object) -> AdapterCase:
    return AdapterCase(f"{name} {model}", BASES[model], {**LINEAR, **config})


def tensors_of(case: AdapterCase, directory: Path) -> dict[str, np.ndarray]:
    save(adapted_twin(case), directory)
    return gguf_tensors(directory, KINDS[case.model.name], {**BASE, **case.model.changes})


@pytest.mark.parametrize("model", KINDS)
def test_logits_are_those_of_peft(model: str, tmp_path) -> None:
    case = case_of(model)
    write_gguf_adapter(tmp_path / "a.gguf", KINDS[model], tensors_of(case, tmp_path))
    assert_logits_of_peft(tmp_path / "a.gguf", case)


@pytest.mark.parametrize("model", ["llama2", "qwen3"])
def test_files_of_adapters_fit_files_of_models(model: str, tmp_path) -> None:
    case = case_of(model)
    write_gguf_adapter(tmp_path / "a.gguf", KINDS[model], tensors_of(case, tmp_path))
    write_gguf(directory_of(case.model), tmp_path / "base.gguf")
    expected = twin_logits(adapted_twin(case), text_of(case))
    for adapter in (tmp_path / "a.gguf", tmp_path):
        found = opened(adapter, tmp_path / "base.gguf")
        with loaded(executor_of(tmp_path / "base.gguf"), found) as logits:
            assert error_of(logits(text_of(case)), expected) < TOLERANCE


def test_embedding_and_head_are_changed(tmp_path) -> None:
    case = case_of("qwen3", "embedding", target_modules=["embed_tokens", "lm_head"])
    write_gguf_adapter(tmp_path / "a.gguf", "qwen3", tensors_of(case, tmp_path))
    assert_logits_of_peft(tmp_path / "a.gguf", case)


@pytest.mark.parametrize("alpha", [0.0, None])
def test_alpha_0_leaves_products_as_they_are(alpha: float | None, tmp_path) -> None:
    case = case_of("qwen3", "alpha", lora_alpha=4)
    write_gguf_adapter(tmp_path / "a.gguf", "qwen3", tensors_of(case, tmp_path), alpha)
    assert_logits_of_peft(tmp_path / "a.gguf", case)


@pytest.mark.parametrize("type", ["Q8_0", "F16", "BF16"])
def test_numbers_are_those_of_the_file(type: str, tmp_path) -> None:
    case = case_of("granite", type, r=32, target_modules=["gate_proj", "v_proj", "o_proj"])
    twin = adapted_twin(case)
    held = write_gguf_adapter(tmp_path / "a.gguf", "granite", tensors_of(case, tmp_path), type=type)
    with torch.no_grad():
        for name, values in gguf_names(case).items():
            dict(twin.named_parameters())[name].copy_(torch.from_numpy(held[values].copy()))
    assert_logits_of_peft(tmp_path / "a.gguf", case, twin)


def gguf_names(case: AdapterCase) -> dict[str, str]:
    """Return the GGUF names of an adapter's parameters."""
    parts = {"gate_proj": "ffn_gate", "v_proj": "attn_v", "o_proj": "attn_output"}
    found = {}
    for name, _ in adapted_twin(case).named_parameters():
        if ".lora_" in name:
            words = name.split(".")
            layer, module, part = words[words.index("layers") + 1], words[-4], words[-3][-1].lower()
            found[name] = f"blk.{layer}.{parts[module]}.weight.lora_{part}"
    return found


def test_stacks_of_experts_are_applied(tmp_path) -> None:
    case = AdapterCase("gguf experts", BASES["qwen3-moe"], {**EXPERTS, "lora_alpha": 3})
    tensors = load_file(save(adapted_twin(case), tmp_path) / FILE)
    stored = {}
    for layer in range(2):
        stem, block = f"{PREFIX}model.layers.{layer}", f"blk.{layer}"
        for short, name in (("q", "q_proj"), ("v", "v_proj")):
            for part in "AB":
                values = tensors[f"{stem}.self_attn.{name}.lora_{part}.weight"]
                stored[f"{block}.attn_{short}.weight.lora_{part.lower()}"] = values
        for wrapper in (f"{stem}.mlp.experts.base_layer", f"{stem}.mlp.experts"):
            a, b = expert_factors(tensors, wrapper, 8)
            inner = case.model.changes["moe_intermediate_size"]
            parts = {"down": b} if a.shape[2] == inner else {"gate": b[:, :inner], "up": b[:, inner:]}
            for part, rows in parts.items():
                stored |= {f"{block}.ffn_{part}_exps.weight.lora_a": a, f"{block}.ffn_{part}_exps.weight.lora_b": rows}
    write_gguf_adapter(tmp_path / "a.gguf", "qwen3moe", stored, alpha=3.0)
    assert_logits_of_peft(tmp_path / "a.gguf", case)


def test_metadata_says_what_an_adapter_is(tmp_path) -> None:
    about = {"adapter__lora__task_name": "poems", "adapter__lora__prompt_prefix": "Write: "}
    case = case_of("qwen3")
    invocation = {"adapter__alora__invocation_tokens": [5, 7]}
    write_gguf_adapter(tmp_path / "a.gguf", "qwen3", tensors_of(case, tmp_path), **about, **invocation)
    found = opened(tmp_path / "a.gguf", directory_of(case.model))
    assert (found.about, found.invocation, found.rank) == (
        {"task_name": "poems", "prompt_prefix": "Write: "},
        (5, 7),
        4,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"blk.9.attn_q.weight.lora_a": np.ones((4, 48))}, "blk.9.attn_q.weight.lora_a"),
        ({"blk.0.attn_q.bias.lora_a": np.ones((4, 48))}, "blk.0.attn_q.bias.lora_a"),
        ({"blk.0.attn_q.scale": np.ones((4, 48))}, "blk.0.attn_q.scale"),
        ({"blk.0.attn_q.weight.lora_a": np.ones((5, 48))}, "blk.0.attn_q.weight.lora_b"),
        ({"blk.0.attn_q.weight.lora_a": np.ones((4, 47))}, "blk.0.attn_q.weight.lora_a"),
        ({"blk.0.attn_q.weight.lora_a": np.full((4, 48), np.nan)}, "blk.0.attn_q.weight.lora_a"),
        ({"blk.0.attn_q.weight.lora_a": None}, "blk.0.attn_q.weight.lora_b"),
        ({"blk.0.attn_q.weight.lora_b": None}, "blk.0.attn_q.weight.lora_a"),
    ],
)
def test_tensors_that_cannot_be_applied_are_refused_by_name(change, words: str, tmp_path) -> None:
    case = case_of("qwen3")
    tensors = {**tensors_of(case, tmp_path), **change}
    write_gguf_adapter(tmp_path / "a.gguf", "qwen3", {n: values for n, values in tensors.items() if values is not None})
    with pytest.raises((CheckpointError, Unsupported)) as caught:
        opened(tmp_path / "a.gguf", directory_of(case.model))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "metadata", "words"),
    [
        ("llama", {}, "general.architecture"),
        ("qwen3", {"adapter__lora__rank": "7"}, "adapter.lora.rank"),
        ("qwen3", {"adapter__alora__invocation_tokens": ["a"]}, "adapter.alora.invocation_tokens"),
    ],
)
def test_metadata_that_cannot_be_followed_is_refused_by_key(kind: str, metadata, words: str, tmp_path) -> None:
    case = case_of("qwen3")
    write_gguf_adapter(tmp_path / "a.gguf", kind, tensors_of(case, tmp_path), **metadata)
    with pytest.raises((CheckpointError, Unsupported)) as caught:
        opened(tmp_path / "a.gguf", directory_of(case.model))
    assert words in str(caught.value)


def test_a_model_is_no_adapter(tmp_path) -> None:
    case = case_of("qwen3")
    write_gguf(directory_of(case.model), tmp_path / "base.gguf")
    with pytest.raises(CheckpointError, match=r"general\.type must be adapter"):
        opened(tmp_path / "base.gguf", directory_of(case.model))
