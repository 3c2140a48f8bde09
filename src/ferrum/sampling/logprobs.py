"""Log-probabilities: the log-softmax of the raw logits, before any rule, for a few tokens of each row.

Nothing of the size of a row is kept, so a prompt's log-probabilities take memory in proportion to the tokens reported.
"""

from __future__ import annotations

import numpy as np

from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import TokenLogprobs
from ferrum.sampling.math import F32, Int64, greatest, log_total, mass
from ferrum.sampling.order import rank, top


@np.errstate(over="ignore")
def token_logprobs(logits: F32, token: int, count: int) -> TokenLogprobs:
    """Log-probability and rank of `token`, and the `count` most likely (ALL_TOKENS: every one), of one row f32 [V].

    Raises:
        NonFiniteLogits: as `math.greatest`.
    """
    normaliser = log_total(mass(logits - greatest(logits)))
    return report(logits, token, top(logits, logits.size if count == ALL_TOKENS else count), normaliser)


@np.errstate(over="ignore")
def report(logits: F32, token: int, best: Int64, normaliser: np.float32) -> TokenLogprobs:
    """The result for `token`, given the most likely tokens, best first, and log(sum(exp(logits - greatest)))."""
    peak = logits.max()
    values = (logits[best] - peak) - normaliser
    return TokenLogprobs(
        token=token,
        logprob=float((logits[token] - peak) - normaliser),
        rank=rank(logits, token),
        top=tuple(zip(best.tolist(), values.tolist(), strict=True)),
    )
