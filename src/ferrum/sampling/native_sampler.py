"""Sampling by the native library, with the results of numpy bit for bit. Rows run in parallel."""

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
from ferrum.sampling.sampler import LogprobsQuery, Sampler, SamplerInput


class NativeSampler(Sampler):
    """`Sampler` with native work over the vocabulary. Rules that edit a few logits run in numpy.

    Args:
        runtime: a `Runtime` of the library. Its thread team samples between steps.
    """

    def __init__(self, runtime: Any) -> None:
        self._team = load().SamplerTeam(runtime)

    def held_bytes(self, vocab_size: int) -> int:
        return int(self._team.held_bytes(vocab_size))

    def choose(self, inputs: Sequence[SamplerInput]) -> list[int | StepError]:
        tokens: list[int | StepError] = [each.best for each in inputs]
        drawn = [i for i, each in enumerate(inputs) if each.row.mask is not None or not takes_best(each.row.sampling)]
        if drawn:
            found = self._team.draw([_draw(inputs[i]) for i in drawn])
            for i, token in zip(drawn, found, strict=True):
                tokens[i] = token if token >= 0 else nothing_allowed(inputs[i].row)
        return tokens

    def logprobs(self, queries: Sequence[LogprobsQuery]) -> list[TokenLogprobs]:
        rows = [(np.ascontiguousarray(each.logits), each.token, _count(each)) for each in queries]
        return [
            report(row, token, np.array(best, np.int64), checked(np.float32(peak)), np.float32(normaliser), rank)
            for (row, token, _), (peak, normaliser, rank, best) in zip(rows, self._team.describe(rows), strict=True)
        ]


def _count(query: LogprobsQuery) -> int:
    """Return how many tokens to report, at most the vocabulary."""
    size = query.logits.size
    return size if query.count == ALL_TOKENS else min(query.count, size)


def _draw(source: SamplerInput) -> tuple[F32, float, int, float, float, int, int, int]:
    """Return a draw as the library takes it: logits, temperature, top-k, top-p, min-p, seed, position, choice."""
    row, sampling, params = source.row, source.row.sampling, source.row.params
    logits = np.ascontiguousarray(edited(source.logits, row))
    temperature = 0.0 if params.greedy else params.temperature
    rules = (temperature, min(params.top_k, logits.size), params.top_p, params.min_p)
    return (logits, *rules, sampling.seed & 0xFFFFFFFFFFFFFFFF, row.position, sampling.choice)
