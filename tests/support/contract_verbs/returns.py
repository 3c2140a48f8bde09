"""Optional results: hidden states and attention weights."""

from __future__ import annotations

import numpy as np
import pytest

from contract_kit import PROMPT, same
from contract_verbs.kit import contract
from ferrum.core.errors import Unsupported
from ferrum.verbs.io_types import DecodeInput, PrefillInput


@contract("1.PrefillInput")
@contract("1.DecodeOutput")
def test_hidden_states_are_returned_if_asked_for(kit, executor):
    if not kit.hidden:
        with pytest.raises(Unsupported):
            executor.prefill(PrefillInput([PROMPT], return_hidden_states=True))
        return
    output = executor.prefill(PrefillInput([PROMPT], return_hidden_states=True))
    assert output.hidden_states.shape == (1, 7, executor.info.hidden_size)
    handle = output.kv_cache
    verified = executor.forward_verify([DecodeInput([5], handle, return_hidden_states=True), DecodeInput([6], handle)])
    assert verified[0].hidden_state.shape == (1, executor.info.hidden_size) and verified[1].hidden_state is None
    back = executor.truncate_kv(verified[0].kv_cache, 7)
    alone = executor.decode(DecodeInput([5], back, return_hidden_states=True))
    same(alone.hidden_state, verified[0].hidden_state)


@contract("1.PrefillInput")
@contract("1.DecodeOutput")
def test_attention_weights_are_distributions_or_refused(executor):
    given = PrefillInput([PROMPT], return_attention_weights=True)
    if not executor.traits.attention_weights:
        with pytest.raises(Unsupported, match="return_attention_weights"):
            executor.prefill(given)
        assert executor.cache_metrics_snapshot().sequences == 0
        return
    output = executor.prefill(given)
    decoded = executor.decode(DecodeInput([5], output.kv_cache, return_attention_weights=True))
    for weights, shape in ((output.attention_weights, (7, 7)), (decoded.attention_weights, (1, 8))):
        assert len(weights) == executor.info.num_layers - sum(each.num_layers for each in executor.info.state_layers)
        for layer in weights:
            assert layer.shape == (executor.info.num_heads, *shape)
            np.testing.assert_allclose(layer.sum(axis=-1), 1.0, atol=1e-2)
    assert np.triu(output.attention_weights[0], 1).max() == 0.0
