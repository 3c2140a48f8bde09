"""Steps without the sequences that decode, for the first token of a tenant."""

from __future__ import annotations

import pytest

from ferrum.core.step import Span
from ferrum.core.types import Request
from fixed_costs import SetCosts
from scheduler_bench import Bench

BY_ROWS = SetCosts(step=0.1, row=1.0)
"""A machine with short steps for few tokens."""


class Crowd:
    """Six decoding sequences of one tenant, on a machine with known durations."""

    def __init__(self, costs: SetCosts = BY_ROWS, policy: str = "fair") -> None:
        self.bench = Bench(num_pages=128, policy=policy, costs=costs)
        self.requests: list[Request] = []
        for number in range(6):
            self.ask(f"g{number}", 2, tenant="greedy", max_tokens=40)
        self.bench.step()

    def ask(self, name: str, length: int, *, tenant: str, max_tokens: int = 3) -> None:
        seed = len(self.requests)
        self.requests.append(self.bench.add(name, length, seed=seed, tenant=tenant, max_tokens=max_tokens))

    def step(self) -> str:
        """Run a step and return the first letters of its requests."""
        return "".join(span.cache_id[0] for span in self.bench.step())

    def end(self) -> list[tuple[Span, ...]]:
        steps = self.bench.run()
        self.bench.agrees(*self.requests)
        return steps


def test_decoding_sequences_skip_one_step_and_continue() -> None:
    crowd = Crowd()
    crowd.ask("p", 3, tenant="polite")
    assert crowd.step() == "p"
    assert len(crowd.bench.tokens("p")) == 1
    assert crowd.step() == "ggggggp"
    crowd.end()


def test_decoding_sequences_never_skip_two_steps_in_a_row() -> None:
    crowd = Crowd()
    steps = []
    for tenant in "abcd":
        crowd.ask(tenant, 3, tenant=tenant)
        steps.append(crowd.step())
    assert ["g" in step for step in steps] == [False, True, False, True]
    crowd.end()


def test_no_sequence_skips_a_step_that_stays_long() -> None:
    crowd = Crowd(SetCosts(step=10.0, row=0.1))
    crowd.ask("p", 3, tenant="polite")
    assert crowd.step() == "ggggggp"
    crowd.end()


def test_no_sequence_skips_a_step_before_costs_are_known() -> None:
    crowd = Crowd(SetCosts(step=0.0, row=0.0))
    crowd.ask("p", 3, tenant="polite")
    assert crowd.step() == "ggggggp"
    crowd.end()


def test_tenant_with_output_gets_no_step_for_itself() -> None:
    crowd = Crowd()
    crowd.ask("p1", 3, tenant="polite", max_tokens=10)
    crowd.step()
    crowd.step()
    crowd.ask("p2", 3, tenant="polite")
    assert crowd.step() == "ggggggpp"
    crowd.end()


def test_incomplete_prompt_gets_no_step_for_itself() -> None:
    crowd = Crowd()
    crowd.ask("p", 30, tenant="polite")
    assert crowd.step() == "ggggggp"
    crowd.end()


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_single_tenant_queue_gets_no_step_for_itself(policy: str) -> None:
    crowd = Crowd(policy=policy)
    crowd.ask("p", 3, tenant="polite")
    assert crowd.step() == "ggggggp"
    crowd.end()
