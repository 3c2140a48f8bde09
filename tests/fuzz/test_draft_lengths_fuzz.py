"""Draft lengths on simulated machines with noisy clocks, by drafters of every accuracy."""

from __future__ import annotations

from random import Random

import pytest

from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.scheduler.drafts import DraftRequest, StepLoad
from ferrum.scheduler.sequence import begin
from ferrum.scheduler.step_plan import StepCosts
from ferrum.speculative.speculator import Speculator
from fixed_proposers import Always

MAX_DRAFT = 8


class Machine:
    """A machine whose steps take 1 second and `row` per token, and a drafter with accuracy `right`."""

    def __init__(self, batch: int, row: float, right: float) -> None:
        self.random = Random(f"{batch} {row} {right}")
        self.row, self.right = row, right
        self.costs = StepCosts()
        self.sequences = [begin(Request(str(name), (1, 2), SamplingParams(), 0))[0] for name in range(batch)]
        self.speculator = Speculator(self.costs, max_draft=MAX_DRAFT, proposers=[Always(*[5] * MAX_DRAFT)])

    def seconds(self, rows: int) -> float:
        return 1 + self.row * rows

    def run(self, steps: int) -> float:
        """Return tokens per second, relative to no drafts."""
        spent, tokens, batch = 0.0, 0, len(self.sequences)
        for _ in range(steps):
            room = StepLoad(batch, batch * 100, 512)
            drafts = self.speculator.draft([DraftRequest(each, 20) for each in self.sequences], room)
            rows = batch + sum(map(len, drafts))
            spent += self.seconds(rows)
            self.costs.observe(rows, batch * 100, self.seconds(rows) * self.random.uniform(0.95, 1.2))
            for each, draft in zip(self.sequences, drafts, strict=True):
                rejected = (position for position in range(len(draft)) if self.random.random() >= self.right)
                accepted = next(rejected, len(draft))
                if draft:
                    self.speculator.learn(each, len(draft), accepted)
                following = 9 if accepted < len(draft) or self.random.random() >= self.right else 5
                each.tokens += [5] * accepted + [following]
                tokens += accepted + 1
        return tokens / spent / (batch / self.seconds(batch))


@pytest.mark.parametrize("row", [0.0, 0.07, 0.3, 1.0])
@pytest.mark.parametrize("right", [0.0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_drafts_that_do_not_pay_cost_at_most_a_few_per_cent(batch: int, right: float, row: float) -> None:
    assert Machine(batch, row, right).run(400) >= 0.97


@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 4])
def test_drafting_continues_after_a_step_that_was_delayed(which: int, batch: int) -> None:
    """A step that looks expensive is not run again, so its cost would be believed forever."""
    costs, tried, tokens, spent = StepCosts(), 0, 0, 0.0
    speculator = Speculator(costs, max_draft=MAX_DRAFT, proposers=[Always(*[5] * MAX_DRAFT)])
    sequences = [begin(Request(str(name), (1, 2), SamplingParams(), 0))[0] for name in range(batch)]
    for _ in range(600):
        drafts = speculator.draft([DraftRequest(each, 20) for each in sequences], StepLoad(batch, 100, 512))
        rows = batch + sum(map(len, drafts))
        tried += rows > batch
        spent += 1 + 0.02 * rows
        costs.observe(rows, 100, (1 + 0.02 * rows) * (10 if rows > batch and tried == which else 1))
        for each, draft in zip(sequences, drafts, strict=True):
            if draft:
                speculator.learn(each, len(draft), len(draft))
            each.tokens += [5] * (len(draft) + 1)
            tokens += len(draft) + 1
    assert tokens / spent >= 3 * batch / (1 + 0.02 * batch)
