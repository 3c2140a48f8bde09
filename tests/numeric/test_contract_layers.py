"""Hidden states and attention weights of each layer, and logits of padded prompts, against `transformers`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from contract_kit import make_llm
from family_cases import FAMILY_CASES
from ferrum import (
    DecodeInput,
    Hidden,
    PrefillInput,
    StepBatch,
    Unsupported,
    Want,
    load_executor,
)
from native_twin import require_native
from span_kit import span_of
from tiny import Case, directory_of, find, model_of, tokens_of

contract = pytest.mark.contract
CASES = {case.name: case for case in (find("qwen3-windows"), find("llama3"))} | {
    name: Case(name, config, changes)
    for name, config, changes in FAMILY_CASES
    if name in ("gemma3", "granite", "olmo3-yarn", "cohere2-bias", "gemma4-shared", "deepseek-v2")
}
"""Plain layers, norms after parts, a factor of the stream, parts side by side, scaled layers, latent attention."""

LAYERS: dict[str, Any] = {"return_hidden_states": "layers"}


@cache
def twin(name: str) -> list[np.ndarray]:
    """Return the hidden states of transformers, L + 1 of [S, H]."""
    tokens = torch.tensor([tokens_of(CASES[name], 30, seed=8)])
    with torch.no_grad():
        found = model_of(CASES[name]).float()(tokens, output_hidden_states=True).hidden_states
    return [each[0].numpy() for each in found]


def close(found: Any, expected: list[np.ndarray], rows: slice) -> None:
    assert isinstance(found, tuple) and len(found) == len(expected)
    for states, layer in zip(found, expected, strict=True):
        assert states.dtype == np.float32
        wanted = layer[rows]
        np.testing.assert_allclose(states.reshape(wanted.shape), wanted, atol=1e-4 * np.abs(layer).max())


@contract("1.PrefillOutput")
@contract("1.DecodeOutput")
@pytest.mark.parametrize("name", CASES)
def test_states_of_each_layer_match_transformers(name: str) -> None:
    tokens, expected = tokens_of(CASES[name], 30, seed=8), twin(name)
    options = {"kernels": "reference", "page_size": 8, "kv_capacity": 512, "max_rows": 13, "max_batch_size": 4}
    with load_executor(directory_of(CASES[name]), dtype="float32", **options) as executor:
        assert len(expected) == executor.info.num_layers + 1
        plain = executor.prefill(PrefillInput(tokens, logits="all", return_hidden_states=True))
        whole = executor.prefill(PrefillInput(tokens, logits="all", **LAYERS))
        close(whole.hidden_states, expected, slice(None))
        np.testing.assert_array_equal(whole.hidden_states[-1], plain.hidden_states)
        np.testing.assert_array_equal(whole.logits, plain.logits)
        first = executor.prefill(PrefillInput(tokens[:20], **LAYERS))
        close(first.hidden_states, expected, slice(20))
        one = executor.decode(DecodeInput([tokens[20]], first.kv_cache, **LAYERS))
        close(one.hidden_state, expected, slice(20, 21))
        asked = ({}, {"return_hidden_states": True}, LAYERS)
        none, final, layers = executor.forward_verify(
            [DecodeInput([token], one.kv_cache, **more) for token, more in zip(tokens[21:], asked, strict=False)]
        )
        assert none.hidden_state is None and final.hidden_state.shape == (1, executor.info.hidden_size)
        close(layers.hidden_state, expected, slice(23, 24))
        mixed = executor.batch_prefill([PrefillInput(tokens[:5]), PrefillInput(tokens, **LAYERS)])
        assert mixed[0].hidden_states is None
        close(mixed[1].hidden_states, expected, slice(None))


@contract("1.PrefillOutput")
def test_native_kernels_name_the_way_out() -> None:
    require_native()
    with load_executor(directory_of(find("qwen2")), kernels="native", kv_capacity=256) as executor:
        handle = executor.prefill([1, 2]).kv_cache
        asked = ({"return_hidden_states": "layers"}, {"return_attention_weights": True})
        calls = [lambda more=more: executor.prefill(PrefillInput([1], **more)) for more in asked]
        calls += [lambda more=more: executor.decode(DecodeInput([1], handle, **more)) for more in asked]
        for call in calls:
            with pytest.raises(Unsupported, match='kernels="reference"'):
                call()
        for more in ({"hidden": Hidden.LAYERS}, {"attention_weights": True}):
            span = span_of({"cache_id": "s", "start": 0, "tokens": (1,), "want": Want.LOGITS, **more})
            (error,) = executor.submit(StepBatch((span,))).result().results
            assert isinstance(error, Unsupported) and 'kernels="reference"' in str(error)


@contract("1.PrefillOutput")
def test_a_model_by_hand_returns_logits_only() -> None:
    executor = make_llm().executor
    for more in (LAYERS, {"return_hidden_states": True}, {"return_attention_weights": True}):
        with pytest.raises(Unsupported):
            executor.prefill(PrefillInput([1], **more))


PADDED = find("llama3")


@contract("1.PrefillInput")
@contract("2.batch_prefill")
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prompts_have_the_logits_of_transformers(side: str) -> None:
    rows, masks = [], []
    for number, count in enumerate((5, 12, 9)):
        real, pad = tokens_of(PADDED, count, seed=number), [0] * (12 - count)
        rows.append([*pad, *real] if side == "left" else [*real, *pad])
        masks.append([*pad, *[1] * count] if side == "left" else [*[1] * count, *pad])
    positions = (np.array(masks).cumsum(axis=1) - 1).clip(0)
    with torch.no_grad():
        inputs = {"attention_mask": torch.tensor(masks), "position_ids": torch.tensor(positions)}
        expected = model_of(PADDED).float()(torch.tensor(rows), **inputs).logits.numpy()
    with load_executor(directory_of(PADDED), kernels="reference", dtype="float32", kv_capacity=512) as executor:
        prompts = [
            PrefillInput(np.array(row), np.array(mask), at, logits="all")
            for row, mask, at in zip(rows, masks, positions, strict=True)
        ]
        for output, logits, mask in zip(executor.batch_prefill(prompts), expected, masks, strict=True):
            wanted = logits[np.array(mask) == 1]
            np.testing.assert_allclose(output.logits[0], wanted, atol=1e-4 * np.abs(wanted).max())
            assert output.kv_cache.sequence_length == sum(mask)
