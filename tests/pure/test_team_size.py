"""The team of short steps shrinks on a crowded machine and grows back on a calm one; long steps keep all threads."""

from __future__ import annotations

import pytest

from ferrum.core.policy_config import POLICY
from ferrum.kernels.cpu import team_size
from ferrum.kernels.cpu.team_size import StepTeam, TeamSize, count_preemptions

INTERVAL = POLICY.team_interval_seconds
CROWDED = int(POLICY.team_crowded_rate * INTERVAL) + 2
CALM = int(POLICY.team_calm_rate * INTERVAL)


class Machine:
    """A machine that preempts the main thread a given number of times per interval."""

    def __init__(self, max_threads: int) -> None:
        self.count = 0
        self.team = TeamSize(max_threads, lambda: self.count)

    def interval(self, preemptions: int, *, steps: int = 8) -> int:
        """Run steps for one interval; return the threads of the next step."""
        self.count += preemptions
        for _ in range(steps):
            self.team.observe(1.001 * INTERVAL / steps)
        return self.team.threads


def intervals_until(machine: Machine, threads: int, preemptions: int) -> int:
    limit = 10 * POLICY.team_max_patience
    return next(count for count in range(1, limit) if machine.interval(preemptions) == threads)


@pytest.mark.parametrize("max_threads", [1, 2, 3, 8])
def test_calm_machine_gives_all_threads_to_every_step(max_threads: int) -> None:
    machine = Machine(max_threads)
    assert [machine.interval(count) for count in (0, 1, CALM, CROWDED - 3)] == [max_threads] * 4


@pytest.mark.parametrize("steps", [1, 2, 64])
def test_crowded_machine_halves_the_team_per_interval_at_any_step_length(steps: int) -> None:
    machine = Machine(8)
    assert [machine.interval(CROWDED, steps=steps) for _ in range(5)] == [4, 2, 1, 1, 1]
    assert machine.interval(CALM + 1) == 1
    assert [machine.interval(0, steps=steps) for _ in range(4)] == [2, 4, 8, 8]


def test_long_step_counts_by_preemptions_per_second() -> None:
    machine = Machine(8)
    machine.count += CROWDED
    machine.team.observe(10 * INTERVAL)
    assert machine.team.threads == 8


def test_failed_growth_doubles_the_wait_before_the_next() -> None:
    machine = Machine(2)
    machine.interval(CROWDED)
    waits = []
    for _ in range(7):
        waits.append(intervals_until(machine, 2, 0))
        assert machine.interval(CROWDED) == 1
    assert waits == [1, 2, 4, 8, 16, 32, 32]
    assert POLICY.team_max_patience == 32


def test_wait_shortens_while_the_whole_team_runs_undisturbed() -> None:
    machine = Machine(2)
    machine.interval(CROWDED)
    for _ in range(4):
        intervals_until(machine, 2, 0)
        machine.interval(CROWDED)
    intervals_until(machine, 2, 0)
    for _ in range(4):
        assert machine.interval(0) == 2
    machine.interval(CROWDED)
    assert intervals_until(machine, 2, 0) == 1


def test_system_count_never_decreases() -> None:
    before = count_preemptions()
    assert 0 <= before <= count_preemptions()


class Steps:
    """Steps on two threads of a machine whose processor and wall clocks the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.clock, self.busy = 0, 0.0, 0.0
        monkeypatch.setattr(team_size, "perf_counter", lambda: self.clock)
        monkeypatch.setattr(team_size, "thread_time", lambda: self.busy)
        self.team = StepTeam(2, lambda: self.count)

    def run(self, rows: int, seconds: float, *, preemptions: int = 0, slowdown: float = 1.0) -> int:
        """Run a step of 100 operations that takes `seconds` on an idle machine; return its threads."""
        threads = self.team.begin(rows, OPERATIONS)
        self.busy += seconds * 2 / threads
        self.clock += seconds * 2 / threads * slowdown
        self.count += preemptions
        self.team.end()
        return threads


OPERATIONS = 100
LONG = POLICY.team_long_operation_seconds * OPERATIONS
SHORT = LONG / 10


def test_long_steps_keep_all_threads_on_a_crowded_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    for _ in range(20):
        assert steps.run(512, 20 * LONG, preemptions=int(2000 * LONG), slowdown=2.0) == 2


def test_preemptions_of_long_steps_do_not_shrink_the_team_of_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    assert steps.run(512, 2 * LONG, preemptions=1000) == 2
    steps.run(512, 2 * LONG, preemptions=1000)
    assert [steps.run(1, SHORT) for _ in range(60)] == [2] * 60


def test_short_steps_adapt_although_the_crowd_makes_them_long(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    sizes = [steps.run(128, SHORT, preemptions=int(2 * SHORT * 20 * 60), slowdown=20.0) for _ in range(20)]
    assert sizes[0] == 2
    assert sizes[-1] == 1
    assert steps.run(512, 2 * LONG) == 2  # no size of step decides for another one
