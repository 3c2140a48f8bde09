"""Verification of drafts.

Exact verification is sampling: each row's token is chosen as if the drafts had never been guessed, and a draft is right
when it is that token. It holds at any temperature, with any proposer, because a draw depends on the request alone.
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
from ferrum.sampling.sampler import REFERENCE, Choice, Chooser, Sampled, plain, sample


class Accepted(NamedTuple):
    """What a verified span came to.

    Attributes:
        tokens: the accepted drafts and the token after them: `accepted + 1` tokens.
        logprobs: one per token, where the request wants them.
        accepted: how many drafts were right.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    accepted: int


class Verification(NamedTuple):
    """Rows of one sequence that tokens are chosen from.

    Attributes:
        logits: raw logits f32 [k + 1, V]: row i follows the history and the first i drafts.
        best: the most likely token of each row.
        drafts: k guessed tokens; without any this is sampling.
        sampling: the request's parameters, seed and history (without the drafts).
    """

    logits: F32
    best: Sequence[int]
    drafts: Sequence[int]
    sampling: Sampling

    @property
    def foregone(self) -> Accepted | None:
        """What it comes to where nothing is left to choose or to verify."""
        return None if self.drafts or not plain(self.sampling) else Accepted((self.best[-1],), None, 0)

    def choice(self, row: int) -> Choice:
        """The token of a row, all drafts before it being right."""
        return Choice(self.logits[row], self.best[row], Row(self.sampling, self.drafts[:row]))


def accept(verifications: Sequence[Verification], chooser: Chooser = REFERENCE) -> list[Accepted | StepError]:
    """Choose tokens row by row, of all sequences side by side, each for as long as its drafts agree.

    A row that cannot be sampled after others could hands back the last right draft as unverified, so that the error
    comes where it would have come without drafts: from the first row of the next step. From the first row it is the
    sequence's outcome.
    """
    foregone = [each.foregone for each in verifications]
    others = [each for each, known in zip(verifications, foregone, strict=True) if known is None]
    chosen = iter(_choose(others, chooser) if others else ())
    return [next(chosen) if known is None else known for known in foregone]


def _choose(verifications: Sequence[Verification], chooser: Chooser) -> list[Accepted | StepError]:
    chosen: list[list[Sampled]] = [[] for _ in verifications]
    outcomes: dict[int, StepError] = {}
    agreeing: Sequence[int] = range(len(verifications))
    while agreeing:
        sampled = sample([verifications[i].choice(len(chosen[i])) for i in agreeing], chooser)
        right = []
        for i, outcome in zip(agreeing, sampled, strict=True):
            place, drafts = len(chosen[i]), verifications[i].drafts
            if isinstance(outcome, Sampled):
                chosen[i].append(outcome)
                if place < len(drafts) and outcome.token == drafts[place]:
                    right.append(i)
            elif not place:
                outcomes[i] = outcome
        agreeing = right
    return [outcomes[i] if i in outcomes else _accepted(each) for i, each in enumerate(chosen)]


def _accepted(chosen: Sequence[Sampled]) -> Accepted:
    logprobs = tuple([each.logprobs for each in chosen if each.logprobs is not None])
    return Accepted(tuple([each.token for each in chosen]), logprobs or None, len(chosen) - 1)


def check_threshold(threshold: object) -> None:
    """Refuse what is no threshold of a lossy verification. Raises RequestError."""
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= cast(float, threshold) <= 1:
        raise RequestError(f"must be a number between 0 and 1, not {shown(threshold)}", param="acceptance_threshold")


def count_likely(logits: F32, drafts: Sequence[int], threshold: float) -> int:
    """How many leading drafts a lossy verification takes: those with p(draft) >= threshold x max p, from raw logits.

    Args:
        logits: f32 [k + 1, V] or [k, V].
        drafts: k guessed tokens.
        threshold: 0 takes every draft, 1 only a most likely one; see `check_threshold`.
    """
    rows = logits[: len(drafts)]
    below = rows[np.arange(len(drafts)), np.array(drafts, np.int64)] - rows.max(axis=1)
    refused = np.flatnonzero(~(exp(below) >= np.float32(threshold)))
    return int(refused[0]) if refused.size else len(drafts)
