"""Draws with each proposer follow the model's distribution: a chi-squared test over the tokens after a prompt."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest

from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.speculative.draft_model import DraftModel
from ferrum.speculative.ngram import NGramProposer
from ferrum.speculative.predicted_output import PredictionProposer
from ferrum.speculative.speculator import Speculator
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from fixed_costs import SetCosts
from tiny import directory_of, find

ALLOWED = (11, 12, 13, 14, 15)
PROMPT = (11, 12, 13, 11, 14, 11, 12, 15, 15, 12, 14, 13, 13, 14, 12, 11, 15, 11, 13, 12, 11, 12, 13)
PARAMS = SamplingParams(temperature=1.3, allowed_token_ids=ALLOWED, max_tokens=4, ignore_eos=True)
TOGETHER = 16
SURE = 4.5
"""Standard deviations from the mean of chi-squared; exceeded by chance three times in a million."""


def load(case: str) -> LocalExecutor:
    return load_executor(directory_of(find(case)), max_batch_size=TOGETHER, max_sequence_length=64, kv_capacity=4096)


def speculator(proposer: str) -> Speculator:
    """Return a speculator for free rows, which verifies nearly every draft."""
    if proposer == "model":
        model = DraftModel(load("qwen3-gqa7"), SetCosts(0.0), SetCosts(0.0))
        return Speculator(SetCosts(), max_draft=3, proposers=[], model=model)
    lookup = {"ngram": NGramProposer, "prediction": PredictionProposer}[proposer]
    return Speculator(SetCosts(), max_draft=3, proposers=[lookup()])


def answers(executor: LocalExecutor, drafter: Speculator, count: int) -> list[tuple[int, ...]]:
    """Return `count` answers to the prompt with different seeds."""
    scheduler = Scheduler(
        executor.lm.pages,
        policy=POLICIES["fcfs"],
        max_tokens_per_step=512,
        max_sequences=TOGETHER,
        max_sequence_length=64,
        drafter=drafter,
    )
    found: dict[str, tuple[int, ...]] = {}
    seeds = iter(range(count))
    while True:
        for seed in islice(seeds, max(0, TOGETHER - scheduler.num_running)):
            prediction = tuple(ALLOWED[(seed + place) % len(ALLOWED)] for place in range(4))
            scheduler.add(Request(str(seed), PROMPT, PARAMS, seed, prediction=prediction))
        plan = scheduler.plan()
        if plan is None:
            return list(found.values())
        for event in scheduler.commit(plan, executor.submit(plan.batch).result()):
            assert event.error is None
            found[event.request_id] = found.get(event.request_id, ()) + event.token_ids


def chi_squared(executor: LocalExecutor, found: list[tuple[int, ...]]) -> tuple[float, int]:
    """Return the statistic over all frequent contexts, and its degrees of freedom."""
    following: dict[tuple[int, ...], Counter[int]] = {}
    for answer in found:
        for place, token in enumerate(answer):
            following.setdefault(answer[:place], Counter())[token] += 1
    total, freedom = 0.0, 0
    for context, counts in following.items():
        logits = executor.forward(np.array([[*PROMPT, *context]]))[0, -1, list(ALLOWED)].astype(np.float64) / 1.3
        expected = np.exp(logits - logits.max())
        expected *= counts.total() / expected.sum()
        if expected.min() >= 5:
            seen = np.array([counts[token] for token in ALLOWED])
            total += float(((seen - expected) ** 2 / expected).sum())
            freedom += len(ALLOWED) - 1
    return total, freedom


def check(proposer: str, draws: int, least: Callable[[int], bool]) -> None:
    executor, drafter = load("qwen3"), speculator(proposer)
    statistic, freedom = chi_squared(executor, answers(executor, drafter, draws // PARAMS.max_tokens))
    counts = drafter.counts
    assert 0 < counts.accepted_tokens < counts.draft_tokens, "there were right guesses and wrong ones"
    assert least(freedom) and abs(statistic - freedom) < SURE * math.sqrt(2 * freedom)


@pytest.mark.parametrize("proposer", ["ngram", "prediction", "model"])
def test_some_draws(proposer: str) -> None:
    check(proposer, 4_000, lambda freedom: freedom >= 12)


@pytest.mark.soak
@pytest.mark.parametrize("proposer", ["ngram", "prediction", "model"])
def test_a_hundred_thousand_draws(proposer: str) -> None:
    check(proposer, 100_000, lambda freedom: freedom >= 100)
