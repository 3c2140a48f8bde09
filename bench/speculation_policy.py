"""Compares two draft-length policies on simulated texts and machines, without a clock.

A text says at every position whether a drafter is right there, so both policies get the same texts. A formula gives the
seconds of a step; policies see them with noise. The result is simulated tokens per second.

    python bench/speculation_policy.py --against bench/results/speculation-accounts.json

That file has the figures of the policy that was replaced (commit f5379c0).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from ferrum.core.params import SamplingParams
from ferrum.core.step import SpanResult, StepBatch, StepOutput, Want
from ferrum.core.types import Request
from ferrum.scheduler.drafts import DraftRequest, StepLoad
from ferrum.scheduler.sequence import Sequence, begin
from ferrum.scheduler.step_plan import StepCosts
from ferrum.speculative.draft_model import DraftModel
from ferrum.speculative.proposer import Draft
from ferrum.speculative.speculator import Speculator
from script import run_script

SEEDS = 5
STEPS = 400
ANSWER = 100
MAX_DRAFT = 5
RIGHT, WRONG = 9, 7

TEXTS = {"copy": (0.98, 0.9), "edits": (0.95, 0.3), "chat": (0.5, 0.05), "noise": (0.02, 0.0), "mixed": None}
"""How often a drafter is right in the two kinds of passages that alternate; a mixed batch has a text of each kind."""

MACHINES = {"flat": (1.0, 0.0, 0.03), "sloped": (1.0, 0.07, 0.0), "dear": (0.0, 1.0, 0.0)}
"""Seconds of a step: max(base + slope x rows, knee x rows)."""

DRAFTERS = {"lookup": 100, "model": 100, "model, long prompts": 1000}
"""Prompt lengths; a model reads its prompt first and takes a tenth of the target's time."""


@dataclass(frozen=True)
class Cell:
    """One simulated workload."""

    text: str
    machine: str
    drafter: str
    batch: int

    def seconds(self, rows: int) -> float:
        base, slope, knee = MACHINES[self.machine]
        return max(base + slope * rows, knee * rows)


class Lookup:
    """Proposes the right token everywhere; the text decides whether it comes."""

    def may_propose(self, sequence: Sequence) -> bool:  # noqa: ARG002 - a proposer's signature
        return True

    def propose(self, sequence: Sequence, max_tokens: int) -> Draft | None:  # noqa: ARG002 - a proposer's signature
        return Draft((RIGHT,) * max_tokens, "lookup")

    def forget(self, sequence: Sequence) -> None: ...


class SmallExecutor:
    """A draft model's executor: proposes the right token everywhere, in a tenth of the target's time."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.spent = cell, 0.0

    def capabilities(self) -> Any:
        return SimpleNamespace(max_sequence_length=1 << 20)

    def submit(self, batch: StepBatch) -> Any:
        took = self.cell.seconds(batch.total_tokens) / 10
        self.spent += took
        results = tuple(SpanResult(span.end, (RIGHT,) if span.want is Want.TOKEN else ()) for span in batch.spans)
        return SimpleNamespace(result=lambda: StepOutput(results, took))

    def release_cache(self, cache_id: str) -> None: ...

    def truncate_kv_for_cache_id(self, cache_id: str, length: int) -> None: ...


def text_of(cell: Cell, seed: int, number: int) -> list[int]:
    """The tokens of an answer: where the drafter is right, and where it is not."""
    random = Random(f"{seed} {number} {cell.text}")
    kinds = [each for each in TEXTS.values() if each]
    high, low = TEXTS[cell.text] or kinds[number % len(kinds)]
    tokens: list[int] = []
    likely, other = high, low
    while len(tokens) < ANSWER:
        passage = random.randint(5, 40)
        tokens += [RIGHT if random.random() < likely else WRONG for _ in range(passage)]
        likely, other = other, likely
    return tokens[:ANSWER]


def tokens_per_second(cell: Cell, seed: int) -> float:
    """Simulate a full batch: every answer that ends is followed by another one."""
    noise = Random(f"{seed} {cell}")
    costs, executor, prompt = StepCosts(), SmallExecutor(cell), DRAFTERS[cell.drafter]
    model = None if cell.drafter == "lookup" else DraftModel(executor, StepCosts(), StepCosts())  # type: ignore[arg-type]
    proposers = [Lookup()] if model is None else []
    speculator = Speculator(costs, max_draft=MAX_DRAFT, proposers=proposers, model=model)
    numbers = iter(range(1 << 20))
    running: list[tuple[Sequence, list[int]]] = []
    spent, tokens = 0.0, 0
    for _ in range(STEPS):
        while len(running) < cell.batch:
            number = next(numbers)
            sequence = begin(Request(str(number), (1,) * prompt, SamplingParams(), 0))[0]
            running.append((sequence, text_of(cell, seed, number)))
        wishes = [DraftRequest(each, limit) for each, _ in running if (limit := ANSWER - each.generated - 1) > 0]
        stored = sum(len(each.tokens) for each, _ in running)
        drafts = speculator.draft(wishes, StepLoad(cell.batch, stored, 512)) if wishes else []
        rows = cell.batch + sum(map(len, drafts))
        spent += cell.seconds(rows)
        costs.observe(rows, stored, cell.seconds(rows) * noise.uniform(0.95, 1.2))
        by_sequence = dict(zip((wish.sequence.cache_id for wish in wishes), drafts, strict=True))
        for each, text in running:
            rest, draft = text[each.generated :], by_sequence.get(each.cache_id, ())
            accepted = next((at for at, token in enumerate(draft) if token != rest[at]), len(draft))
            if draft:
                speculator.learn(each, len(draft), accepted)
            each.extend(tuple(rest[: accepted + 1]))
            tokens += accepted + 1
        for each, _ in running:
            if each.generated >= ANSWER:
                speculator.forget(each)
        running = [(each, text) for each, text in running if each.generated < ANSWER]
    return tokens / (spent + executor.spent)


def cells() -> Iterator[Cell]:
    for drafter in DRAFTERS:
        for text in TEXTS:
            for machine in MACHINES:
                for batch in (1, 4, 16):
                    yield Cell(text, machine, drafter, batch)


def measured() -> dict[str, list[float]]:
    """Tokens per second of every cell, one per seed."""
    return {repr(cell): [tokens_per_second(cell, seed) for seed in range(SEEDS)] for cell in cells()}


def mean_ratio(ours: list[float], theirs: list[float]) -> float:
    """The geometric mean of the paired ratios."""
    return exp(fmean(log(mine / other) for mine, other in zip(ours, theirs, strict=True)))


def report(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> None:
    """Print a table: a row per drafter and text."""
    print("| drafter | text | new / old, mean | worst of 9 | best of 9 | new / no drafts |")
    print("|---|---|---|---|---|---|")
    rows: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for cell in cells():
        plain = cell.batch / cell.seconds(cell.batch)
        ratio = mean_ratio(ours[repr(cell)], theirs[repr(cell)])
        rows[cell.drafter, cell.text].append((ratio, fmean(ours[repr(cell)]) / plain))
    for (drafter, text), found in rows.items():
        ratios = [ratio for ratio, _ in found]
        gains = f"{min(gain for _, gain in found):.2f}-{max(gain for _, gain in found):.2f}"
        mean = exp(fmean(map(log, ratios)))
        print(f"| {drafter} | {text} | {mean:.3f} | {min(ratios):.3f} | {max(ratios):.3f} | {gains} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="Figures of another policy, from --json.")
    parser.add_argument("--json", action="store_true", help="Print this policy's figures as JSON.")
    options = parser.parse_args()
    theirs = json.loads(options.against.read_text()) if options.against else None
    ours = measured()
    if options.json:
        print(json.dumps(ours))
    else:
        report(ours, ours if theirs is None else theirs)


if __name__ == "__main__":
    run_script(main)
