"""Text models inside of models that also see: names in both layouts, fields that stand outside, towers left out.

`tests/serve/test_contract.py` shows that an image in a chat is refused by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Mistral3Config, Mistral3ForConditionalGeneration

from ferrum import PrefillInput, load_executor
from ferrum.core.config import ModelConfig
from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.models.families import decoder_spec
from ferrum.runtime.load import plan_model
from ferrum.runtime.packing import pack_directory
from ferrum.sources.model_source import DirectoryModel
from ferrum.sources.remote_headers import RemoteHeaders
from ferrum.text.generation_config import load_generation_config
from ferrum.text.model_files import DirectoryFiles
from shared_models import folder

TEXT = {"model_type": "mistral", "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "head_dim": 16}
TEXT |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
VISION = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
VISION |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14, "head_dim": 16}
TOKENS = [int(each) for each in np.random.default_rng(0).integers(0, 67, 20)]
NEW = (("language_model.model.", "model.language_model."), ("language_model.lm_head.", "lm_head."))
NEW = (*NEW, ("vision_tower.", "model.vision_tower."), ("multi_modal_projector.", "model.multi_modal_projector."))


@pytest.fixture(scope="module", params=["tied", "own head"])
def saved(request: pytest.FixtureRequest) -> tuple[Path, np.ndarray]:
    """Return a directory that `transformers` wrote, and the logits of the model."""
    tied = request.param == "tied"
    text = {**TEXT, "tie_word_embeddings": tied}
    config = Mistral3Config(text_config=text, vision_config=VISION, image_token_index=5, tie_word_embeddings=tied)
    torch.manual_seed(0)
    model = Mistral3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_((1.0 if "norm" in name else 0.0) + 0.12 * torch.randn(parameter.shape))
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    directory = folder(f"mistral3-{request.param}")
    model.save_pretrained(directory)
    return directory, logits


def renamed(source: Path, target: Path, *renames: tuple[str, str], **config: Any) -> Path:
    """Write a directory with other beginnings of names and other values of the configuration."""
    target.mkdir()
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        new = next((new + name.removeprefix(old) for old, new in renames if name.startswith(old)), name)
        tensors[new] = tensor
    save_file(tensors, target / "model.safetensors")
    values = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**values, **config}))
    return target


def last_logits(directory: Path) -> np.ndarray:
    with load_executor(directory, kernels="reference", kv_capacity=64, kv_dtype="float32") as executor:
        assert executor.info.family == "mistral"
        logits: np.ndarray = executor.prefill(PrefillInput(TOKENS)).last_token_logits()
        return logits[0]


def test_the_text_model_computes_as_in_the_whole(saved: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    directory, wanted = saved
    assert any(name.startswith("language_model.model.") for name in load_file(directory / "model.safetensors"))
    logits = last_logits(directory)
    np.testing.assert_allclose(logits, wanted[-1], atol=1e-4 * np.abs(wanted).max())
    np.testing.assert_array_equal(last_logits(renamed(directory, tmp_path / "new", *NEW)), logits)
    few = {**TEXT, "model_type": None}  # the other fields, and the type, have the classes' values
    np.testing.assert_array_equal(last_logits(renamed(directory, tmp_path / "few", text_config=few)), logits)


def test_plans_packing_and_token_ids_use_the_text_model(saved: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    directory = renamed(saved[0], tmp_path / "in", eos_token_id=[3, 7])
    assert load_generation_config(DirectoryFiles(directory)).eos_token_ids == (3, 7)
    plan = plan_model(ModelConfig(model=str(directory)))
    assert (plan.info.vocab_size, plan.info.head_dim) == (67, 16)
    raw = json.loads((directory / "config.json").read_text())
    files = DirectoryModel(directory).checkpoint()
    assert RemoteHeaders("maker/model", raw, files.tensors).config == files.config
    pack_directory(DirectoryModel(directory), tmp_path / "packed", "q8_0")
    with load_executor(directory, quantize="q8_0") as loaded, load_executor(tmp_path / "packed") as packed:
        logits = [each.prefill(PrefillInput(TOKENS)).last_token_logits() for each in (loaded, packed)]
    np.testing.assert_array_equal(*logits)


def test_what_is_no_text_model_is_refused(saved: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    directory, _ = saved
    config = json.loads((directory / "config.json").read_text())
    with pytest.raises(Unsupported, match="PaliGemmaForConditionalGeneration"):
        decoder_spec({"architectures": ["PaliGemmaForConditionalGeneration"], "model_type": "x"})
    with pytest.raises(Unsupported, match="paligemma"):
        decoder_spec({**config, "model_type": "paligemma"})
    with pytest.raises(Unsupported, match="unknown_text"):
        decoder_spec({**config, "text_config": {**config["text_config"], "model_type": "unknown_text"}})
    fields = {"quantization_config": {"quant_method": "someone's"}}
    with pytest.raises(Unsupported, match="someone's"):
        load_executor(renamed(directory, tmp_path / "quantised", **fields))
    stray = renamed(directory, tmp_path / "stray", ("vision_tower.", "other_tower."))
    with pytest.raises(CheckpointError, match=r"unexpected tensors: 'other_tower\."):
        load_executor(stray)
    twice = renamed(directory, tmp_path / "twice", ("vision_tower.ln_pre.", "model.language_model.norm."))
    with pytest.raises(CheckpointError, match=r"are both 'model\.norm\.weight'"):
        load_executor(twice)
