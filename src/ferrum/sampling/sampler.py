"""Sampling of tokens from rows of logits.

Draws use the Gumbel-max trick: the maximum of final logits plus independent Gumbel noise is a draw from their softmax
(Yellott 1977; Maddison, Tarlow and Minka, "A* sampling", NeurIPS 2014, section 2). The noise depends only on the
request, the position and the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from ferrum.core.errors import StepError
from ferrum.core.step import Sampling, Score, TokenLogprobs
from ferrum.sampling.logprobs import token_logprobs
from ferrum.sampling.philox import uniform
from ferrum.sampling.probability_mass import F32, log
from ferrum.sampling.rules import Candidates, Neutral, Row, distribution, permitted, takes_best


@dataclass(frozen=True, slots=True)
class SamplerInput:
    """A row to sample from.

    Attributes:
        logits: raw logits f32 [V]; not changed. Minus infinity forbids a token.
        best: the most likely token, the lowest id among equals.
        row: inputs of the rules.
    """

    logits: F32
    best: int
    row: Row


@dataclass(frozen=True, slots=True)
class LogprobsQuery:
    """A query for the log-probabilities of `token` and of the `count` most likely tokens, from raw logits f32 [V]."""

    logits: F32
    token: int
    count: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampled token, with log-probabilities if requested."""

    token: int
    logprobs: TokenLogprobs | None


class Sampler(Protocol):
    """A sampler of many rows of logits. All samplers give the same results; rows are independent."""

    def held_bytes(self, vocab_size: int) -> int:
        """Return the maximum scratch memory in bytes."""

    def choose(self, inputs: Sequence[SamplerInput]) -> list[int | StepError]:
        """Return the token of each row, or its error.

        A greedy request gets the most likely permitted token, the lowest id among equals. Others get a draw from their
        final distribution.
        """

    def logprobs(self, queries: Sequence[LogprobsQuery]) -> list[TokenLogprobs]:
        """Return the log-probabilities of each query. Raises as `logprobs.token_logprobs`."""


class ReferenceSampler(Sampler):
    """`Sampler` in numpy: the specification."""

    def held_bytes(self, vocab_size: int) -> int:  # noqa: ARG002 - signature of a sampler
        return 0

    def choose(self, inputs: Sequence[SamplerInput]) -> list[int | StepError]:
        return [_chosen(each.logits, each.row) for each in inputs]

    def logprobs(self, queries: Sequence[LogprobsQuery]) -> list[TokenLogprobs]:
        return [token_logprobs(each.logits, each.token, each.count) for each in queries]


REFERENCE: Final = ReferenceSampler()
"""The reference sampler, which has no state."""


def _chosen(logits: F32, row: Row) -> int | StepError:
    try:
        return greedy(logits, row) if row.params.greedy else draw(distribution(logits, row), row)
    except StepError as error:
        return error


def greedy(logits: F32, row: Row) -> int:
    """Return the most likely permitted token, the lowest id among equals. Raises StepError if there is none."""
    candidates = permitted(logits, row)
    return int(candidates.tokens[np.argmax(candidates.logits)])


def draw(candidates: Candidates, row: Row) -> int:
    """Draw a token from the softmax of the candidates' logits."""
    u = uniform(candidates.tokens, seed=row.sampling.seed, position=row.position, choice=row.sampling.choice)
    noise = -log(-log(u))
    return int(candidates.tokens[np.argmax(candidates.logits + noise)])


def sample(inputs: Sequence[SamplerInput], sampler: Sampler = REFERENCE) -> list[Sampled | StepError]:
    """Sample a token per row, with requested log-probabilities; an error if no token is allowed."""
    tokens = sampler.choose(inputs)
    queries: dict[int, LogprobsQuery] = {}
    for i, (each, token) in enumerate(zip(inputs, tokens, strict=True)):
        count = each.row.params.logprobs
        if count is not None and not isinstance(token, StepError):
            queries[i] = LogprobsQuery(each.logits, token, count)
    answers = dict(zip(queries, sampler.logprobs(tuple(queries.values())), strict=True)) if queries else {}
    return [token if isinstance(token, StepError) else Sampled(token, answers.get(i)) for i, token in enumerate(tokens)]


_reports_nothing: Final = Neutral(sample.__name__)


def is_plain_greedy(sampling: Sampling) -> bool:
    """Return whether `sample` always returns the most likely raw token without log-probabilities."""
    return takes_best(sampling) and _reports_nothing(sampling.params)


def score(logits: F32, request: Score, sampler: Sampler = REFERENCE) -> tuple[TokenLogprobs, ...]:
    """Return the log-probabilities of given next tokens, one result per target.

    Args:
        logits: raw logits f32 [R, V]; rows after the last target are ignored.
        request: at most R targets.
        sampler: computes them.

    Raises:
        NonFiniteLogits: as `probability_mass.greatest`.
    """
    pairs = zip(logits, request.targets, strict=False)
    return tuple(sampler.logprobs([LogprobsQuery(row, target, request.top) for row, target in pairs]))
