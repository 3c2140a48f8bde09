"""How many guesses a step should verify: as many as make it bring the most tokens a second, by measured costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ferrum.scheduler.drafts import Room
from ferrum.scheduler.step_cost_model import StepCosts

WORTH_IT: Final = 1.05
"""Guesses must promise at least so many times the tokens a second that there are without them."""

HOPELESS: Final = 0.02
"""Guesses less likely than this are not thought of: no row is so cheap."""

FORGET: Final = 0.93
"""What a verified guess weighs when the next one has been: about fifteen of them count."""

FADE: Final = 0.99
"""What it weighs when a step has passed without one, where that teaches nothing."""

PRIOR: Final = 0.6
PRIOR_WEIGHT: Final = 2.0
"""What is believed of guesses before any was verified, and as how many verified ones it counts."""


class Tally:
    """How often guesses have been right of late."""

    def __init__(self) -> None:
        self._right = self._tried = 0.0

    def note(self, right: int, wrong: int) -> None:
        """So many guesses were right, and then so many wrong."""
        for hit in (True,) * right + (False,) * wrong:
            self._right = FORGET * self._right + hit
            self._tried = FORGET * self._tried + 1

    def fade(self) -> None:
        """Believe a little less in what was, for nothing new is heard."""
        self._right *= FADE
        self._tried *= FADE

    def likely(self, prior: float = PRIOR) -> float:
        """How likely the next guess is right, given that those before it in its draft are."""
        return (self._right + PRIOR_WEIGHT * prior) / (self._tried + PRIOR_WEIGHT)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence for which something can be guessed.

    Attributes:
        limit: how many tokens.
        likely: how likely each of them is right once those before it are.
        computed: whether the guesses have to be computed.
    """

    limit: int
    likely: float
    computed: bool


def best_lengths(
    candidates: Sequence[Candidate],
    room: Room,
    costs: StepCosts,
    draft_seconds: Callable[[int], float],
    credit: float = math.inf,
) -> list[int]:
    """How many guesses to verify for each candidate.

    The guesses are lined up by how likely they are to come true, and every beginning of that line is weighed: a step's
    cost may rise in jumps. Each candidate's own guesses stand in their order there, and those that are as likely at the
    same place are verified together or not at all: sequences that begin as equals end together.

    Args:
        candidates: of the sequences that the step samples a token for, those with guesses.
        room: the step.
        costs: of steps; where nothing is known yet, a step without guesses will tell.
        draft_seconds: how long one computed guess for so many sequences takes.
        credit: what they may take at most, in steps that do nothing but go on with the candidates.
    """
    lengths = [0] * len(candidates)
    base = costs.predict(room.rows, room.context_tokens)
    if not base or sum(each.likely for each in candidates) < (WORTH_IT - 1) * len(candidates):
        return lengths
    # Beyond what has been seen, a step may cost anything: it is at most doubled at a time.
    line = _line(candidates)[: min(room.budget, max(room.rows, 2 * costs.largest - room.rows))]
    # What prompts in the step take, they take anyhow.
    plain = costs.predict(len(candidates), room.context_tokens)
    best, chosen = WORTH_IT * len(candidates) / plain, 0
    tokens, drafting = float(len(candidates)), 0.0
    active: Counter[int] = Counter()
    for count, (unlikely, place, index) in enumerate(line, 1):
        tokens -= unlikely
        if candidates[index].computed:
            drafting += draft_seconds(active[place] + 1) - (draft_seconds(active[place]) if active[place] else 0.0)
            active[place] += 1
        if line[count : count + 1] and line[count][:2] == (unlikely, place):
            continue  # its equals are still to come
        extra = costs.predict(room.rows + count, room.context_tokens) - base + drafting
        if extra > credit * plain:
            break
        if tokens > best * (plain + extra):
            best, chosen = tokens / (plain + extra), count
    for _, _, index in line[:chosen]:
        lengths[index] += 1
    return lengths


def _line(candidates: Sequence[Candidate]) -> list[tuple[float, int, int]]:
    """The guesses worth a thought, the likeliest first: minus how likely, the place in its draft, whose it is."""
    line = []
    for index, each in enumerate(candidates):
        likely = 1.0
        for place in range(1, each.limit + 1):
            likely *= each.likely
            if likely < HOPELESS:
                break
            line.append((-likely, place, index))
    line.sort()
    return line
