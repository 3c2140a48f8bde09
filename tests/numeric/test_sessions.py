"""Sessions, forks and beams of a real model: the bits of fresh runs, and the beams of transformers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ferrum import LLM, SamplingParams
from ferrum.core.errors import ContextOverflow, RequestError
from tiny import directory_of, find, model_of, tokens_of

CASE = "qwen3"
WARM = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=9, logprobs=0)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(directory_of(find(CASE))), dtype="float32", kv_capacity=8192) as llm:
        yield llm


@pytest.fixture(scope="module")
def fresh() -> Iterator[LLM]:
    """The same model without a prefix cache."""
    with LLM(str(directory_of(find(CASE))), dtype="float32", kv_capacity=8192, prefix_cache=False) as llm:
        yield llm


def test_a_session_continues_like_one_prompt_and_computes_new_tokens_only(llm: LLM, fresh: LLM) -> None:
    session = llm.session(tokens_of(find(CASE), 150, seed=1))
    for _ in range(3):
        before = session.token_ids
        (alone,) = fresh.generate([before], WARM, use_tqdm=False)
        output = session.generate(WARM)
        assert (output.token_ids, output.logprobs) == (alone.outputs[0].token_ids, alone.outputs[0].logprobs)
        assert session.token_ids == (*before, *output.token_ids)
        session.append([5, 6, 7])
    (again,) = llm.generate([session.token_ids], WARM, use_tqdm=False)
    assert again.metrics.usage.cached_tokens == len(session) - 3 - 1, (
        "but for what is new, and the last token before it"
    )


def test_forks_and_edits_equal_fresh_runs(llm: LLM, fresh: LLM) -> None:
    base = llm.session(tokens_of(find(CASE), 100, seed=2))
    base.generate(WARM)
    forks = [base.fork() for _ in range(3)]
    forks[0].append([1, 2])
    forks[1].truncate(70).append([9])
    forks[2].truncate(64)
    grandchild = forks[1].fork().append([4])
    for session in (*forks, grandchild, base):
        (alone,) = fresh.generate([session.token_ids], WARM, use_tqdm=False)
        assert session.generate(WARM).token_ids == alone.outputs[0].token_ids


def test_a_refused_operation_leaves_the_session_unchanged(llm: LLM) -> None:
    session = llm.session([1, 2, 3])
    for call in (
        lambda: session.truncate(4),
        lambda: session.truncate("a"),
        lambda: session.generate(SamplingParams(n=2)),
        lambda: session.append("text without a tokenizer"),
        lambda: session.fork().append([10**9]).generate(WARM),
        lambda: llm.session().generate(WARM),
    ):
        with pytest.raises(RequestError):
            call()
    assert session.token_ids == (1, 2, 3)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize(
    ("width", "penalty", "ends"), [(1, 1.0, 1), (3, 1.0, 1), (4, 0.0, 2), (4, 2.0, 8), (5, -0.5, 8)]
)
def test_beams_are_those_of_transformers(llm: LLM, width: int, penalty: float, ends: int, early_stopping) -> None:
    prompt = tokens_of(find(CASE), 12, seed=width)
    stops = list(range(ends))
    llm.client.input_processor.eos_token_ids = tuple(stops)
    found = llm.beam_search([prompt], width, 8, length_penalty=penalty, early_stopping=early_stopping)[0]
    expected = model_of(find(CASE)).generate(
        torch.tensor([prompt]),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=8,
        length_penalty=penalty,
        early_stopping=early_stopping,
        do_sample=False,
        eos_token_id=stops,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    told = [tuple(row[len(prompt) :].tolist()) for row in expected.sequences]
    longest = max(len(beam.token_ids) for beam in found)
    assert [(*beam.token_ids, *[0] * (longest - len(beam.token_ids))) for beam in found] == told
    if width > 1:
        assert [beam.score for beam in found] == pytest.approx(expected.sequences_scores.tolist(), abs=1e-5)


def test_beams_beyond_the_context_are_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(ContextOverflow):
        llm.beam_search([[1] * 10], 2, llm.info.max_sequence_length)
    with pytest.raises(RequestError):
        llm.beam_search([[1]], 0)
