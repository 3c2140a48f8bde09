"""Helpers of the sampling tests: requests, dense distributions, and a float64 twin of all rules.

The twin sorts everything, keeps probabilities instead of logits after the temperature, and shares no code with ferrum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import StepError
from ferrum.core.params import SamplingParams
from ferrum.core.step import Sampling
from ferrum.sampling.probabilities import greatest
from ferrum.sampling.rows import Row
from ferrum.sampling.rules import distribution
from ferrum.sampling.sampler import REFERENCE, Accepted, Sampled, Sampler, SamplerInput, Verification
from ferrum.sampling.sampler import accept as accept_all
from ferrum.sampling.sampler import sample as sample_all

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def request(
    history: Sequence[int] = (0,),
    *,
    prompt: int = 1,
    seed: int = 7,
    choice: int = 0,
    eos: Sequence[int] = (),
    **params: Any,
) -> Sampling:
    """Return a sampling state; `bad_words` and `dry_sequence_breakers` are given resolved."""
    resolved = ("bad_words", "dry_sequence_breakers")
    return Sampling(
        params=SamplingParams(**{name: value for name, value in params.items() if name not in resolved}),
        seed=seed,
        prompt_length=prompt,
        history=list(history),
        choice=choice,
        eos_token_ids=tuple(eos),
        bad_words=tuple(map(tuple, params.get("bad_words", ()))),
        dry_sequence_breakers=tuple(map(tuple, params.get("dry_sequence_breakers", ()))),
    )


def best_of(logits: F32) -> int:
    """Return the most likely token, as a step reports it."""
    return int(logits.argmax())


def sample(
    logits: F32,
    sampling: Sampling,
    drafts: Sequence[int] = (),
    sampler: Sampler = REFERENCE,
    *,
    mask: bytes | None = None,
) -> Sampled:
    """Sample one token of one row. Raise its error; a row that is not finite raises first, as in a step."""
    greatest(logits)
    (outcome,) = sample_all([SamplerInput(logits, best_of(logits), Row(sampling, drafts, mask))], sampler)
    if isinstance(outcome, StepError):
        raise outcome
    return outcome


def accept(logits: F32, drafts: Sequence[int], sampling: Sampling, masks: Sequence[bytes | None] = ()) -> Accepted:
    """Verify one sequence and return its tokens. Raise the error of its first row."""
    (outcome,) = accept_all([Verification(logits, [best_of(row) for row in logits], drafts, sampling, masks)])
    if isinstance(outcome, StepError):
        raise outcome
    return outcome


def probabilities(logits: F32, sampling: Sampling, mask: bytes | None = None) -> F64:
    """Return the distribution that ferrum draws from, f64 [V], 0 for a token that is no candidate."""
    candidates = distribution(logits, Row(sampling, mask=mask))
    dense = np.zeros(logits.size)
    weights = np.exp(candidates.logits.astype(np.float64))
    dense[candidates.tokens] = weights / weights.sum()
    return dense


def softmax(x: F64) -> F64:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def common_suffix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many of the last tokens are equal."""
    length = 0
    while length < min(len(left), len(right)) and left[-length - 1] == right[-length - 1]:
        length += 1
    return length


def twin(logits: F32, sampling: Sampling) -> F64:
    """Apply the rules in order, each by its definition: the distribution f64 [V]."""
    p, history = sampling.params, list(sampling.history)
    generated = history[sampling.prompt_length :]
    x = logits.astype(np.float64)
    for token in range(x.size):
        if p.allowed_token_ids is not None and token not in p.allowed_token_ids:
            x[token] = -np.inf
        if any([*history, token][-len(word) :] == list(word) for word in sampling.bad_words):
            x[token] = -np.inf
        size = p.no_repeat_ngram_size
        grams = [history[place : place + size] for place in range(len(history) - size + 1)]
        if size and [*history, token][-size:] in grams:
            x[token] = -np.inf
        if len(generated) < p.min_tokens and token in (*sampling.eos_token_ids, *p.stop_token_ids):
            x[token] = -np.inf
        x[token] += (p.logit_bias or {}).get(token, 0.0)
        if token in history:
            x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
        x[token] -= p.presence_penalty * (token in generated) + p.frequency_penalty * generated.count(token)
        before = [place for place, each in enumerate(history) if each == token]
        repeated = max((common_suffix(history[:place], history) for place in before), default=0)
        if repeated >= p.dry_allowed_length:
            x[token] -= p.dry_multiplier * p.dry_base ** (repeated - p.dry_allowed_length)
    probs = softmax(x / p.temperature)
    order = sorted(range(x.size), key=lambda token: (-probs[token], token))
    if p.top_k > 0:
        probs[order[p.top_k :]] = 0.0
        probs /= probs.sum()
    if p.top_p < 1.0:
        mass_before = np.concatenate([[0.0], np.cumsum(probs[order])[:-1]])
        probs[np.array(order)[mass_before >= p.top_p]] = 0.0
    probs[probs < p.min_p * probs.max()] = 0.0
    return probs / probs.sum()
