"""Whether guessing has paid: what it has brought, less what it has taken, so that what does not pay stays cheap.

Estimates of costs and of luck may be wrong; the account is what became of them. What a step spends on guesses has to be
covered, so that guesses which never pay cost at most `SHARE` of the time, and `START` once. What would have been right
had it been verified earns `HOPE`: a bad beginning is no reason to let a good text pass by.
"""

from __future__ import annotations

from typing import Final

START: Final = 0.5
SHARE: Final = 0.005
HOPE: Final = 0.03
MOST: Final = 2.0
LEAST: Final = -1.0


class Account:
    """Its unit is a step that takes every sequence a token further, without guesses. Each that could have some
    adds `SHARE`.

    Attributes:
        balance: what may be spent, from `least` (one bad measurement is no reason to stop for ever) to `most` (success
            long ago is no reason to go on).
    """

    def __init__(self, start: float = START, *, least: float = LEAST, most: float = MOST) -> None:
        self.balance = start
        self._least, self._most = least, most

    def settle(self, cost: float, gain: float) -> None:
        """A step took so many times the time of one without guesses longer, and brought so many times its tokens more.

        Both are 0 for a step without guesses.
        """
        self._add(SHARE + gain - cost)

    def hope(self, right: float) -> None:
        """So many of the guesses that were not verified have come true, for each sequence of the step."""
        self._add(HOPE * right)

    def _add(self, change: float) -> None:
        self.balance = max(self._least, min(self._most, self.balance + change))
