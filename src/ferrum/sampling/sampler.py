"""Rows of logits become tokens.

The choice is by the Gumbel-max trick: with independent Gumbel noise added to final logits, the greatest is a draw from
their softmax (Yellott 1977; Maddison, Tarlow and Minka, "A* sampling", NeurIPS 2014, section 2). The noise of a token
is a function of the request and the token alone, and a token that is no candidate cannot win.
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
class Choice:
    """A token that is to be chosen.

    Attributes:
        logits: raw logits f32 [V]; not changed. A logit of minus infinity is a token that never comes.
        best: the most likely token by them, the lowest id among equals.
        row: what the rules go by.
    """

    logits: F32
    best: int
    row: Row


@dataclass(frozen=True, slots=True)
class Question:
    """The log-probability of `token` by raw logits f32 [V], and the `count` most likely; see `token_logprobs`."""

    logits: F32
    token: int
    count: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token, with its log-probabilities where the request wants them."""

    token: int
    logprobs: TokenLogprobs | None


class Chooser(Protocol):
    """Work over many rows of logits at once. Every chooser gives the same results, and no row's depends on another."""

    def held_bytes(self, vocab_size: int) -> int:
        """Bytes that it holds at most, once it has chosen from rows of so many logits."""
        ...

    def choose(self, choices: Sequence[Choice]) -> list[int | StepError]:
        """For each the token, or why there is none.

        A greedy request gets the most likely permitted token, the lowest id among equals; another one a draw from its
        final distribution.
        """
        ...

    def logprobs(self, questions: Sequence[Question]) -> list[TokenLogprobs]:
        """The answers. Raises as `logprobs.token_logprobs`."""
        ...


class ReferenceChooser:
    """`Chooser` in numpy: the specification."""

    def held_bytes(self, vocab_size: int) -> int:  # noqa: ARG002 - a chooser's signature
        """See `Chooser.held_bytes`: what it makes is gone when it has chosen."""
        return 0

    def choose(self, choices: Sequence[Choice]) -> list[int | StepError]:
        """See `Chooser.choose`."""
        return [_chosen(each.logits, each.row) for each in choices]

    def logprobs(self, questions: Sequence[Question]) -> list[TokenLogprobs]:
        """See `Chooser.logprobs`."""
        return [token_logprobs(each.logits, each.token, each.count) for each in questions]


REFERENCE: Final = ReferenceChooser()
"""Has no state: one serves all."""


def _chosen(logits: F32, row: Row) -> int | StepError:
    try:
        return greedy(logits, row) if row.params.greedy else draw(distribution(logits, row), row)
    except StepError as error:
        return error


def greedy(logits: F32, row: Row) -> int:
    """The most likely permitted token, the lowest id among equals. Raises StepError: there is none."""
    candidates = permitted(logits, row)
    return int(candidates.tokens[np.argmax(candidates.logits)])


def draw(candidates: Candidates, row: Row) -> int:
    """Draw from the softmax of the candidates' logits."""
    u = uniform(candidates.tokens, seed=row.sampling.seed, position=row.position, choice=row.sampling.choice)
    noise = -log(-log(u))
    return int(candidates.tokens[np.argmax(candidates.logits + noise)])


def sample(choices: Sequence[Choice], chooser: Chooser = REFERENCE) -> list[Sampled | StepError]:
    """Choose tokens, for each its own; an error where no token is allowed."""
    tokens = chooser.choose(choices)
    questions: dict[int, Question] = {}
    for i, (choice, token) in enumerate(zip(choices, tokens, strict=True)):
        count = choice.row.params.logprobs
        if count is not None and not isinstance(token, StepError):
            questions[i] = Question(choice.logits, token, count)
    answers = dict(zip(questions, chooser.logprobs(tuple(questions.values())), strict=True)) if questions else {}
    return [token if isinstance(token, StepError) else Sampled(token, answers.get(i)) for i, token in enumerate(tokens)]


_reports_nothing: Final = Neutral(sample.__name__)


def plain(sampling: Sampling) -> bool:
    """Whether `sample` comes to the most likely tokens by the raw logits, and to nothing else."""
    return takes_best(sampling) and _reports_nothing(sampling.params)


def score(logits: F32, wish: Score, chooser: Chooser = REFERENCE) -> tuple[TokenLogprobs, ...]:
    """The log-probabilities of given next tokens, one result per target.

    Args:
        logits: raw logits f32 [R, V]; rows after the last target are not looked at.
        wish: at most R targets.
        chooser: does the work.

    Raises:
        NonFiniteLogits: as `math.greatest`.
    """
    pairs = zip(logits, wish.targets, strict=False)
    return tuple(chooser.logprobs([Question(row, target, wish.top) for row, target in pairs]))
