"""Masks of padded batches, as tokenizers make them, give the logits of `transformers`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ferrum import PrefillInput, load_executor
from tiny import directory_of, find, model_of, tokens_of

CASE = find("llama3")


@pytest.mark.contract("1.PrefillInput")
@pytest.mark.contract("2.batch_prefill")
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prompts_have_the_logits_of_transformers(side: str) -> None:
    rows, masks = [], []
    for number, count in enumerate((5, 12, 9)):
        real, pad = tokens_of(CASE, count, seed=number), [0] * (12 - count)
        rows.append([*pad, *real] if side == "left" else [*real, *pad])
        masks.append([*pad, *[1] * count] if side == "left" else [*[1] * count, *pad])
    positions = (np.array(masks).cumsum(axis=1) - 1).clip(0)
    with torch.no_grad():
        inputs = {"attention_mask": torch.tensor(masks), "position_ids": torch.tensor(positions)}
        expected = model_of(CASE).float()(torch.tensor(rows), **inputs).logits.numpy()
    with load_executor(directory_of(CASE), kernels="reference", dtype="float32", kv_capacity=512) as executor:
        prompts = [
            PrefillInput(np.array(row), np.array(mask), at, logits="all")
            for row, mask, at in zip(rows, masks, positions, strict=True)
        ]
        for output, logits, mask in zip(executor.batch_prefill(prompts), expected, masks, strict=True):
            wanted = logits[np.array(mask) == 1]
            np.testing.assert_allclose(output.logits[0], wanted, atol=1e-4 * np.abs(wanted).max())
            assert output.kv_cache.sequence_length == sum(mask)
