"""How messages quote what they are about: briefly, and whatever it is."""

from __future__ import annotations

import math
import reprlib
from typing import Final

MOST_BITS: Final = 256
"""Of an integer that anybody can mean. Python refuses to write those of thousands of digits: no message could name
them, no log and no record.
"""


def is_huge(value: object) -> bool:
    """Whether a value is an integer that nobody can mean."""
    return isinstance(value, int) and value.bit_length() > MOST_BITS


class _Quotes(reprlib.Repr):
    """Quotes integers by their size where that is all that can be told of them."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100

    def repr_int(self, number: int, level: int) -> str:  # noqa: ARG002 - as `Repr` calls it
        """See `reprlib.Repr`."""
        if not is_huge(number):
            return repr(number)
        return f"about {'-' if number < 0 else ''}10**{math.log10(abs(number)):.0f}"


shown: Final = _Quotes().repr
"""A value for a message: its `repr`, without the middle where that is long."""
