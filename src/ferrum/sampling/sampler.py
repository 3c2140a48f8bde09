"""One row of logits becomes one token.

The choice is by the Gumbel-max trick: with independent Gumbel noise added to final logits, the greatest is a draw from
their softmax (Yellott 1977; Maddison, Tarlow and Minka, "A* sampling", NeurIPS 2014, section 2). The noise of a token
is a function of the request and the token alone, and a token that is no candidate cannot win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ferrum.core.step import Sampling, TokenLogprobs
from ferrum.sampling.logprobs import token_logprobs
from ferrum.sampling.math import F32, greatest, log
from ferrum.sampling.philox import uniform
from ferrum.sampling.rules import Candidates, Row, distribution, permitted


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token, with its log-probabilities where the request wants them."""

    token: int
    logprobs: TokenLogprobs | None


def draw(candidates: Candidates, row: Row) -> int:
    """Draw from the softmax of the candidates' logits."""
    u = uniform(candidates.tokens, seed=row.sampling.seed, position=row.position, choice=row.sampling.choice)
    noise = -log(-log(u))
    return int(candidates.tokens[np.argmax(candidates.logits + noise)])


def greedy(candidates: Candidates) -> int:
    """The most likely candidate, the lowest id among equals."""
    return int(candidates.tokens[np.argmax(candidates.logits)])


def sample(logits: F32, sampling: Sampling, drafts: Sequence[int] = ()) -> Sampled:
    """Choose the token that follows `sampling.history` and `drafts`.

    Args:
        logits: raw logits f32 [V]; not changed. A logit of minus infinity is a token that never comes.
        sampling: the request's parameters, seed and history.
        drafts: tokens after the history that this row takes for granted: the drafts verified before it.

    Raises:
        NonFiniteLogits: as `math.greatest`, forbidden tokens included.
        StepError: no token is allowed.
    """
    greatest(logits)
    row = Row(sampling, drafts)
    token = greedy(permitted(logits, row)) if row.params.greedy else draw(distribution(logits, row), row)
    count = row.params.logprobs
    return Sampled(token, None if count is None else token_logprobs(logits, token, count))
