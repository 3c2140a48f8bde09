"""Log-probabilities of a few tokens per row: the log-softmax of the raw logits, before any rule.

Results keep no array of the size of a row, so memory is proportional to the reported tokens.
"""

from __future__ import annotations

import numpy as np

from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import TokenLogprobs
from ferrum.sampling.probability_mass import F32, Int64, greatest, log_total, mass
from ferrum.sampling.top_k import rank, top


@np.errstate(over="ignore")
def token_logprobs(logits: F32, token: int, count: int) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the `count` most likely tokens (or ALL_TOKENS) of a row f32 [V].

    Raises:
        NonFiniteLogits: as `probability_mass.greatest`.
    """
    peak = greatest(logits)
    best = top(logits, logits.size if count == ALL_TOKENS else count)
    return report(logits, token, best, peak, log_total(mass(logits - peak)), rank(logits, token))


@np.errstate(over="ignore")
def report(
    logits: F32, token: int, best: Int64, peak: np.float32, normaliser: np.float32, token_rank: int
) -> TokenLogprobs:
    """Return the log-probabilities of `token` and of the best tokens.

    Args:
        logits: f32 [V].
        token: the requested token.
        best: the most likely tokens, best first.
        peak: the greatest logit.
        normaliser: log(sum(exp(logits - peak))).
        token_rank: rank of `token`, 1 for the most likely.
    """
    values = (logits[best] - peak) - normaliser
    return TokenLogprobs(
        token=token,
        logprob=float((logits[token] - peak) - normaliser),
        rank=token_rank,
        top=tuple(zip(best.tolist(), values.tolist(), strict=True)),
    )
