"""How many pages sequences will come to need together, if each grows by a token a step and leaves at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Growth:
    """A sequence, and where it is going.

    Attributes:
        cache_id: which one.
        length: tokens that it is known to need, stored or not.
        to_come: tokens that it is thought to need beyond them.
    """

    cache_id: str
    length: int
    to_come: int


@dataclass(frozen=True, slots=True)
class Holding:
    """The same sequence in one layer group.

    Attributes:
        held: pages that it has.
        alone: those of them that nobody else has.
    """

    growth: Growth
    held: int
    alone: int


def most_wanted(holdings: Sequence[Holding], pages: Callable[[int], int]) -> int:
    """Most pages beyond those held now that all of them want at one time.

    That time is just before one of them ends: until then all grow, and then it gives back what nobody else has. (The
    memory of the future in Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025, here
    by pages that may be shared.)

    Args:
        pages: how many a sequence of so many tokens takes.
    """
    returned = most = 0
    by_end = sorted(holdings, key=lambda holding: holding.growth.to_come)
    for index, ending in enumerate(by_end):
        steps = ending.growth.to_come
        wanted = sum(max(0, pages(each.growth.length + steps) - each.held) for each in by_end[index:])
        most = max(most, wanted - returned)
        returned += ending.alone
    return most
