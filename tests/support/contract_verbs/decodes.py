"""The verbs decode, batch_decode, forward_verify and speculative_decode."""

from __future__ import annotations

import numpy as np
import pytest

from contract_kit import OTHER, POISON, PROMPT, same
from contract_verbs.kit import begin, contract, truth, usable
from ferrum.core.errors import ContextOverflow, InvalidToken, RequestError, StaleHandle, StepError, Unsupported
from ferrum.verbs.io_types import DecodeInput, PrefillInput
from ferrum.verbs.model_executor import ModelExecutor


@contract("1.DecodeOutput")
@contract("2.decode")
def test_a_decode_equals_the_next_position(executor):
    handle, tokens = begin(executor), list(PROMPT)
    for token in (5, 6, 7):
        output = executor.decode(DecodeInput([[token]], handle))
        tokens.append(token)
        assert output.logits.shape == (1, executor.info.vocab_size)
        same(output.logits, truth(executor, tokens)[-1:])
        handle = output.kv_cache
        assert handle.sequence_length == len(tokens)


@contract("2.batch_decode")
def test_a_batch_of_decodes_takes_one_pass_and_keeps_its_order(kit, executor):
    prompts = [PROMPT, OTHER, [9], PROMPT[:5]]
    handles = [begin(executor, prompt) for prompt in prompts]
    before = kit.passes()
    outputs = executor.batch_decode([DecodeInput([40 + i], handle) for i, handle in reversed([*enumerate(handles)])])
    assert kit.passes() == before + 1
    for i, output in zip((3, 2, 1, 0), outputs, strict=True):
        same(output.logits, truth(executor, [*prompts[i], 40 + i])[-1:])
        assert output.kv_cache.cache_id == handles[i].cache_id


@contract("2.forward_verify")
def test_verified_rows_equal_decodes(kit, executor):
    handle, drafts = begin(executor), [5, 6, 7, 8]
    before = kit.passes()
    outputs = executor.forward_verify([DecodeInput([token], handle) for token in drafts])
    assert kit.passes() == before + 1
    for row, output in enumerate(outputs):
        same(output.logits, truth(executor, PROMPT + drafts)[len(PROMPT) + row][None])
        assert output.kv_cache.sequence_length == len(PROMPT) + row + 1
    assert len({output.kv_cache.generation for output in outputs}) == 1
    for needs_the_whole in (
        lambda: executor.decode(DecodeInput([1], outputs[1].kv_cache)),
        lambda: executor.fork(outputs[1].kv_cache),
    ):
        with pytest.raises(StaleHandle):
            needs_the_whole()
    back = executor.truncate_kv(outputs[1].kv_cache, outputs[1].kv_cache.sequence_length)
    usable(executor, back, PROMPT + drafts[:2])


@contract("2.forward_verify")
def test_a_verification_needs_one_sequence(executor):
    one, two = begin(executor), begin(executor)
    with pytest.raises(RequestError):
        executor.forward_verify([DecodeInput([1], one), DecodeInput([2], two)])
    with pytest.raises(RequestError):
        executor.forward_verify([DecodeInput([1], one), DecodeInput([2], one, [[7]])])
    usable(executor, one, PROMPT)


def greedy(executor: ModelExecutor, tokens: list[int], count: int) -> list[int]:
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(truth(executor, tokens)[-1].argmax()))
    return tokens[-count:]


@contract("1.SpeculativeDecodeOutput")
@contract("2.speculative_decode")
@contract("5.speculation is exact")
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_drafts_are_accepted_while_they_are_the_greedy_choice(executor, right):
    chosen = greedy(executor, [*PROMPT, 5], 3)
    drafts = [token if i < right else (token + 1) % 100 for i, token in enumerate(chosen)]
    output = executor.speculative_decode(DecodeInput([5], begin(executor)), drafts)
    assert output.acceptance_count == right and list(output.accepted_tokens) == drafts[:right]
    tokens = [*PROMPT, 5, *drafts[:right]]
    same(output.next_logits, truth(executor, tokens)[-1:])
    assert output.kv_cache.sequence_length == len(PROMPT) + 1 + right
    usable(executor, output.kv_cache, tokens)


@contract("2.speculative_decode")
def test_speculation_without_drafts_is_a_decode(executor):
    output = executor.speculative_decode(DecodeInput([5], begin(executor)), [])
    assert output.accepted_tokens == ()
    same(output.next_logits, truth(executor, [*PROMPT, 5])[-1:])


@contract("2.speculative_decode")
def test_failed_speculation_changes_nothing(executor):
    handle = begin(executor)
    with pytest.raises(StepError):
        executor.speculative_decode(DecodeInput([5], handle), [1, POISON])
    with pytest.raises(InvalidToken):
        executor.speculative_decode(DecodeInput([5], handle), [-1])
    with pytest.raises(Unsupported):
        executor.speculative_decode(DecodeInput([5], handle, return_hidden_states=True), [1])
    usable(executor, handle, PROMPT)


@contract("2.speculative_decode")
def test_invalid_speculation_is_refused_by_field_and_position(make):
    kit = make(max_sequence_length=9)
    executor = kit.executor
    handle, unknown = begin(executor), executor.info.vocab_size
    before = kit.passes()
    for token, drafts, error, param, words in [
        (unknown, [1], InvalidToken, "input_ids", f"{unknown} at position 0"),
        (5, [unknown], InvalidToken, "draft_tokens", f"{unknown} at position 0"),
        (5, [1, unknown], InvalidToken, "draft_tokens", f"{unknown} at position 1"),
        (5, [1, 2], ContextOverflow, "draft_tokens", "10 tokens"),
    ]:
        with pytest.raises(error, match=words) as caught:
            executor.speculative_decode(DecodeInput([token], handle), drafts)
        assert caught.value.param == param
    full = executor.prefill(PrefillInput([1, 2], kv_cache=handle)).kv_cache
    with pytest.raises(ContextOverflow) as overflow:
        executor.speculative_decode(DecodeInput([5], full), [1])
    assert overflow.value.param == "input_ids"
    assert kit.passes() == before + 1
    usable(executor, executor.truncate_kv(full, len(PROMPT)), PROMPT)


@contract("2.speculative_decode")
def test_an_invalid_threshold_is_refused_before_anything_runs(kit, executor):
    handle = begin(executor)
    before = kit.passes()
    for threshold in (1.5, -0.1, float("nan"), 10**400, "x", True):
        for drafts in ([1, 2], []):
            with pytest.raises(RequestError, match="acceptance_threshold"):
                executor.speculative_decode(DecodeInput([5], handle), drafts, threshold)
    assert kit.passes() == before
    usable(executor, handle, PROMPT)


@contract("2.speculative_decode")
def test_a_threshold_accepts_likely_drafts(executor):
    handle = begin(executor)
    row = truth(executor, [*PROMPT, 5])[-1].astype(np.float64)
    second = int(np.argsort(-row)[1])
    ratio = float(np.exp(row[second] - row.max()))
    output = executor.speculative_decode(DecodeInput([5], handle), [second], ratio * 0.9)
    assert output.accepted_tokens == (second,)
    back = executor.truncate_kv(output.kv_cache, len(PROMPT))
    assert executor.speculative_decode(DecodeInput([5], back), [second], min(1.0, ratio * 1.1)).accepted_tokens == ()
