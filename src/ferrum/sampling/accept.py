"""Verification of drafts.

Exact verification is sampling: each row's token is chosen as if the drafts had never been guessed, and a draft is right
when it is that token. It holds at any temperature, with any proposer, because a draw depends on the request alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ferrum.core.errors import RequestError, StepError
from ferrum.core.step import Sampling, TokenLogprobs
from ferrum.kernels.reference.math import exp
from ferrum.sampling.math import F32
from ferrum.sampling.sampler import REFERENCE, Chooser, Sampled, sample


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a verified span came to.

    Attributes:
        tokens: the accepted drafts and the token after them: `accepted + 1` tokens.
        logprobs: one per token, where the request wants them.
        accepted: how many drafts were right.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    accepted: int


def accept(logits: F32, drafts: Sequence[int], sampling: Sampling, chooser: Chooser = REFERENCE) -> Accepted:
    """Choose tokens row by row for as long as the drafts agree; without drafts this is `sample`.

    A row that cannot be sampled after others could hands back the last right draft as unverified, so that the error
    comes where it would have come without drafts: from the first row of the next step.

    Args:
        logits: raw logits f32 [k + 1, V]: row i follows the history and the first i drafts.
        drafts: k guessed tokens.
        sampling: the request's parameters, seed and history (without the drafts).
        chooser: does the work.

    Raises:
        NonFiniteLogits, StepError: as `sample`, from the first row.
    """
    chosen: list[Sampled] = []
    for row, logit_row in enumerate(logits):
        try:
            chosen.append(sample(logit_row, sampling, drafts[:row], chooser))
        except StepError:
            if not chosen:
                raise
            break
        if row == len(drafts) or chosen[-1].token != drafts[row]:
            break
    logprobs = tuple(each.logprobs for each in chosen if each.logprobs is not None)
    return Accepted(
        tokens=tuple(each.token for each in chosen),
        logprobs=logprobs or None,
        accepted=len(chosen) - 1,
    )


def count_likely(logits: F32, drafts: Sequence[int], threshold: float) -> int:
    """How many leading drafts a lossy verification takes: those with p(draft) >= threshold x max p, from raw logits.

    Args:
        logits: f32 [k + 1, V] or [k, V].
        drafts: k guessed tokens.
        threshold: 0 takes every draft, 1 only a most likely one.

    Raises:
        RequestError: a threshold outside [0, 1].
    """
    if not 0.0 <= threshold <= 1.0:
        raise RequestError(f"must be between 0 and 1, not {threshold}", param="acceptance_threshold")
    rows = logits[: len(drafts)]
    below = rows[np.arange(len(drafts)), np.array(drafts, np.int64)] - rows.max(axis=1)
    refused = np.flatnonzero(~(exp(below) >= np.float32(threshold)))
    return int(refused[0]) if refused.size else len(drafts)
