"""Adapters that replace norms: PEFT's logits from its directories and from GGUF files, on both kinds of bases."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adapter_cases import BASES, NORMS, norms_of
from adapter_kit import (
    TOLERANCE,
    AdapterCase,
    adapted_logits,
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
from adapter_writers import FILE, PREFIX, edit, gguf_tensors, write_gguf_adapter
from ferrum.core.errors import CheckpointError, Unsupported
from native_twin import same_bits
from tiny import BASE, directory_of


@pytest.mark.parametrize("case", NORMS, ids=lambda case: case.name)
def test_logits_are_those_of_peft(case: AdapterCase, tmp_path) -> None:
    held = load_file(save(adapted_twin(case), tmp_path) / FILE)
    assert any(values.ndim == 1 and "norm" in name for name, values in held.items())
    assert_logits_of_peft(tmp_path, case)


def converted_base(directory: Path, target: Path) -> Path:
    """Copy a Gemma with 1 added to the weights of norms, as its GGUF files have them and `GgufModel` reads them."""
    shutil.copytree(directory, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "norm_offset": 0.0}))
    tensors = load_file(target / "model.safetensors")
    added = {name: values + np.float32(name.endswith("norm.weight")) for name, values in tensors.items()}
    save_file(added, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("llama2", "llama"),
        ("gemma3", "gemma3"),
        ("starcoder2", "starcoder2"),
        ("olmo2", "olmo2"),
        ("granite", "granite"),
    ],
)
def test_norms_in_gguf_files_are_those_of_the_converter(model: str, kind: str, tmp_path) -> None:
    """The converter passes weights of norms on as the model's; of Gemma it adds 1."""
    case = norms_of(model, lora_alpha=8)
    expected = twin_logits(adapted_twin(case), text_of(case))
    stored = gguf_tensors(save(adapted_twin(case), tmp_path), kind, {**BASE, **case.model.changes})
    assert {"output_norm.weight", "blk.1.attn_norm.weight", "blk.1.post_attention_norm.weight"} & stored.keys()
    write_gguf_adapter(tmp_path / "a.gguf", kind, stored)
    assert_logits_of_peft(tmp_path / "a.gguf", case)
    if model != "gemma3":
        return
    base = converted_base(directory_of(case.model), tmp_path / "base")
    for adapter in (tmp_path, tmp_path / "a.gguf"):
        with loaded(executor_of(base), opened(adapter, base)) as logits:
            assert error_of(logits(text_of(case)), expected) < TOLERANCE


NORM = "blk.0.attn_norm"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another width": ({f"{NORM}.weight": np.ones(47)}, "expected shape [48], found [47]"),
    "a matrix": ({f"{NORM}.weight": np.ones((2, 48))}, "expected shape [48], found [2, 48]"),
    "a bias that the model lacks": (
        {f"{NORM}.bias": np.ones(48)},
        "the model has no model.layers.0.input_layernorm.bias",
    ),
    "not finite": ({"output_norm.weight": np.full(48, np.inf)}, "numbers that are not finite"),
    "a pair": (
        {f"{NORM}.weight.lora_a": np.ones((4, 48)), f"{NORM}.weight.lora_b": np.ones((1, 4))},
        "only the weight and the bias can be replaced",
    ),
    "a norm of no layer": ({"blk.0.ssm_norm.weight": np.ones(48)}, "no tensor blk.0.ssm_norm.weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_norms_in_gguf_files_that_cannot_be_applied_are_refused_by_name(name: str, tmp_path) -> None:
    tensors, words = REFUSED[name]
    write_gguf_adapter(tmp_path / "a.gguf", "qwen3", tensors)
    pattern = ".*".join(map(re.escape, (next(iter(tensors)), words)))
    with pytest.raises((CheckpointError, Unsupported), match=pattern):
        opened(tmp_path / "a.gguf", directory_of(BASES["qwen3"]))


def test_activated_adapters_replace_no_norms(tmp_path) -> None:
    """PEFT applies them to the tokens before the invocation, too."""
    tensors = {"output_norm.weight": np.ones(48)}
    write_gguf_adapter(tmp_path / "a.gguf", "qwen3", tensors, adapter__alora__invocation_tokens=[5, 7])
    with pytest.raises(Unsupported, match=r"output_norm\.weight.*invocation"):
        opened(tmp_path / "a.gguf", directory_of(BASES["qwen3"]))


def test_norms_equal_to_the_bases_change_no_bits(tmp_path) -> None:
    """mergekit saves all norms, most of which are those of the base."""
    case = norms_of("gemma3")
    model = directory_of(case.model)
    base = load_file(model / "model.safetensors")

    def untrained(tensors: dict[str, np.ndarray], _: dict[str, Any]) -> None:
        for name in list(tensors):
            if "norm" in name:
                tensors[name] = base[name.removeprefix(PREFIX)]

    edit(save(adapted_twin(case), tmp_path), untrained)
    found = adapted_logits(tmp_path, case, text_of(case), "native")
    edit(tmp_path, lambda tensors, _: [tensors.pop(name) for name in list(tensors) if "norm" in name])
    same_bits(found, adapted_logits(tmp_path, case, text_of(case), "native"))
