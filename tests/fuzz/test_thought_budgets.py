"""A budget closes the thought within one token, whatever the seed, the prompt, the sampling and the drafts."""

from __future__ import annotations

import logging
import random
import re

import pytest

from ferrum import LLM, SamplingParams
from ferrum.client.request_output import RequestOutput
from ferrum.core.guidance import Grammar, Guidance
from fixed_costs import SetCosts
from guided_kit import TOKEN, Job, generate, thought
from outcomes import essence
from tiny_with_tokenizer import spoken

CLOSE = TOKEN[">"]


def random_job(seed: int) -> tuple[int, Job]:
    """Return a budget and a job whose prompt and likely tokens repeat, so that n-grams propose drafts."""
    draw = random.Random(seed)
    budget = draw.choice([0, 1, 2, 3, 5, 8, 13, 21])
    prompt = "".join(draw.choices("abc ", k=draw.randrange(1, 4))) * draw.randrange(2, 9)
    likely = {TOKEN[letter]: draw.choice([4.0, 30.0]) for letter in draw.sample("abcdef", 2)}
    params = SamplingParams(
        temperature=draw.choice([0.0, 0.6, 1.0, 1.5]),
        top_p=draw.choice([1.0, 0.9]),
        logit_bias=likely | draw.choice([{}, {CLOSE: 3.0}, {CLOSE: -100.0}]),
        max_tokens=budget + 12,
        seed=seed,
    )
    limits = Guidance(thought=thought(budget, end=">"), grammar=Grammar(source='start: "done"'))
    return budget, Job(prompt, params, limits)


def run(jobs: list[Job], speculative: str | None) -> list[RequestOutput]:
    with LLM(str(spoken("qwen3")), dtype="float32", speculative=speculative) as llm:
        return generate(llm, jobs)


@pytest.mark.parametrize("count", [60, pytest.param(3_000, marks=pytest.mark.soak)])
def test_thoughts_close_within_one_token_of_their_budgets(
    count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("ferrum.engine.recipe.StepCosts", SetCosts)
    budgets, jobs = zip(*map(random_job, range(count)), strict=True)
    plain, drafted = run(list(jobs), None), run(list(jobs), "ngram")
    assert essence(plain) == essence(drafted)
    for budget, job, output in zip(budgets, jobs, drafted, strict=True):
        (choice,) = output.outputs
        if choice.finish_reason == "stop" and CLOSE not in choice.token_ids:  # an end token within the thought
            assert len(choice.token_ids) <= budget, (job, choice)
            continue
        assert choice.token_ids.index(CLOSE) <= budget, (job, choice)
        assert choice.text.partition(">")[2] == "done", (job, choice)
    reached = [
        budget for budget, output in zip(budgets, drafted, strict=True) if output.outputs[0].text.find(">") == budget
    ]
    assert len(reached) > count / 2
    accepted = [int(each) for each in re.findall(r"(\d+) of \d+ draft tokens were accepted", caplog.text)]
    assert accepted and max(accepted) > count
