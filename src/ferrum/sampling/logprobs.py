"""Log-probabilities: the log-softmax of the raw logits, before any rule, for a few tokens of each row.

Nothing of the size of a row is kept, so a prompt's log-probabilities take memory in proportion to the tokens reported.
"""

from __future__ import annotations

import numpy as np

from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import Score, TokenLogprobs
from ferrum.sampling.math import F32, greatest, log_total, mass
from ferrum.sampling.order import rank, top


@np.errstate(over="ignore")
def token_logprobs(logits: F32, token: int, count: int) -> TokenLogprobs:
    """Log-probability and rank of `token`, and the `count` most likely (ALL_TOKENS: every one), of one row f32 [V].

    Raises:
        NonFiniteLogits: as `math.greatest`.
    """
    below = logits - greatest(logits)
    normaliser = log_total(mass(below))
    best = top(logits, logits.size if count == ALL_TOKENS else count)
    values = below[best] - normaliser
    return TokenLogprobs(
        token=token,
        logprob=float(below[token] - normaliser),
        rank=rank(logits, token),
        top=tuple(zip(best.tolist(), values.tolist(), strict=True)),
    )


def score(logits: F32, wish: Score) -> tuple[TokenLogprobs, ...]:
    """The log-probabilities of given next tokens, one result per target.

    Args:
        logits: raw logits f32 [R, V]; rows after the last target are not looked at.
        wish: at most R targets.

    Raises:
        NonFiniteLogits: as `math.greatest`.
    """
    return tuple(token_logprobs(row, target, wish.top) for row, target in zip(logits, wish.targets, strict=False))
