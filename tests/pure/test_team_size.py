"""Short steps of a crowded machine have fewer threads; all others have all."""

from __future__ import annotations

import pytest

from ferrum.kernels.cpu.team_size import CALM, CROWDED, LOOK, MOST_PATIENCE, SHORT, TeamSize, times_put_aside


class Machine:
    """Steps on a machine that puts the caller aside so often between two looks."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.team = TeamSize(most, lambda: self.count)

    def steps(self, aside: int, *, seconds: float = SHORT / 2, rows: int = 32) -> int:
        """As many as lie between two looks; the threads of the last one."""
        self.count += aside
        for _ in range(LOOK):
            threads = self.team.choose(rows)
            self.team.observe(seconds)
        return threads


@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_a_calm_machine_gives_all_threads_to_every_step(most: int) -> None:
    machine = Machine(most)
    assert [machine.steps(aside) for aside in (0, 1, CALM, CROWDED - 1)] == [most] * 4


def test_short_steps_of_a_crowded_machine_have_half_as_many_threads_each_time() -> None:
    machine = Machine(8)
    assert [machine.steps(CROWDED) for _ in range(5)] == [4, 2, 1, 1, 1]
    assert machine.steps(CALM + 1) == 1
    assert [machine.steps(0) for _ in range(4)] == [2, 4, 8, 8]


def looks_until(machine: Machine, threads: int, aside: int) -> int:
    """How many looks at such a machine it takes until the team has so many threads."""
    return next(count for count in range(1, 10 * MOST_PATIENCE) if machine.steps(aside) == threads)


def test_a_size_that_had_to_be_taken_back_is_tried_ever_more_seldom() -> None:
    machine = Machine(2)
    machine.steps(CROWDED)
    tried_after = []
    for _ in range(7):
        tried_after.append(looks_until(machine, 2, 0))
        assert machine.steps(CROWDED) == 1
    assert tried_after == [1, 2, 4, 8, 16, 32, 32]
    assert MOST_PATIENCE == 32


def test_patience_wears_off_while_the_whole_team_runs_undisturbed() -> None:
    machine = Machine(2)
    machine.steps(CROWDED)
    for _ in range(4):
        looks_until(machine, 2, 0)
        machine.steps(CROWDED)
    looks_until(machine, 2, 0)
    for _ in range(4):
        assert machine.steps(0) == 2
    machine.steps(CROWDED)
    assert looks_until(machine, 2, 0) == 1


def test_long_steps_have_all_threads_however_crowded_it_is() -> None:
    machine = Machine(8)
    machine.steps(CROWDED)
    assert machine.steps(CROWDED, seconds=2 * SHORT, rows=500) == 8


def test_a_step_is_short_where_one_of_more_rows_is() -> None:
    machine = Machine(2)
    machine.steps(0)
    machine.steps(CROWDED)
    assert machine.team.choose(3) == 1
    assert machine.team.choose(500) == 2, "of these nothing is known"


def test_the_system_counts_upwards() -> None:
    before = times_put_aside()
    assert 0 <= before <= times_put_aside()
