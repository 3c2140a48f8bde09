"""Choices by the native library: numpy's results, bit for bit, in a fraction of its time, the rows side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrum.core.errors import StepError
from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import TokenLogprobs
from ferrum.kernels.cpu.library import load
from ferrum.sampling.logprobs import report
from ferrum.sampling.probability_mass import F32, checked
from ferrum.sampling.rules import edited, nothing_allowed, takes_best
from ferrum.sampling.sampler import Choice, Question


class NativeChooser:
    """`Chooser` whose work over the vocabulary is native; the rules that edit a few logits are the reference's.

    Args:
        runtime: a `Runtime` of the library, whose team does the work between its steps.
    """

    def __init__(self, runtime: Any) -> None:
        self._team = load().SamplerTeam(runtime)

    def held_bytes(self, vocab_size: int) -> int:
        """See `Chooser.held_bytes`."""
        held: int = self._team.held_bytes(vocab_size)
        return held

    def choose(self, choices: Sequence[Choice]) -> list[int | StepError]:
        """See `Chooser.choose`."""
        tokens: list[int | StepError] = [each.best for each in choices]
        drawn = [i for i, each in enumerate(choices) if not takes_best(each.row.sampling)]
        if drawn:
            found = self._team.draw([_draw(choices[i]) for i in drawn])
            for i, token in zip(drawn, found, strict=True):
                tokens[i] = token if token >= 0 else nothing_allowed(choices[i].row)
        return tokens

    def logprobs(self, questions: Sequence[Question]) -> list[TokenLogprobs]:
        """See `Chooser.logprobs`."""
        asked = [(np.ascontiguousarray(each.logits), each.token, _at_most(each)) for each in questions]
        return [
            report(row, token, np.array(best, np.int64), checked(np.float32(peak)), np.float32(normaliser), rank)
            for (row, token, _), (peak, normaliser, rank, best) in zip(asked, self._team.describe(asked), strict=True)
        ]


def _at_most(question: Question) -> int:
    """How many tokens to report: no more than there are, however large the number that was asked for."""
    size = question.logits.size
    return size if question.count == ALL_TOKENS else min(question.count, size)


def _draw(choice: Choice) -> tuple[F32, float, int, float, float, int, int, int]:
    """A draw as the library takes it: what from, temperature, top-k, top-p, min-p, seed, position, choice."""
    row, sampling, params = choice.row, choice.row.sampling, choice.row.params
    logits = np.ascontiguousarray(edited(choice.logits, row))
    temperature = 0.0 if params.greedy else params.temperature
    rules = (temperature, min(params.top_k, logits.size), params.top_p, params.min_p)
    return (logits, *rules, sampling.seed & 0xFFFFFFFFFFFFFFFF, row.position, sampling.choice)
