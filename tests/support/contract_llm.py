"""Section 3 of the contract for any `DecoderOnlyLLM`: a module that imports these tests defines the fixture `llm`."""

from __future__ import annotations

import numpy as np
import pytest

from contract_kit import OTHER, POISON, PROMPT, same
from ferrum.contract.decoder_llm import DecoderOnlyLLM, LlmRuntimeConfig, LogitsPolicy, UnifiedItem
from ferrum.core.errors import (
    ContextOverflow,
    InvalidToken,
    KvExhausted,
    RequestError,
    StepError,
    UnknownSequence,
    Unsupported,
)

contract = pytest.mark.contract


def truth(llm: DecoderOnlyLLM, tokens: list[int]) -> np.ndarray:
    """Return [S, V] of the tokens alone, in one pass."""
    logits = llm.forward_verify("truth", tokens)
    llm.release("truth")
    return logits


@contract("3.config")
def test_the_config_round_trips_through_json(llm):
    config = llm.config
    assert LlmRuntimeConfig.from_json(config.to_json()) == config
    assert set(config.to_dict()) == {
        "hidden_size",
        "num_layers",
        "num_kv_heads",
        "head_dim",
        "vocab_size",
        "max_seq_len",
    }
    assert llm.prefill("a", PROMPT).shape == (config.vocab_size,)


@contract("3.prefill")
@contract("3.decode")
def test_prefill_and_decode_equal_one_pass(llm):
    expected = truth(llm, [*PROMPT, 5, 6])
    same(llm.prefill("a", PROMPT[:3]), expected[2])
    same(llm.prefill("a", PROMPT[3:]), expected[6])
    assert llm.length("a") == 7
    same(llm.decode("a", 5, 7), expected[7])
    same(llm.decode("a", 6, 8), expected[8])


@contract("3.decode")
def test_the_position_is_checked_against_the_store(llm):
    llm.prefill("a", PROMPT)
    for pos in (6, 8, 0, 7.0, None, "7", True):
        with pytest.raises(RequestError):
            llm.decode("a", 5, pos)
    with pytest.raises(UnknownSequence):
        llm.decode("b", 5, 3)
    assert llm.length("a") == 7 and llm.length("b") == 0
    llm.decode("a", 5, np.int64(7))


@contract("3.decode")
@contract("3.errors")
def test_tokens_must_be_integers(llm):
    llm.prefill("a", PROMPT)
    for token in (1.5, 5.0, True, "x", None):
        for call in (lambda token: llm.decode("a", token, 7), lambda token: llm.prefill("b", [1, token])):
            with pytest.raises(InvalidToken):
                call(token)
    assert llm.length("a") == 7 and llm.length("b") == 0
    same(llm.decode("a", np.int64(5), 7), truth(llm, [*PROMPT, 5])[-1])


@contract("3.decode_batch")
def test_a_batch_keeps_order_and_bits(llm):
    llm.prefill("a", PROMPT)
    llm.prefill("b", OTHER)
    outputs = llm.decode_batch([("b", 5, 4), ("a", 6, 7)])
    same(outputs[0], truth(llm, [*OTHER, 5])[-1])
    same(outputs[1], truth(llm, [*PROMPT, 6])[-1])
    assert llm.decode_batch([]) == []
    with pytest.raises(RequestError):
        llm.decode_batch([("a", 1, 8), ("a", 2, 9)])


@contract("3.unified_forward")
def test_a_mixture_of_items_equals_single_passes(llm):
    llm.prefill("a", PROMPT)
    items = [
        UnifiedItem("a", (5,), 7),
        UnifiedItem("b", tuple(OTHER), 0, LogitsPolicy.NONE),
        UnifiedItem("c", tuple(PROMPT), 0, LogitsPolicy.ALL),
    ]
    one, nothing, every = llm.unified_forward(items)
    same(one, truth(llm, [*PROMPT, 5])[-1:])
    assert nothing is None
    same(every, truth(llm, PROMPT))
    assert [llm.length(name) for name in "abc"] == [8, 4, 7]
    assert llm.unified_forward([]) == []


@contract("3.unified_forward")
@contract("3.errors")
def test_an_error_leaves_every_sequence_as_it_was(llm):
    llm.prefill("a", PROMPT)
    with pytest.raises(StepError):
        llm.unified_forward([UnifiedItem("a", (5, 6), 7), UnifiedItem("b", (POISON,), 0)])
    with pytest.raises(InvalidToken):
        llm.unified_forward([UnifiedItem("a", (5, 6), 7), UnifiedItem("b", (llm.config.vocab_size,), 0)])
    assert llm.length("a") == 7 and llm.length("b") == 0
    same(llm.decode("a", 5, 7), truth(llm, [*PROMPT, 5])[-1])


@contract("3.errors")
def test_limits_have_their_own_errors(llm):
    with pytest.raises(ContextOverflow):
        llm.prefill("a", [1] * (llm.config.max_seq_len + 1))
    names = (f"s{number}" for number in range(1000))
    with pytest.raises(KvExhausted):
        for name in names:
            llm.prefill(name, PROMPT)
    assert 0 < 7 * (int(next(names)[1:]) - 2) <= llm.kv_capacity()


@contract("3.forward_verify")
def test_verified_rows_equal_decodes(llm):
    expected = truth(llm, [*PROMPT, 5, 6, 7])
    llm.prefill("a", PROMPT)
    same(llm.forward_verify("a", [5, 6, 7]), expected[7:])
    assert llm.length("a") == 10


@contract("3.truncate_kv")
def test_truncation_equals_never_having_gone_further(llm):
    llm.prefill("a", PROMPT + OTHER)
    llm.truncate_kv("a", 3)
    same(llm.decode("a", 5, 3), truth(llm, [*PROMPT[:3], 5])[-1])
    for length in (9, 1.5, True):
        with pytest.raises(RequestError):
            llm.truncate_kv("a", length)
    assert llm.length("a") == 4
    with pytest.raises(UnknownSequence):
        llm.truncate_kv("b", 0)


@contract("3.fork")
@contract("3.release")
def test_forks_are_independent_and_release_is_idempotent(llm):
    llm.prefill("a", PROMPT)
    llm.fork("a", "b")
    same(llm.decode("a", 5, 7), truth(llm, [*PROMPT, 5])[-1])
    llm.release("a")
    llm.release("a")
    same(llm.decode("b", 6, 7), truth(llm, [*PROMPT, 6])[-1])
    assert llm.length("a") == 0
    with pytest.raises(UnknownSequence):
        llm.fork("a", "c")


@contract("3.reset")
@contract("3.kv_capacity")
def test_reset_frees_everything(llm):
    capacity = llm.kv_capacity()
    for name in "ab":
        llm.prefill(name, PROMPT)
    llm.reset()
    assert llm.length("a") == llm.length("b") == 0
    assert llm.kv_capacity() == capacity > 0


@contract("3.set_lora_adapter")
def test_an_adapter_that_is_not_loaded_is_refused(llm):
    llm.prefill("a", PROMPT)
    with pytest.raises((Unsupported, RequestError), match="mine"):
        llm.set_lora_adapter("a", "mine")
