"""How many of a team's threads take part in a step: all, but fewer in short steps of a crowded machine.

A step has many barriers, and each waits for the last thread. Where others want the processors, too, the system puts a
thread aside for some milliseconds now and then. A step that is shorter than that is over sooner without those who would
have to be waited for, and leaves their processors to the others. No bit of any answer depends on it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from statistics import median
from typing import Final

try:
    import resource
except ImportError:  # not every system has it
    resource = None  # type: ignore[assignment]

SHORT: Final = 0.005
"""Seconds of a short step: about as long as a system lets one thread run while others wait."""

WINDOW: Final = 9
"""Steps of about one number of rows that tell how long they take."""

LOOK: Final = 64
"""Steps between two looks at how crowded the machine is."""

CROWDED: Final = 16
"""At least so often between two looks the caller's thread was put aside: the team is halved."""

CALM: Final = 2
"""At most so often: the team may be doubled."""

MOST_PATIENCE: Final = 32
"""Calm looks that a doubling waits for at most. Each one that had to be taken back doubles their number: a machine that
is crowded by the whole team is often calm beside half of it, and would be tried at every other look."""


def times_put_aside() -> int:
    """How often this thread lost its processor while it would have gone on; 0 where the system does not tell."""
    which = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if which is None else resource.getrusage(which).ru_nivcsw


class TeamSize:
    """Chooses for each step, and learns from it. Used by the thread that runs the steps.

    Args:
        most: threads of the team.
        aside: counts how often the caller was put aside.
    """

    def __init__(self, most: int, aside: Callable[[], int] = times_put_aside) -> None:
        self._most = most
        self._aside = aside
        self._before = aside()
        self._few = most
        self._patience = 1
        self._calm_looks = 0
        self._grown = False
        self._short_octave = 0
        self._steps = 0
        self._octave = 0
        self._seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))

    def choose(self, rows: int) -> int:
        """The threads of the next step, of so many rows."""
        self._octave = rows.bit_length()
        self._steps += 1
        if self._steps % LOOK == 0:
            self._look()
        return self._few if self._octave <= self._short_octave else self._most

    def observe(self, seconds: float) -> None:
        """The step that was chosen for has taken so long."""
        self._seconds[self._octave].append(seconds)

    def _look(self) -> None:
        """See how crowded the machine is, and up to how many rows steps are short."""
        now = self._aside()
        aside, self._before = now - self._before, now
        if aside >= CROWDED:
            self._shrink()
        elif aside <= CALM:
            self._grow()
        self._short_octave = max((key for key, seen in self._seconds.items() if median(seen) <= SHORT), default=0)

    def _shrink(self) -> None:
        if self._grown:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
        self._grown, self._calm_looks = False, 0
        self._few = max(1, self._few // 2)

    def _grow(self) -> None:
        """Where the machine has been calm for long enough. A size that it is calm beside is no trial any more."""
        self._grown = False
        if self._few == self._most:
            self._patience = max(1, self._patience // 2)
            return
        self._calm_looks += 1
        if self._calm_looks >= self._patience:
            self._grown, self._calm_looks = True, 0
            self._few = min(self._most, 2 * self._few)
