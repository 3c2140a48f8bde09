"""Verification of draft tokens.

Exact verification is sampling: each row's token is sampled as without drafts, and a draft is accepted if it equals that
token. This works at any temperature with any proposer, because a draw depends only on the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple, cast

import numpy as np

from ferrum.core.errors import RequestError, StepError
from ferrum.core.step import Sampling, TokenLogprobs
from ferrum.core.values import shown
from ferrum.kernels.reference.reference_math import exp
from ferrum.sampling.probability_mass import F32
from ferrum.sampling.rules import Row
from ferrum.sampling.sampler import REFERENCE, Sampled, Sampler, SamplerInput, is_plain_greedy, sample


class Accepted(NamedTuple):
    """The result of a verified span.

    Attributes:
        tokens: the accepted draft tokens and the next token: `accepted + 1` tokens.
        logprobs: one per token, if requested.
        accepted: number of accepted draft tokens.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    accepted: int


class Verification(NamedTuple):
    """The rows of one sequence to sample from.

    Attributes:
        logits: raw logits f32 [k + 1, V]: row i follows the history and the first i draft tokens.
        best: the most likely token of each row.
        drafts: k draft tokens; with k = 0 this is plain sampling.
        sampling: parameters, seed and history of the request, without the drafts.
    """

    logits: F32
    best: Sequence[int]
    drafts: Sequence[int]
    sampling: Sampling

    @property
    def greedy_result(self) -> Accepted | None:
        """The result of a plain greedy request without drafts, or None."""
        return None if self.drafts or not is_plain_greedy(self.sampling) else Accepted((self.best[-1],), None, 0)

    def input(self, row: int) -> SamplerInput:
        """Return the input of a row, given that all drafts before it are accepted."""
        return SamplerInput(self.logits[row], self.best[row], Row(self.sampling, self.drafts[:row]))


def accept(verifications: Sequence[Verification], sampler: Sampler = REFERENCE) -> list[Accepted | StepError]:
    """Sample row by row, all sequences in parallel, each until a draft token differs.

    An error in the first row is the result of the sequence. An error in a later row ends the accepted drafts before it,
    so that the next step reports it from its first row, as without drafts.
    """
    greedy = [each.greedy_result for each in verifications]
    others = [each for each, known in zip(verifications, greedy, strict=True) if known is None]
    chosen = iter(_choose(others, sampler) if others else ())
    return [next(chosen) if known is None else known for known in greedy]


def _choose(verifications: Sequence[Verification], sampler: Sampler) -> list[Accepted | StepError]:
    chosen: list[list[Sampled]] = [[] for _ in verifications]
    outcomes: dict[int, StepError] = {}
    agreeing: Sequence[int] = range(len(verifications))
    while agreeing:
        sampled = sample([verifications[i].input(len(chosen[i])) for i in agreeing], sampler)
        accepted = []
        for i, outcome in zip(agreeing, sampled, strict=True):
            row, drafts = len(chosen[i]), verifications[i].drafts
            if isinstance(outcome, Sampled):
                chosen[i].append(outcome)
                if row < len(drafts) and outcome.token == drafts[row]:
                    accepted.append(i)
            elif not row:
                outcomes[i] = outcome
        agreeing = accepted
    return [outcomes[i] if i in outcomes else _accepted(each) for i, each in enumerate(chosen)]


def _accepted(chosen: Sequence[Sampled]) -> Accepted:
    logprobs = tuple([each.logprobs for each in chosen if each.logprobs is not None])
    return Accepted(tuple([each.token for each in chosen]), logprobs or None, len(chosen) - 1)


def check_threshold(threshold: object) -> None:
    """Raise RequestError for an invalid threshold of lossy verification."""
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= cast(float, threshold) <= 1:
        raise RequestError(f"must be a number between 0 and 1, got {shown(threshold)}", param="acceptance_threshold")


def count_likely(logits: F32, drafts: Sequence[int], threshold: float) -> int:
    """Return how many leading drafts lossy verification accepts: p(draft) >= threshold x max p, from raw logits.

    Args:
        logits: f32 [k + 1, V] or [k, V].
        drafts: k draft tokens.
        threshold: 0 accepts every draft, 1 only a most likely one; see `check_threshold`.
    """
    rows = logits[: len(drafts)]
    below = rows[np.arange(len(drafts)), np.array(drafts, np.int64)] - rows.max(axis=1)
    refused = np.flatnonzero(~(exp(below) >= np.float32(threshold)))
    return int(refused[0]) if refused.size else len(drafts)
