"""Serving from a pool with a quarter of the required pages: no request fails or starves, no bit changes."""

from __future__ import annotations

from functools import cache

import pytest

from fakes import admit_all
from ferrum import LLM, SamplingParams
from ferrum.client.request_output import RequestOutput
from ferrum.scheduler import admission
from ferrum.scheduler.planner import Planner
from ferrum.scheduler.sequence import Sequence
from ferrum.scheduler.step_plan import OpenStep
from tiny import directory_of, find, tokens_of

CASE = "qwen3-windows"
REQUESTS = 16
PROMPT, OUTPUT = 150, 100
DEMAND = REQUESTS * (PROMPT + OUTPUT)


def served(
    kv_capacity: int, *, prefix_cache: bool, policy: str = "fcfs", swap_gib: int = 0
) -> list[tuple[object, ...]]:
    prompts = [tokens_of(find(CASE), PROMPT - index % 5, seed=index // 2) for index in range(REQUESTS)]
    params = [
        SamplingParams(
            temperature=0.8 * (index % 3 > 0),
            seed=index,
            max_tokens=OUTPUT,
            ignore_eos=True,
            logprobs=1,
            prompt_logprobs=0 if index % 4 == 3 else None,
            presence_penalty=0.5 * (index % 2),
        )
        for index in range(REQUESTS)
    ]
    options = {"kernels": "auto", "dtype": "float32", "kv_capacity": kv_capacity, "max_batch_size": REQUESTS}
    with LLM(
        str(directory_of(find(CASE))), prefix_cache=prefix_cache, policy=policy, swap_gib=swap_gib, **options
    ) as llm:
        return [told(output) for output in llm.generate(prompts, params, use_tqdm=False)]


@cache
def unpressed() -> list[tuple[object, ...]]:
    return served(DEMAND + REQUESTS * 64, prefix_cache=False)


def told(output: RequestOutput) -> tuple[object, ...]:
    (choice,) = output.outputs
    return choice.finish_reason, choice.token_ids, choice.logprobs, output.prompt_logprobs


@pytest.fixture
def overcommitted(monkeypatch: pytest.MonkeyPatch) -> list[Sequence]:
    """Admit every request, so that pages run out; return the preempted sequences."""
    lost: list[Sequence] = []
    preempt = Planner._preempt

    def noted(planner: Planner, victim: Sequence, step: OpenStep) -> None:
        lost.append(victim)
        preempt(planner, victim, step)

    monkeypatch.setattr(Planner, "_preempt", noted)
    monkeypatch.setattr(admission, "growth_reserve", admit_all)
    return lost


def test_a_quarter_of_the_pages_gives_the_same_answers() -> None:
    assert {finish for finish, *_ in unpressed()} == {"length"}
    assert served(DEMAND // 4, prefix_cache=True) == unpressed()


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_answers_are_the_same_when_pages_run_out(
    overcommitted: list[Sequence], prefix_cache: bool, policy: str
) -> None:
    assert served(DEMAND // 4, prefix_cache=prefix_cache, policy=policy) == unpressed()
    assert overcommitted


def test_swapped_pages_are_restored_unchanged(overcommitted: list[Sequence]) -> None:
    assert served(DEMAND // 4, prefix_cache=True, swap_gib=1) == unpressed()
    assert overcommitted
