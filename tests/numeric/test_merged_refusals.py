"""`ferrum quantize --lora` refuses what it cannot merge before it writes anything, and says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter_cases import ATTENTION, BASES, DENSE
from adapter_kit import AdapterCase, adapted_twin, save
from command_kit import Outcome
from lora_files import write_lora
from packed_kit import packed_of
from tiny import directory_of

BASE = BASES["llama3"]
DORA = AdapterCase("dora", BASE, {**ATTENTION, "use_dora": True})
(WITHOUT_BIASES,) = [each for each in DENSE if each.name == "lora_bias without biases"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with adapters.

    They are a plain one, a DoRA, an aLoRA, one of another model, and one with biases that its model lacks.
    """
    folder = tmp_path_factory.mktemp("adapters")
    write_lora(folder / "plain", BASE, 0)
    write_lora(folder / "activated", BASE, 0, invocation=[5])
    write_lora(folder / "other", BASES["qwen3"], 0)
    save(adapted_twin(DORA), folder / "dora")
    save(adapted_twin(WITHOUT_BIASES), folder / "biased")
    return folder


def scaled(path: str, scale: object) -> str:
    return json.dumps({"path": path, "scale": scale})


REFUSED = {
    ("activated",): ("activated is not supported: it is an aLoRA", "--lora"),
    ("plain", "activated"): ("it is an aLoRA",),
    ("other",): ("other/adapter_model.safetensors: tensor", "layers.0.self_attn.q_proj.lora_B", "expected shape"),
    ("nosuch",): ("--lora: there is no such directory or file: nosuch",),
    ("dora", "plain"): ("--lora must name a single adapter", "dora' replaces weights or scales outputs"),
    (scaled("dora", 0.5),): ("--lora must have the scale 1, not 0.5", "dora' replaces weights"),
    (scaled("plain", 1e30),): ("q_proj.weight'", "weights are too large"),
    (scaled("plain", 0),): ("--lora must have a scale of at most 1e+30 and not 0, not 0",),
    (scaled("plain", True),): ("--lora must have a scale", "True"),
    (scaled("plain", float("nan")),): ("--lora must have a scale", "nan"),
    ('{"path": "plain", "weight": 2}',): ("'weight' is no field of an adapter: give path and scale",),
    ('{"scale": 2}',): ("--lora must be a directory, a GGUF file or a hub id",),
    ("{",): ("is not JSON",),
    ("",): ("--lora must be a directory, a GGUF file or a hub id, not ''",),
    ("name=",): ("--lora must be a directory, a GGUF file or a hub id, not 'name='",),
}


@pytest.mark.parametrize("adapters", REFUSED, ids=" ".join)
def test_adapters_that_cannot_be_merged_are_refused(
    adapters: tuple[str, ...], root: Path, ferrum: Callable[..., Outcome], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(root)
    options = [part for each in adapters for part in ("--lora", each)]
    code, _, error = ferrum("quantize", str(directory_of(BASE)), str(tmp_path / "deep" / "out"), *options)
    assert code == 2 and all(part in error for part in REFUSED[adapters]), error
    assert list(tmp_path.iterdir()) == []


def test_a_bias_that_the_model_lacks_is_refused(root: Path, ferrum: Callable[..., Outcome], tmp_path: Path) -> None:
    """PEFT refuses to merge it, too."""
    path = root / "biased"
    code, _, error = ferrum(
        "quantize", str(directory_of(WITHOUT_BIASES.model)), str(tmp_path / "out"), "--lora", str(path)
    )
    assert code == 2 and str(path) in error and "the model has no model.layers.0.mlp.down_proj.bias" in error
    assert list(tmp_path.iterdir()) == []


def test_packed_models_are_refused_before_adapters_are_read(ferrum: Callable[..., Outcome], tmp_path: Path) -> None:
    code, _, error = ferrum("quantize", str(packed_of("llama3", "q8_0")), str(tmp_path / "out"), "--lora", "nosuch")
    assert code == 2 and "already packed: quantise the original model" in error
    assert list(tmp_path.iterdir()) == []


def test_a_used_target_is_refused_before_adapters_are_read(ferrum: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    code, _, error = ferrum("quantize", str(directory_of(BASE)), str(tmp_path), "--lora", "nosuch")
    assert code == 2 and "exists and is not an empty directory" in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
