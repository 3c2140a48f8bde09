"""A tied matrix that `safetensors` wrote once, under the head's name."""

from pathlib import Path

import numpy as np
from safetensors.torch import save_model

from ferrum import PrefillInput, load_executor
from tiny import directory_of, find, model_of, reference_logits, tokens_of


def test_a_tied_matrix_may_have_the_heads_name(tmp_path: Path) -> None:
    case = find("qwen2-tied-mha")
    (tmp_path / "config.json").write_bytes((directory_of(case) / "config.json").read_bytes())
    save_model(model_of(case), str(tmp_path / "model.safetensors"))
    tokens = tokens_of(case, 20)
    with load_executor(tmp_path, kernels="reference", kv_capacity=64, kv_dtype="float32") as executor:
        logits = executor.prefill(PrefillInput(tokens)).last_token_logits()
    np.testing.assert_allclose(logits[0], reference_logits(case, tokens)[-1], atol=1e-4)
