"""Log-probabilities: the log-softmax of the raw logits, before any rule, for a few tokens of each row.

Nothing of the size of a row is kept, so a prompt's log-probabilities take memory in proportion to the tokens reported.
"""

from __future__ import annotations

import numpy as np

from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import TokenLogprobs
from ferrum.sampling.probability_mass import F32, Int64, greatest, log_total, mass
from ferrum.sampling.top_k import rank, top


@np.errstate(over="ignore")
def token_logprobs(logits: F32, token: int, count: int) -> TokenLogprobs:
    """Log-probability and rank of `token`, and the `count` most likely (ALL_TOKENS: every one), of one row f32 [V].

    Raises:
        NonFiniteLogits: as `math.greatest`.
    """
    peak = greatest(logits)
    best = top(logits, logits.size if count == ALL_TOKENS else count)
    return report(logits, token, best, peak, log_total(mass(logits - peak)), rank(logits, token))


@np.errstate(over="ignore")
def report(logits: F32, token: int, best: Int64, peak: np.float32, normaliser: np.float32, place: int) -> TokenLogprobs:
    """The result for `token`.

    Args:
        logits: f32 [V].
        token: asked about.
        best: the most likely tokens, best first.
        peak: the greatest logit.
        normaliser: log(sum(exp(logits - peak))).
        place: of `token` in the order, 1 for the first.
    """
    values = (logits[best] - peak) - normaliser
    return TokenLogprobs(
        token=token,
        logprob=float((logits[token] - peak) - normaliser),
        rank=place,
        top=tuple(zip(best.tolist(), values.tolist(), strict=True)),
    )
