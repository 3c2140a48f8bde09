"""Fair tenant queues, in steps on the fake executor."""

from __future__ import annotations

from statistics import median

import pytest

from ferrum.core.step import Span
from scheduler_bench import Bench

STEPS_PER_REQUEST = 12
"""Steps between two requests of the polite tenant."""


def tenants(spans: tuple[Span, ...]) -> str:
    """Return the first letters of the requests in a step."""
    return "".join(span.cache_id[0] for span in spans)


class Load:
    """A polite tenant with occasional requests, next to a greedy one with many requests at once."""

    def __init__(
        self, policy: str, *, greedy: int, prompt: int = 6, num_pages: int = 64, max_sequences: int = 8
    ) -> None:
        self.bench = Bench(policy=policy, num_pages=num_pages, max_sequences=max_sequences)
        self.waits: list[int] = []
        self.asked: dict[str, int] = {}
        for number in range(greedy):
            self.bench.add(f"g{number}", prompt, seed=number, max_tokens=20, tenant="greedy")
        for step in range(60 * STEPS_PER_REQUEST):
            if step % STEPS_PER_REQUEST == 5 and step < 25 * STEPS_PER_REQUEST:
                self.asked[name := f"p{step}"] = step
                self.bench.add(name, 6, seed=step, max_tokens=4, tenant="polite", arrival=float(step))
            if not self.bench.scheduler.has_work:
                continue
            self.bench.step()
            for name in [each for each in self.asked if self.bench.tokens(each)]:
                self.waits.append(step - self.asked.pop(name))


@pytest.fixture(scope="module")
def alone() -> list[int]:
    """Waits of the polite tenant without other tenants."""
    return Load("fair", greedy=0).waits


@pytest.mark.parametrize("prompt", [6, 40])
@pytest.mark.parametrize("num_pages", [64, 34])
def test_polite_tenant_gets_its_first_token_within_a_step_of_its_solo_time(
    alone: list[int], prompt: int, num_pages: int
) -> None:
    """With short prompts for all sequences, long ones for every step, and too few pages."""
    pressed = Load("fair", greedy=100, prompt=prompt, num_pages=num_pages)
    assert len(alone) == len(pressed.waits) == 25
    assert max(pressed.waits) <= max(alone) + 1
    assert pressed.bench.pages.used == 0 or pressed.bench.scheduler.has_work


def test_fcfs_does_not_protect_the_polite_tenant() -> None:
    """Shows that the test above can fail."""
    assert median(Load("fcfs", greedy=100).waits or [1000]) > 20


def test_equal_tenants_are_served_equally_and_in_order() -> None:
    bench = Bench(policy="fair", max_sequences=4)
    for number in range(12):
        bench.add(f"a{number:02}", 8, seed=number, max_tokens=8, tenant="a")
    for number in range(12):
        bench.add(f"b{number:02}", 8, seed=number, max_tokens=8, tenant="b")
    served = {"a": 0, "b": 0}
    firsts: list[str] = []
    for _ in range(40):
        for span in bench.step():
            served[span.cache_id[0]] += len(span.tokens)
            if span.start == 0:
                firsts.append(span.cache_id[:3])
        assert abs(served["a"] - served["b"]) <= 2 * 16  # the tokens in progress
    for letter in "ab":
        assert [each for each in firsts if each[0] == letter] == sorted(each for each in firsts if each[0] == letter)


def test_sequences_of_the_larger_tenant_are_preempted_and_never_back() -> None:
    bench = Bench(policy="fair", max_sequences=4)
    requests = [bench.add(f"a{number}", 4, seed=number, max_tokens=10, tenant="a") for number in range(4)]
    bench.step()
    requests.append(bench.add("b0", 4, seed=9, max_tokens=10, tenant="b"))
    requests.append(bench.add("b1", 4, seed=8, max_tokens=10, tenant="b"))
    requests.append(bench.add("b2", 4, seed=7, max_tokens=10, tenant="b"))
    assert sorted(tenants(bench.step())) == list("aabb")
    for _ in range(5):
        assert sorted(tenants(bench.step())) == list("aabb")
    assert bench.scheduler.preemptions == 2
    bench.run()
    bench.agrees(*requests)


def test_two_tenants_do_not_preempt_each_other_for_one_slot() -> None:
    bench = Bench(policy="fair", max_sequences=1)
    for name in ("a0", "b0", "a1", "b1"):
        bench.add(name, 4, max_tokens=6, tenant=name[0])
    order = [tenants(spans) for spans in bench.run()]
    assert bench.scheduler.preemptions == 0 and "".join(order) == "aaaaaabbbbbbaaaaaabbbbbb"


def test_idle_tenant_saves_no_credit() -> None:
    """After a long absence a tenant gets an equal part, not every round until its account is level."""
    bench = Bench(policy="fair", max_sequences=2)
    bench.add("b", 4, max_tokens=1, tenant="b")
    for number in range(200):
        bench.add(f"a{number}", 4, seed=number, max_tokens=6, tenant="a")
    for _ in range(200):
        bench.step()
    for number in range(40):
        bench.add(f"b{number}", 4, seed=number, max_tokens=6, tenant="b")
    steps = [tenants(bench.step()) for _ in range(60)]
    assert "".join(steps).count("a") >= 45


def test_recomputed_tokens_are_not_charged_twice() -> None:
    """The preempted tenant pays for its tokens once."""
    bench = Bench(policy="fair", max_sequences=2)
    bench.add("a0", 8, max_tokens=30, tenant="a")
    bench.add("a1", 8, seed=1, max_tokens=30, tenant="a")
    bench.step()
    bench.add("b0", 8, seed=2, max_tokens=40, tenant="b")
    bench.step()
    assert bench.scheduler.preemptions == 1
    bench.add("b1", 8, seed=3, max_tokens=4, tenant="b")
    order = [span.cache_id for spans in bench.run() for span in spans if span.start == 0]
    assert order == ["a1/0", "b1/0"]


def test_other_policies_ignore_tenants() -> None:
    def order(policy: str, names: str) -> list[str]:
        bench = Bench(policy=policy, max_sequences=2)
        for number in range(6):
            bench.add(f"r{number}", 6, max_tokens=5, tenant=names[number % len(names)])
        return [span.cache_id for spans in bench.run() for span in spans]

    for policy in ("fcfs", "priority"):
        assert order(policy, "ab") == order(policy, "a")
    assert order("fair", "a") == order("fcfs", "a")


def test_no_sequence_is_preempted_for_a_request_that_does_not_fit_anyway() -> None:
    """The first sequence is never preempted, and without its pages the prompt has no room."""
    bench = Bench(policy="fair", num_pages=100, context=390, budget=64)
    requests = [bench.add("a0", 150, max_tokens=150, tenant="a", ignore_eos=True)]
    requests += [
        bench.add(f"a{number}", 8, seed=number, max_tokens=17, tenant="a", ignore_eos=True) for number in (1, 2, 3)
    ]
    for _ in range(6):
        bench.step()
    requests.append(bench.add("b0", 260, seed=9, max_tokens=10, tenant="b", ignore_eos=True))
    for _ in range(20):
        bench.step()
    assert all(bench.end(f"a{number}").finish_reason for number in (1, 2, 3))
    bench.run()
    assert bench.scheduler.preemptions == 0
    bench.agrees(*requests, context=390)
