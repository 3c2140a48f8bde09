"""A second backend serves requests: the engine's tests, and what only rows of another kind can show."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from test_engine_real import (  # noqa: F401 - the tests themselves, on the toy backend
    COMPANY,
    llm,
    one_by_one,
    test_a_request_that_fails_midway_fails_alone,
    test_a_stop_string_cuts_text_ids_log_probabilities_and_usage,
    test_log_probabilities_are_those_of_the_raw_logits,
    test_scores_are_the_log_softmax_of_transformers,
    test_streamed_deltas_add_up_to_the_output,
)
from test_engine_real import open_llm as open_on_toy
from test_engine_real import run as generated
from test_engine_real import test_sampled_results_do_not_depend_on_how_they_are_served as equal_however_served

from ferrum.core.params import SamplingParams
from ferrum.core.step import Rows as Wanted
from ferrum.core.step import Sampling, Score, Span, SpanExtras, SpanResult, StepBatch, Want
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime import load
from ferrum.runtime.backend import ChosenKernels
from ferrum.sampling.backend_sampler import sampler_of
from ferrum.verbs.load_executor import load_executor
from tiny import directory_of, find, tokens_of
from toy_backend import Rows, ToyKernels, toy_backend

CASE = find("qwen3-windows")


@pytest.fixture(scope="module", autouse=True)
def models_load_on_the_toy_backend() -> Iterator[None]:
    with toy_backend():
        yield


@pytest.mark.parametrize("served", ["small steps", "a pool that preempts"])
def test_sampled_results_do_not_depend_on_serving(
    one_by_one: list[object],  # noqa: F811 - the fixture
    served: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    equal_however_served(one_by_one, COMPANY[served], monkeypatch)


def verified() -> SpanResult:
    """Return the result of drafts whose verification takes two passes."""
    prompt = tokens_of(CASE, 20)
    params = SamplingParams(temperature=0.9, top_p=0.9, logprobs=3, repetition_penalty=1.2)
    sampling = Sampling(params, seed=5, prompt_length=20, history=prompt)
    scored = Span("s", 0, tuple(prompt[:-1]), Want.NONE, extras=SpanExtras(score=Score(tuple(prompt[1:]), 2)))
    drafted = Span("s", 19, (prompt[-1], 17, 3, 99, 3), rows=Wanted.ALL, sampling=sampling, extras=SpanExtras(drafts=4))
    with load_executor(directory_of(CASE), max_rows=3, max_batch_size=3, kv_capacity=256) as executor:
        (scores,) = executor.submit(StepBatch((scored,))).result().results
        assert len(scores.scores) == 19
        (result,) = executor.submit(StepBatch((drafted,))).result().results
    return result


def test_drafts_verified_in_two_passes_keep_rows_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = verified()
    monkeypatch.setattr(load, "choose_kernels", lambda *_, **__: ChosenKernels(ReferenceKernels()))
    assert ours == verified()


def test_rows_of_the_toy_refuse_to_be_numpys_and_end_with_the_step() -> None:
    rows = Rows(np.ones((2, 3), np.float32))
    for convert in (np.asarray, np.isfinite, lambda x: np.float32(1) + x):
        with pytest.raises(TypeError):
            convert(rows)
    with load_executor(directory_of(CASE), kv_capacity=256) as executor:
        assert executor.traits.backend == "toy" and not isinstance(executor.lm.kernels, ReferenceKernels)
        seen: list[Rows] = []
        submit = executor.lm.replay.submit
        executor.lm.replay.submit = lambda *step: seen.append(submit(*step).logits) or submit(*step)
        executor.submit(StepBatch((Span("s", 0, (1, 2, 3), Want.LOGITS),))).result()
        with pytest.raises(AssertionError, match="after the next step"):
            executor.lm.kernels.host(seen[0])


def test_a_backend_without_a_sampler_samples_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    wish = {"temperature": 0.8, "seed": 3, "max_tokens": 12, "logprobs": 2, "presence_penalty": 0.5, "n": 2}
    with open_on_toy() as model:
        own = generated(model, "the rain", **wish)[0].outputs
    monkeypatch.setattr(ToyKernels, "sampler", lambda _: None)
    assert sampler_of(ToyKernels()).held_bytes(1) == 0
    with open_on_toy() as model:
        assert generated(model, "the rain", **wish)[0].outputs == own


def test_only_the_choice_of_a_backend_decides_about_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def chosen(device: str, *_: object, **__: object) -> ChosenKernels:
        asked.append(device)
        return ChosenKernels(ToyKernels())

    monkeypatch.setattr(load, "choose_kernels", chosen)
    with load_executor(directory_of(CASE), device="cuda", kv_capacity=256) as executor:
        assert executor.traits.backend == "toy" and asked == ["cuda"]


def test_the_pool_of_a_device_is_sized_by_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 1 << 20
    monkeypatch.setattr(ToyKernels, "device_memory", lambda _: free, raising=False)
    monkeypatch.setattr("ferrum.runtime.memory.available_memory", lambda: pytest.fail("the host's memory"))
    with load_executor(directory_of(CASE)) as executor:
        assert free // 8 < executor.memory_plan.kv_pool <= free // 4
