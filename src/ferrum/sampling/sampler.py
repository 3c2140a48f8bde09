"""One row of logits becomes one token.

The choice is by the Gumbel-max trick: with independent Gumbel noise added to final logits, the greatest is a draw from
their softmax (Yellott 1977; Maddison, Tarlow and Minka, "A* sampling", NeurIPS 2014, section 2). The noise of a token
is a function of the request and the token alone, and a token that is no candidate cannot win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from ferrum.core.step import Sampling, Score, TokenLogprobs
from ferrum.sampling.logprobs import token_logprobs
from ferrum.sampling.math import F32, greatest, log
from ferrum.sampling.philox import uniform
from ferrum.sampling.rules import Candidates, Row, distribution, permitted


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token, with its log-probabilities where the request wants them."""

    token: int
    logprobs: TokenLogprobs | None


class Chooser(Protocol):
    """Work over whole rows of raw logits f32 [V], which are not changed. Every chooser gives the same results."""

    def finite(self, logits: F32) -> bool:
        """Whether no number of f32 [R, V] is NaN or infinite."""
        ...

    def greedy(self, logits: F32, row: Row) -> int:
        """The most likely permitted token, the lowest id among equals. Raises StepError: there is none."""
        ...

    def draw(self, logits: F32, row: Row) -> int:
        """A draw from the row's final distribution. Raises StepError: no token is permitted."""
        ...

    def logprobs(self, logits: F32, token: int, count: int) -> TokenLogprobs:
        """See `logprobs.token_logprobs`."""
        ...


class ReferenceChooser:
    """`Chooser` in numpy: the specification."""

    def finite(self, logits: F32) -> bool:
        """See `Chooser.finite`."""
        return bool(np.isfinite(logits).all())

    def greedy(self, logits: F32, row: Row) -> int:
        """See `Chooser.greedy`."""
        candidates = permitted(logits, row)
        return int(candidates.tokens[np.argmax(candidates.logits)])

    def draw(self, logits: F32, row: Row) -> int:
        """See `Chooser.draw`."""
        return draw(distribution(logits, row), row)

    def logprobs(self, logits: F32, token: int, count: int) -> TokenLogprobs:
        """See `Chooser.logprobs`."""
        return token_logprobs(logits, token, count)


REFERENCE: Final = ReferenceChooser()
"""Has no state: one serves all."""


def draw(candidates: Candidates, row: Row) -> int:
    """Draw from the softmax of the candidates' logits."""
    u = uniform(candidates.tokens, seed=row.sampling.seed, position=row.position, choice=row.sampling.choice)
    noise = -log(-log(u))
    return int(candidates.tokens[np.argmax(candidates.logits + noise)])


def sample(logits: F32, sampling: Sampling, drafts: Sequence[int] = (), chooser: Chooser = REFERENCE) -> Sampled:
    """Choose the token that follows `sampling.history` and `drafts`.

    Args:
        logits: raw logits f32 [V]; not changed. A logit of minus infinity is a token that never comes.
        sampling: the request's parameters, seed and history.
        drafts: tokens after the history that this row takes for granted: the drafts verified before it.
        chooser: does the work.

    Raises:
        NonFiniteLogits: as `math.greatest`, forbidden tokens included.
        StepError: no token is allowed.
    """
    greatest(logits)
    row = Row(sampling, drafts)
    token = chooser.greedy(logits, row) if row.params.greedy else chooser.draw(logits, row)
    count = row.params.logprobs
    return Sampled(token, None if count is None else chooser.logprobs(logits, token, count))


def score(logits: F32, wish: Score, chooser: Chooser = REFERENCE) -> tuple[TokenLogprobs, ...]:
    """The log-probabilities of given next tokens, one result per target.

    Args:
        logits: raw logits f32 [R, V]; rows after the last target are not looked at.
        wish: at most R targets.
        chooser: does the work.

    Raises:
        NonFiniteLogits: as `math.greatest`.
    """
    return tuple(chooser.logprobs(row, target, wish.top) for row, target in zip(logits, wish.targets, strict=False))
