"""Sampling by a backend, with the results of numpy bit for bit.

Rules that edit a few logits run in numpy. The candidate rules of a backend are the fields of `Draw`; a request with any
other rule is sampled in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ferrum.core.errors import StepError
from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import TokenLogprobs
from ferrum.kernels.interface import Kernels
from ferrum.kernels.operations import Array
from ferrum.kernels.services import Draw, Question, RowSampler
from ferrum.sampling.probabilities import F32, checked, report
from ferrum.sampling.rules import candidate_rules_within, edited, leaves_logits, nothing_allowed, takes_best
from ferrum.sampling.sampler import LogprobsQuery, ReferenceSampler, Sampler, SamplerInput


def sampler_of(kernels: Kernels) -> Sampler:
    """Return the sampler of a backend's rows: its own, or numpy's on the host."""
    rows = kernels.sampler()
    return ReferenceSampler(kernels.host) if rows is None else BackendSampler(rows, kernels.host)


class BackendSampler(Sampler):
    """`Sampler` that reads whole rows where they are. Only a row that rules edit is fetched.

    Args:
        rows: of the backend.
        host: returns an array's numbers.
    """

    def __init__(self, rows: RowSampler, host: Callable[[Array], F32]) -> None:
        self._rows, self._host = rows, host
        self._reference = ReferenceSampler(host)
        self._has_rules = candidate_rules_within(Draw._fields)

    def held_bytes(self, vocab_size: int) -> int:
        return self._rows.held_bytes(vocab_size)

    def choose(self, inputs: Sequence[SamplerInput]) -> list[int | StepError]:
        tokens: list[int | StepError] = [each.best for each in inputs]
        drawn: list[int] = []
        others: list[int] = []
        for i, each in enumerate(inputs):
            if each.row.mask is not None or not takes_best(each.row.sampling):
                (drawn if each.row.params.greedy or self._has_rules(each.row.params) else others).append(i)
        if drawn:
            found = self._rows.draw([self._draw(inputs[i]) for i in drawn])
            for i, token in zip(drawn, found, strict=True):
                tokens[i] = token if token >= 0 else nothing_allowed(inputs[i].row)
        for i, chosen in zip(others, self._reference.choose([inputs[i] for i in others]), strict=True):
            tokens[i] = chosen
        return tokens

    def _draw(self, source: SamplerInput) -> Draw:
        row, sampling, params = source.row, source.row.sampling, source.row.params
        logits: Any = source.logits
        if row.mask is not None or not leaves_logits(sampling):
            logits = edited(self._host(logits), row)
        temperature = 0.0 if params.greedy else params.temperature
        rules = (temperature, min(params.top_k, len(logits)), params.top_p, params.min_p)
        return Draw(logits, *rules, sampling.seed & 0xFFFFFFFFFFFFFFFF, row.position, sampling.choice)

    def logprobs(self, queries: Sequence[LogprobsQuery]) -> list[TokenLogprobs]:
        found = self._rows.standings([_question(each) for each in queries])
        for standing in found:
            checked(standing.peak)
        return [report(query.token, standing) for query, standing in zip(queries, found, strict=True)]


def _question(query: LogprobsQuery) -> Question:
    size = len(query.logits)
    return Question(query.logits, query.token, size if query.count == ALL_TOKENS else min(query.count, size))
