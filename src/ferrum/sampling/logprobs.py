"""Log-probabilities of a few tokens per row: the log-softmax of the raw logits, before any rule.

Results keep no array of the size of a row, so memory is proportional to the reported tokens.
"""

from __future__ import annotations

import numpy as np

from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import TokenLogprobs
from ferrum.kernels.services import Standing
from ferrum.sampling.probability_mass import F32, greatest, log_total, mass
from ferrum.sampling.top_k import rank, top


@np.errstate(over="ignore")
def token_logprobs(logits: F32, token: int, count: int) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the `count` most likely tokens (or ALL_TOKENS) of a row f32 [V].

    Raises:
        NonFiniteLogits: as `probability_mass.greatest`.
    """
    peak = greatest(logits)
    best = top(logits, logits.size if count == ALL_TOKENS else count)
    normaliser = log_total(mass(logits - peak))
    return report(token, Standing(peak, normaliser, rank(logits, token), logits[token], best, logits[best]))


@np.errstate(over="ignore")
def report(token: int, found: Standing) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the best tokens."""
    values = (found.best_logits - found.peak) - found.normaliser
    return TokenLogprobs(
        token=token,
        logprob=float((found.logit - found.peak) - found.normaliser),
        rank=found.rank,
        top=tuple(zip(found.best.tolist(), values.tolist(), strict=True)),
    )
