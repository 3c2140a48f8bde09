"""Guesses under chance: on noisy machines where verifying is free to dear, by guessers who are right never to often."""

from __future__ import annotations

from random import Random

import pytest

from ferrum.core.params import SamplingParams
from ferrum.core.types import Request
from ferrum.scheduler.drafts import Room, Wish
from ferrum.scheduler.sequence import begin
from ferrum.scheduler.step_cost_model import StepCosts
from ferrum.speculative.speculator import Speculator
from fixed_proposers import Always

MOST = 8


class Machine:
    """What steps really take, with somebody who is right so often; the measurements of it are noisy."""

    def __init__(self, batch: int, row: float, right: float) -> None:
        self.random = Random(f"{batch} {row} {right}")
        self.row, self.right = row, right
        self.costs = StepCosts()
        self.sequences = [begin(Request(str(name), (1, 2), SamplingParams(), 0))[0] for name in range(batch)]
        self.speculator = Speculator(self.costs, most=MOST, proposers=[Always(*[5] * MOST)])

    def seconds(self, rows: int) -> float:
        return 1 + self.row * rows

    def run(self, steps: int) -> float:
        """Tokens a second, as many times as without guesses."""
        spent, tokens, batch = 0.0, 0, len(self.sequences)
        for _ in range(steps):
            room = Room(batch, batch * 100, 512)
            drafts = self.speculator.draft([Wish(each, 20) for each in self.sequences], room)
            rows = batch + sum(map(len, drafts))
            spent += self.seconds(rows)
            self.costs.observe(rows, batch * 100, self.seconds(rows) * self.random.uniform(0.95, 1.2))
            for each, draft in zip(self.sequences, drafts, strict=True):
                hits = (place for place in range(len(draft)) if self.random.random() >= self.right)
                accepted = next(hits, len(draft))
                if draft:
                    self.speculator.learn(each, len(draft), accepted)
                each.tokens += [5] * accepted + [5 if self.random.random() < self.right else 9]
                tokens += accepted + 1
        return tokens / spent / (batch / self.seconds(batch))


@pytest.mark.parametrize("row", [0.0, 0.07, 0.3, 1.0])
@pytest.mark.parametrize("right", [0.0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_guesses_that_do_not_pay_cost_next_to_nothing(batch: int, right: float, row: float) -> None:
    assert Machine(batch, row, right).run(400) >= 0.98


@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 4])
def test_guesses_go_on_after_a_step_that_was_held_up(which: int, batch: int) -> None:
    """What looks dear is not run again, and so would be believed for ever."""
    costs, tried, tokens, spent = StepCosts(), 0, 0, 0.0
    speculator = Speculator(costs, most=MOST, proposers=[Always(*[5] * MOST)])
    sequences = [begin(Request(str(name), (1, 2), SamplingParams(), 0))[0] for name in range(batch)]
    for _ in range(300):
        drafts = speculator.draft([Wish(each, 20) for each in sequences], Room(batch, 100, 512))
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
