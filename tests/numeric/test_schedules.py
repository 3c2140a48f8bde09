"""However requests are served, their answers have the bits that they have alone: random schedules of all there is.

Prefixes cold, warm and from disk, forks of forks, truncation, both kinds of preemption, every way of guessing with none
to all guesses right, priorities, steps of one token to 512 in every company, one thread and two, every format and set
of kernels. A schedule that fails is told by its number, and does the same again, but for when pages arrive from disk.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from native_twin import TIERS
from schedule_player import play
from schedules import schedule_of

KERNELS = ("native", "native", "native", "reference") if TIERS else ("reference",)


def played(numbers: range, directory: Path) -> Counter[str]:
    seen: Counter[str] = Counter()
    for number in numbers:
        schedule = schedule_of(number, KERNELS)
        try:
            seen += play(schedule, number, directory / str(number))
        except Exception as error:
            error.add_note(f"in schedule {number}: {schedule}")
            raise
    return seen


def test_some_schedules(tmp_path: Path) -> None:
    played(range(24), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_thousand_schedules(first: int, tmp_path: Path) -> None:
    played(range(first, first + 100), tmp_path)
