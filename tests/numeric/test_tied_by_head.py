"""A tied matrix that `safetensors` wrote once, under the head's name."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_model

from family_twin import MODELS
from ferrum import PrefillInput, load_executor
from tiny import Case, directory_of, find, model_of, reference_logits, tokens_of


@pytest.mark.parametrize("case", [find("qwen2-tied-mha"), MODELS["gemma3"]], ids=lambda case: case.name)
def test_a_tied_matrix_may_have_the_heads_name(case: Case, tmp_path: Path) -> None:
    """Gemma's class ties them, so its files do not say it."""
    config = json.loads((directory_of(case) / "config.json").read_text())
    if case.name == "gemma3":
        del config["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_model(model_of(case), str(tmp_path / "model.safetensors"))
    tokens = tokens_of(case, 20)
    with load_executor(tmp_path, kernels="reference", kv_capacity=64, kv_dtype="float32") as executor:
        logits = executor.prefill(PrefillInput(tokens)).last_token_logits()
    np.testing.assert_allclose(logits[0], reference_logits(case, tokens)[-1], atol=1e-4)
