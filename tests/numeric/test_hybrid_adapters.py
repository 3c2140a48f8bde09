"""Adapters of recurrent layers: on files with tiled value heads, and refused where no projection is changed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from adapter_cases import ALL, ATTENTION, BASES
from adapter_kit import (
    TOLERANCE,
    AdapterCase,
    adapted_twin,
    error_of,
    executor_of,
    loaded,
    opened,
    save,
    text_of,
    twin_logits,
)
from ferrum.core.errors import FerrumError, Unsupported
from hybrid_gguf import written
from tiny import directory_of

PREFIX = "base_model.model.model.layers.0"


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_of_peft_are_ordered_as_the_tiled_heads_of_a_gguf_file(dora: bool, tmp_path: Path) -> None:
    case = AdapterCase("tiled", BASES["qwen3.5"], {**ALL, "use_dora": dora})
    file = written(tmp_path / "m.gguf", "qwen3.5")
    save(adapted_twin(case), tmp_path)
    with loaded(executor_of(file), opened(tmp_path, file)) as logits:
        found = logits(text_of(case))
    assert error_of(found, twin_logits(adapted_twin(case), text_of(case))) < 2 * TOLERANCE


@pytest.mark.parametrize(
    ("model", "name", "shape"),
    [
        ("qwen3.5", "linear_attn.A_log", (4,)),
        ("qwen3.5", "linear_attn.dt_bias", (4,)),
        ("qwen3.5", "linear_attn.norm.weight", (32,)),
        ("qwen3-next", "linear_attn.conv1d.weight", (192, 1, 4)),
        ("qwen3-next", "linear_attn.conv1d.lora_A.weight", (3, 1, 4)),
        ("qwen3.5", "linear_attn.conv1d.lora_B.weight", (192, 3, 1)),
        ("lfm2", "conv.conv.weight", (64, 1, 3)),
    ],
)
def test_what_is_no_projection_is_refused_by_name(
    model: str, name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    case = AdapterCase("plain", BASES[model], ATTENTION)
    save(adapted_twin(case), tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    tensors[f"{PREFIX}.{name}"] = np.ones(shape, np.float32)
    if ".lora_" in name:
        other = {"A": "B", "B": "A"}[name[-8]]
        tensors[f"{PREFIX}.{name[:-8]}{other}.weight"] = np.ones((192, 3, 1) if other == "B" else (3, 1, 4), np.float32)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "modules_to_save": ["norm", "conv1d", "conv"]}))
    with pytest.raises(FerrumError) as caught:
        opened(tmp_path, directory_of(case.model))
    assert isinstance(caught.value, Unsupported), caught.value
    assert name.removesuffix(".weight").partition(".lora")[0] in str(caught.value)
