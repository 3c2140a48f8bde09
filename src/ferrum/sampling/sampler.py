"""Sampling of tokens from rows of logits.

Draws use the Gumbel-max trick: the maximum of final logits plus independent Gumbel noise is a draw from their softmax
(Yellott 1977; Maddison, Tarlow and Minka, "A* sampling", NeurIPS 2014, section 2). The noise depends only on the
request, the position and the token.

Verification of draft tokens is sampling, too: each row's token is sampled as without drafts, and a draft is accepted if
it equals that token. This works at any temperature with any proposer, because a draw depends only on the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import numpy as np

from ferrum.core.errors import StepError
from ferrum.core.params import SamplingParams
from ferrum.core.rule_fields import Neutral
from ferrum.core.step import Sampling, Score, TokenLogprobs
from ferrum.kernels.operations import Array
from ferrum.kernels.reference.reference_math import log
from ferrum.sampling.philox import uniform
from ferrum.sampling.probabilities import F32, token_logprobs
from ferrum.sampling.rows import Row
from ferrum.sampling.rules import Candidates, distribution, permitted, takes_best


@dataclass(frozen=True, slots=True)
class SamplerInput:
    """A row to sample from.

    Attributes:
        logits: raw logits [V] of the backend; not changed. Minus infinity forbids a token.
        best: the most likely token, the lowest id among equals.
        row: inputs of the rules.
    """

    logits: Array
    best: int
    row: Row


@dataclass(frozen=True, slots=True)
class LogprobsQuery:
    """A query for the log-probabilities of `token` and of the `count` most likely tokens, from raw logits [V]."""

    logits: Array
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
    """`Sampler` in numpy: the specification.

    Args:
        host: returns the numbers of a row.
    """

    def __init__(self, host: Callable[[Array], F32] = np.asarray) -> None:
        self._host = host

    def held_bytes(self, vocab_size: int) -> int:  # noqa: ARG002 - signature of a sampler
        return 0

    def choose(self, inputs: Sequence[SamplerInput]) -> list[int | StepError]:
        return [_chosen(self._host(each.logits), each.row) for each in inputs]

    def logprobs(self, queries: Sequence[LogprobsQuery]) -> list[TokenLogprobs]:
        return [token_logprobs(self._host(each.logits), each.token, each.count) for each in queries]


REFERENCE: Final = ReferenceSampler()
"""The reference sampler of rows on the host."""


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
    queries: dict[tuple[int, int | None], LogprobsQuery] = {}
    for i, (each, token) in enumerate(zip(inputs, tokens, strict=True)):
        params = each.row.params
        if params.logprobs is not None and not isinstance(token, StepError):
            queries[i, None] = LogprobsQuery(each.logits, token, params.logprobs)
            queries |= {(i, given): LogprobsQuery(each.logits, given, 0) for given in given_tokens(params)}
    answers = dict(zip(queries, sampler.logprobs(tuple(queries.values())), strict=True)) if queries else {}
    return [
        token if isinstance(token, StepError) else Sampled(token, _with_given(inputs[i].row.params, i, answers))
        for i, token in enumerate(tokens)
    ]


def _with_given(
    params: SamplingParams, i: int, answers: Mapping[tuple[int, int | None], TokenLogprobs]
) -> TokenLogprobs | None:
    """Return the log-probabilities of row `i`, if requested, with those of the given tokens."""
    found = answers.get((i, None))
    given = given_tokens(params)
    return found if found is None or not given else replace(found, given=tuple(answers[i, each] for each in given))


def given_tokens(params: SamplingParams) -> Sequence[int]:
    """Return the tokens whose log-probabilities are reported at each position, likely or not."""
    return params.logprob_token_ids


_reports_nothing: Final = Neutral(sample.__name__)


def is_plain_greedy(sampling: Sampling) -> bool:
    """Return whether `sample` always returns the most likely raw token without log-probabilities."""
    return takes_best(sampling) and _reports_nothing(sampling)


def score(logits: Array, request: Score, sampler: Sampler = REFERENCE) -> tuple[TokenLogprobs, ...]:
    """Return the log-probabilities of given next tokens, one result per target.

    Args:
        logits: raw logits [R, V] of the backend; rows after the last target are ignored.
        request: at most R targets.
        sampler: computes them.

    Raises:
        NonFiniteLogits: as `probability_mass.greatest`.
    """
    pairs = zip(logits, request.targets, strict=False)
    return tuple(sampler.logprobs([LogprobsQuery(row, target, request.top) for row, target in pairs]))


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
        logits: k + 1 rows of raw logits [V] of the backend: row i follows the history and the first i draft tokens.
        best: the most likely token of each row.
        drafts: k draft tokens; with k = 0 this is plain sampling.
        sampling: parameters, seed and history of the request, without the drafts.
        masks: of each row, or none at all; see `Span.masks`.
        start: position of row 0's token; None: the end of the history.
        carried: the tokens before that position that the history may not hold yet.
    """

    logits: Sequence[Array]
    best: Sequence[int]
    drafts: Sequence[int]
    sampling: Sampling
    masks: Sequence[bytes | None] = ()
    start: int | None = None
    carried: Sequence[int] = ()

    @property
    def greedy_result(self) -> Accepted | None:
        """The result of a plain greedy request without drafts, or None."""
        if self.drafts or self.masks or not is_plain_greedy(self.sampling):
            return None
        return Accepted((self.best[-1],), None, 0)

    def input(self, row: int) -> SamplerInput:
        """Return the input of a row, given that all drafts before it are accepted."""
        before = (*self.carried, *self.drafts[:row])
        known = None if self.start is None else self.start - len(self.carried)
        mask = self.masks[row] if self.masks else None
        return SamplerInput(self.logits[row], self.best[row], Row(self.sampling, before, mask, known))

    def input_or_error(self, row: int) -> SamplerInput | StepError:
        """Return the input of a row, or the error that its mask could not be computed for. Waits for the mask."""
        try:
            return self.input(row)
        except StepError as error:
            return error


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
        sampled = _sample_ready([verifications[i].input_or_error(len(chosen[i])) for i in agreeing], sampler)
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


def _sample_ready(inputs: Sequence[SamplerInput | StepError], sampler: Sampler) -> list[Sampled | StepError]:
    """Sample a token per row; a row whose mask could not be computed keeps that error."""
    sampled = iter(sample([each for each in inputs if isinstance(each, SamplerInput)], sampler))
    return [next(sampled) if isinstance(each, SamplerInput) else each for each in inputs]


def _accepted(chosen: Sequence[Sampled]) -> Accepted:
    logprobs = tuple([each.logprobs for each in chosen if each.logprobs is not None])
    return Accepted(tuple([each.token for each in chosen]), logprobs or None, len(chosen) - 1)
