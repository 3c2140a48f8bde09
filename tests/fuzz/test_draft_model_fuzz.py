"""A draft model on a machine of known speed: reading prompts costs no more than drafts gain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ferrum.core.params import SamplingParams
from ferrum.core.step import SpanResult, StepBatch, StepOutput, Want
from ferrum.core.types import Request
from ferrum.scheduler.drafts import DraftRequest, StepLoad
from ferrum.scheduler.sequence import Sequence, begin
from ferrum.scheduler.step_plan import StepCosts
from ferrum.speculative.draft_model import MAX_FIRST_SPAN, READ_CHUNK, DraftModel
from ferrum.speculative.speculator import Speculator

ANSWER = 100
RIGHT, WRONG = 9, 7
STEPS = 2000


def seconds(rows: int) -> float:
    """Seconds of a step: memory-bound, then compute-bound. The smaller model takes a tenth."""
    return max(1.0, 0.03 * rows)


class SmallExecutor:
    """An executor that samples the same token for every sequence, in a tenth of the time."""

    pages = SimpleNamespace(
        release=lambda cache_id: None,
        truncate=lambda cache_id, length: None,
        can_truncate=lambda cache_id, length: True,
    )
    traits = SimpleNamespace(longest_sequence=1 << 20)

    def __init__(self) -> None:
        self.spent, self.rows = 0.0, 0

    def submit(self, batch: StepBatch) -> Any:
        self.rows = max(self.rows, batch.total_tokens)
        took = seconds(batch.total_tokens) / 10
        self.spent += took
        results = tuple(SpanResult(span.end, (RIGHT,) if span.want is Want.TOKEN else ()) for span in batch.spans)
        return SimpleNamespace(result=lambda: StepOutput(results, took))


class Machine:
    """A batch whose sequences are replaced as they end, with a draft model."""

    def __init__(self, batch: int, prompt: int) -> None:
        self.batch, self.prompt, self.begun = batch, prompt, 0
        self.executor, self.costs = SmallExecutor(), StepCosts()
        model = DraftModel(self.executor, StepCosts(), StepCosts())  # type: ignore[arg-type]
        self.speculator = Speculator(self.costs, max_draft=5, proposers=[], model=model)
        self.sequences = [self.new() for _ in range(batch)]

    def new(self) -> Sequence:
        self.begun += 1
        return begin(Request(str(self.begun), (1,) * self.prompt, SamplingParams(), 0))[0]

    def run(self, token: int) -> float:
        """Return tokens per second, relative to no drafts."""
        spent, tokens, stored = 0.0, 0, self.batch * self.prompt
        for _ in range(STEPS):
            wishes = [DraftRequest(each, limit) for each in self.sequences if (limit := ANSWER - each.generated - 1)]
            drafts = self.speculator.draft(wishes, StepLoad(self.batch, stored, 512)) if wishes else []
            rows = self.batch + sum(map(len, drafts))
            spent += seconds(rows)
            self.costs.observe(rows, stored, seconds(rows))
            wished = dict(zip((wish.sequence.cache_id for wish in wishes), drafts, strict=True))
            for place, each in enumerate(self.sequences):
                draft = wished.get(each.cache_id, ())
                right = len(draft) if token == RIGHT else 0
                if draft:
                    self.speculator.learn(each, len(draft), right)
                each.extend((*draft[:right], token))
                tokens += right + 1
                if each.generated >= ANSWER:
                    self.speculator.forget(each)
                    self.sequences[place] = self.new()
        return tokens / (spent + self.executor.spent) / (self.batch / seconds(self.batch))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("prompt", [10, 100, 1000])
def test_a_model_that_is_always_right_pays_at_any_prompt_length(batch: int, prompt: int) -> None:
    machine = Machine(batch, prompt)
    assert machine.run(RIGHT) >= 2
    assert machine.executor.rows <= READ_CHUNK + batch * MAX_FIRST_SPAN


@pytest.mark.parametrize("batch", [1, 4, 32])
@pytest.mark.parametrize("prompt", [10, 1000, 8000])
def test_a_model_that_is_never_right_costs_at_most_a_few_per_cent(batch: int, prompt: int) -> None:
    assert Machine(batch, prompt).run(WRONG) >= 0.97
