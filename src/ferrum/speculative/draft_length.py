"""Chooses how many draft tokens a step verifies: the number that gives the most expected tokens per second.

Holds the acceptance estimate and the choice. Proposers and the state of sequences live in `speculator`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ferrum.core.policy_config import POLICY
from ferrum.scheduler.drafts import StepLoad
from ferrum.scheduler.step_plan import StepCosts


@dataclass(slots=True)
class AcceptanceRate:
    """A moving average of how often a draft token is accepted, given that those before it were.

    Attributes:
        window: draft tokens that it averages over.
        rate: the probability that the next one is accepted.
        observed: draft tokens seen. The first few weigh more, so that a wrong initial rate fades quickly.
    """

    window: int
    rate: float = POLICY.draft_initial_acceptance
    observed: int = 0

    def observe(self, accepted: bool) -> None:
        """Take in one draft token."""
        self.observed += 1
        self.rate += (accepted - self.rate) / min(self.observed + 2, self.window)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that has a draft.

    Attributes:
        limit: length of the draft, in tokens.
        rate: probability that each token is accepted, given that those before it were.
        computed: whether a draft model has to compute the draft.
    """

    limit: int
    rate: float
    computed: bool


def best_lengths(
    candidates: Sequence[Candidate], room: StepLoad, costs: StepCosts, draft_seconds: Callable[[int], float]
) -> tuple[list[int], float]:
    """Return how many draft tokens to verify for each candidate, and the gain in tokens per second (1: none).

    All draft tokens are sorted by the probability that they are accepted. Every prefix of that order is a choice.

    Args:
        candidates: the sequences that the step samples a token for.
        room: the step without drafts.
        costs: predicts the seconds of a step; no drafts are verified before the first measurement.
        draft_seconds: seconds that one draft token for a number of sequences takes a draft model.
    """
    lengths = [0] * len(candidates)
    base = costs.predict(room.rows, room.context_tokens)
    if not base or sum(each.rate for each in candidates) < (POLICY.draft_min_gain - 1) * len(candidates):
        return lengths, 1.0  # unmeasured, or too little to gain even at no cost
    # Prompt chunks in the step take their time with or without drafts: the gain is that of the decoding part.
    plain = costs.predict(len(candidates), room.context_tokens)
    best, chosen = POLICY.draft_min_gain, 0
    tokens, drafting = float(len(candidates)), 0.0
    computed: Counter[int] = Counter()  # sequences that the draft model computes a token for, by position
    # A step may cost anything beyond the largest one measured: it is at most doubled at a time.
    order = _by_probability(candidates)[: min(room.budget, max(room.rows, 2 * costs.largest - room.rows))]
    for count, (probability, position, index) in enumerate(order, 1):
        tokens += probability
        if candidates[index].computed:
            active = computed[position]
            drafting += draft_seconds(active + 1) - (draft_seconds(active) if active else 0.0)
            computed[position] += 1
        seconds = plain + costs.predict(room.rows + count, room.context_tokens) - base + drafting
        if tokens * plain > best * seconds * len(candidates):
            best, chosen = tokens * plain / (seconds * len(candidates)), count
    for _, _, index in order[:chosen]:
        lengths[index] += 1
    return lengths, best if chosen else 1.0


def _by_probability(candidates: Sequence[Candidate]) -> list[tuple[float, int, int]]:
    """Return every draft token as (probability, position, candidate), the most probable first."""
    tokens = [
        (each.rate**position, position, index)
        for index, each in enumerate(candidates)
        for position in range(1, each.limit + 1)
    ]
    return sorted(tokens, key=lambda token: (-token[0], token[1]))
