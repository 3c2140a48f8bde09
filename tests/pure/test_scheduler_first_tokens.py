"""A share that has nothing yet gets its first token in a step of its own, where that is cheap for those who decode."""

from __future__ import annotations

import pytest

from ferrum.core.step import Span
from ferrum.core.types import Request
from fixed_costs import SetCosts
from scheduler_bench import Bench

BY_ROWS = SetCosts(step=0.1, row=1.0)
"""A machine on which a step of few tokens is short."""


class Crowd:
    """Six sequences of one tenant that decode, on a machine with a price list."""

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
        """The first letters of the requests that the next step is for."""
        return "".join(span.cache_id[0] for span in self.bench.step())

    def end(self) -> list[tuple[Span, ...]]:
        steps = self.bench.run()
        self.bench.agrees(*self.requests)
        return steps


def test_the_others_sit_out_one_step_and_go_on() -> None:
    crowd = Crowd()
    crowd.ask("p", 3, tenant="polite")
    assert crowd.step() == "p"
    assert len(crowd.bench.tokens("p")) == 1
    assert crowd.step() == "ggggggp"
    crowd.end()


def test_they_never_sit_out_twice_in_a_row() -> None:
    crowd = Crowd()
    steps = []
    for tenant in "abcd":
        crowd.ask(tenant, 3, tenant=tenant)
        steps.append(crowd.step())
    assert ["g" in step for step in steps] == [False, True, False, True]
    crowd.end()


def test_where_it_is_not_cheap_all_go_together() -> None:
    crowd = Crowd(SetCosts(step=10.0, row=0.1))
    crowd.ask("p", 3, tenant="polite")
    assert crowd.step() == "ggggggp"
    crowd.end()


def test_while_nothing_is_known_of_costs_all_go_together() -> None:
    crowd = Crowd(SetCosts(step=0.0, row=0.0))
    crowd.ask("p", 3, tenant="polite")
    assert crowd.step() == "ggggggp"
    crowd.end()


def test_who_has_an_answer_already_does_not_hurry() -> None:
    crowd = Crowd()
    crowd.ask("p1", 3, tenant="polite", max_tokens=10)
    crowd.step()
    crowd.step()
    crowd.ask("p2", 3, tenant="polite")
    assert crowd.step() == "ggggggpp"
    crowd.end()


def test_a_prompt_that_does_not_end_in_the_step_does_not_hurry() -> None:
    crowd = Crowd()
    crowd.ask("p", 30, tenant="polite")
    assert crowd.step() == "ggggggp"
    crowd.end()


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_where_all_are_of_one_share_nobody_hurries(policy: str) -> None:
    crowd = Crowd(policy=policy)
    crowd.ask("p", 3, tenant="polite")
    assert crowd.step() == "ggggggp"
    crowd.end()
