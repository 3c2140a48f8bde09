"""The verbs prefill, batch_prefill and forward, chunks included."""

from __future__ import annotations

import numpy as np
import pytest

from contract_kit import OTHER, POISON, PROMPT, same
from contract_verbs.kit import begin, contract, truth
from ferrum.core.errors import InvalidToken, RequestError, StepError
from ferrum.verbs.io_types import DecodeInput, PrefillInput


@contract("1.PrefillOutput")
@contract("2.prefill")
def test_a_prefill_returns_the_last_position(kit, executor):
    output = executor.prefill(PrefillInput(np.array([PROMPT])))
    assert output.logits.shape == (1, 1, executor.info.vocab_size)
    same(output.logits[0], truth(executor, PROMPT)[-1:])
    same(output.last_token_logits(), output.logits[:, -1])
    assert output.kv_cache.sequence_length == len(PROMPT)
    assert output.hidden_states is None and output.attention_weights is None


@contract("2.prefill")
def test_all_positions_are_returned_on_request(executor):
    output = executor.prefill(PrefillInput(PROMPT, logits="all"))
    same(output.logits[0], truth(executor, PROMPT))


@contract("2.prefill")
def test_new_sequences_are_numbered_and_names_never_reused(executor):
    names = [begin(executor).cache_id]
    executor.release_cache(names[0])
    with pytest.raises(InvalidToken):
        executor.prefill(PrefillInput([[executor.info.vocab_size]]))
    names += [begin(executor).cache_id for _ in range(2)]
    numbers = [int(name.removeprefix("llm-cache-")) for name in names]
    assert names[0] == "llm-cache-0" and numbers == sorted(set(numbers))


@contract("2.prefill")
@pytest.mark.parametrize("cuts", [(1, 1, 5), (3, 4), (6, 1), (1,) * 7])
def test_chunks_give_the_bits_of_one_prefill(executor, cuts):
    handle, position = None, 0
    for size in cuts:
        given = PrefillInput([PROMPT[position : position + size]], logits="all")
        output = executor.prefill(given if handle is None else given.with_kv_cache(handle))
        same(output.logits[0], truth(executor, PROMPT)[position : position + size])
        assert handle is None or output.kv_cache.cache_id == handle.cache_id
        handle, position = output.kv_cache, position + size
        assert handle.sequence_length == position


@contract("2.batch_prefill")
def test_a_batch_takes_one_pass_and_changes_no_bits(kit, executor):
    handle = begin(executor, OTHER)
    before = kit.passes()
    inputs = [PrefillInput([PROMPT], logits="all"), PrefillInput([PROMPT[:3]], kv_cache=handle), PrefillInput([[9]])]
    outputs = executor.batch_prefill(inputs)
    assert kit.passes() == before + 1
    same(outputs[0].logits[0], truth(executor, PROMPT))
    same(outputs[1].logits[0], truth(executor, OTHER + PROMPT[:3])[-1:])
    same(outputs[2].logits[0], truth(executor, [9]))
    assert [output.kv_cache.sequence_length for output in outputs] == [7, 7, 1]


@contract("1.PrefillInput")
def test_several_prompts_in_one_input_are_refused(executor):
    with pytest.raises(RequestError, match="batch_prefill") as caught:
        executor.prefill(PrefillInput([PROMPT, PROMPT]))
    assert caught.value.param == "input_ids"


@contract("1.PrefillInput")
@contract("1.DecodeInput")
def test_trivial_masks_and_positions_are_accepted(executor):
    first = executor.prefill(PrefillInput([PROMPT], attention_mask=[[1] * 7], position_ids=np.arange(7)[None]))
    second = PrefillInput([OTHER], kv_cache=first.kv_cache).with_position_ids([[7, 8, 9, 10]])
    handle = executor.prefill(second.with_attention_mask([[1] * 11])).kv_cache
    same(executor.decode(DecodeInput([5], handle, [[11]])).logits, truth(executor, [*PROMPT, *OTHER, 5])[-1:])


@contract("1.PrefillInput")
@contract("2.batch_prefill")
@pytest.mark.parametrize(("left", "right"), [(2, 0), (0, 3), (1, 2)])
def test_padding_at_either_end_is_left_out(executor, left, right):
    expected, mask = truth(executor, [*PROMPT, *OTHER]), [*[0] * left, *[1] * 7, *[0] * right]
    padded = PrefillInput([99] * left + PROMPT + [99] * right, mask, logits="all")
    plain, first = executor.batch_prefill([PrefillInput(PROMPT, logits="all"), padded])
    same(first.logits, plain.logits)
    assert first.kv_cache.sequence_length == 7
    own = [*[0] * right, *[1] * 4, *[0] * left]
    chunk = [99] * right + OTHER + [99] * left
    positions = [*[0] * right, 7, 8, 9, 10, *[1] * left]
    for whole, base in ((own, first), ([*mask, *own], plain)):  # of the chunk, or of all tokens so far
        second = executor.prefill(PrefillInput(chunk, whole, positions, base.kv_cache))
        same(second.logits[0], expected[-1:])
        assert second.kv_cache.sequence_length == 11


@contract("1.PrefillInput")
@contract("1.DecodeInput")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_mask", [[0, 1, 1, 0, 1, 1, 0]]),
        ("attention_mask", [[1, 1, 2, 1, 1, 1, 1]]),
        ("attention_mask", [[0] * 7]),
        ("attention_mask", [[0] + [1] * 7]),
        ("attention_mask", [[1, 1]]),
        ("attention_mask", [[1] * 7, [0] * 7]),
        ("attention_mask", [[1] * 7] * 2),
        ("position_ids", [[1, 2, 3, 4, 5, 6, 7]]),
        ("position_ids", [[0, 1, 2, 3, 4, 5, 5]]),
        ("position_ids", [[0]]),
        ("position_ids", [[0, 0, 1, 2, 3, 4, 5]]),
        ("position_ids", [[0, 1, 2, 3, 4, 5, 6]] * 2),
    ],
)
def test_other_masks_and_positions_are_refused(executor, field, value):
    with pytest.raises(RequestError) as caught:
        executor.prefill(PrefillInput([PROMPT], **{field: value}))
    assert caught.value.param == field
    handle = begin(executor)
    with pytest.raises(RequestError) as caught:
        executor.decode(DecodeInput([1], handle, [[6]]))
    assert caught.value.param == "position_ids"


@contract("1.PrefillInput")
def test_an_unknown_token_is_refused_with_its_position(executor):
    unknown = executor.info.vocab_size
    with pytest.raises(InvalidToken, match=f"{unknown} at position 2"):
        executor.prefill(PrefillInput([[1, 2, unknown]]))


@contract("2.forward")
def test_forward_keeps_no_sequence(kit, executor):
    logits = executor.forward([PROMPT[:4], OTHER])
    assert logits.shape == (2, 4, executor.info.vocab_size)
    same(logits[1], truth(executor, OTHER))
    same(executor.forward(OTHER)[0], logits[1])
    assert executor.cache_metrics_snapshot().sequences == 0
    with pytest.raises(StepError):
        executor.forward([[1, POISON]])
    assert executor.cache_metrics_snapshot().sequences == 0
