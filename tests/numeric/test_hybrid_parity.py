"""Hybrid models against both paths of `transformers`: its chunked prefill, and its recurrent path with a cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from family_twin import MODELS, TOLERANCE, logits_of
from ferrum.verbs.load_executor import load_executor
from tiny import directory_of, model_of, tokens_of

HYBRID = [name for name in MODELS if name.startswith(("qwen3-next", "qwen3.5", "lfm2"))]
LENGTH = 70
"""More than a chunk of 64 tokens."""

RECURRENT = 1e-5
"""Largest difference to the path that computes as ferrum does, as a share of the largest logit.

Where the twin's own two paths are further apart, rounding to float32 alone does it: then twice their distance.
"""


def recurrent_logits(twin: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """Return the twin's logits token by token."""
    cache, rows = None, []
    with torch.no_grad():
        for position, token in enumerate(tokens):
            place = torch.tensor([[position]])
            step = twin(torch.tensor([[token]]), past_key_values=cache, use_cache=True, position_ids=place)
            cache = step.past_key_values
            rows.append(step.logits[0, 0].numpy())
    return np.array(rows)


def test_two_models_of_each_family_are_hybrid() -> None:
    assert len(HYBRID) == 10


@pytest.mark.parametrize("name", HYBRID)
def test_logits_are_those_of_both_paths(name: str) -> None:
    twin, tokens = model_of(MODELS[name]).float(), tokens_of(MODELS[name], LENGTH)
    with load_executor(directory_of(MODELS[name]), kernels="reference", kv_dtype="float32") as executor:
        ours = logits_of(executor, tokens)
    with torch.no_grad():
        chunked = twin(torch.tensor([tokens])).logits[0].numpy()
    recurrent = recurrent_logits(twin, tokens)
    largest = np.abs(recurrent).max()
    apart = np.abs(recurrent - chunked).max() / largest
    assert np.abs(ours - chunked).max() <= TOLERANCE * largest
    assert np.abs(ours - recurrent).max() <= max(RECURRENT, 2 * apart) * largest
