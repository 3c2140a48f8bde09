"""Every rule that a request names has its effect on every backend: native, reference and the tests' own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
import pytest

from ferrum.core.errors import StepError
from ferrum.core.params import SamplingParams
from ferrum.kernels.services import Draw
from ferrum.sampling import backend_sampler, rules
from ferrum.sampling.backend_sampler import BackendSampler
from ferrum.sampling.rows import EditableLogits, Row
from ferrum.sampling.rules import Candidates
from ferrum.sampling.sampler import REFERENCE, Sampler, SamplerInput
from native_twin import TIERS, sampler_of
from sampling_twin import best_of, request
from toy_backend import Rows, ToySampler, plain

VOCABULARY = 131
REQUESTS = 300


def backends() -> dict[str, Sampler]:
    """Return samplers whose rows are arrays of the host."""
    own = {"toy": BackendSampler(ToySampler(), plain)}
    return own | {tier: sampler_of.__wrapped__(tier, 2) for tier in TIERS}


def values(draw: Random) -> dict[str, Any]:
    """Return a value for every parameter that a rule of the sampler applies."""
    return {
        "temperature": draw.choice((0.0, 0.3, 0.8, 1.0, 2.0)),
        "top_k": draw.choice((0, -1, 1, 7, 40)),
        "top_p": draw.choice((1.0, 0.95, 0.5, 1e-6)),
        "min_p": draw.choice((0.0, 0.05, 0.5)),
        "presence_penalty": draw.choice((0.0, 1.5, -2.0)),
        "frequency_penalty": draw.choice((0.0, 0.5, -1.0)),
        "repetition_penalty": draw.choice((1.0, 1.7, 0.5)),
        "no_repeat_ngram_size": draw.choice((0, 1, 2)),
        "dry_multiplier": draw.choice((0.0, 0.8, 5.0)),
        "dry_base": draw.choice((1.0, 1.75)),
        "dry_allowed_length": draw.choice((1, 2)),
        "dry_penalty_last_n": draw.choice((-1, 0, 4)),
        "logit_bias": draw.choice((None, {3: 5.0, 7: -100.0})),
        "allowed_token_ids": draw.choice((None, tuple(range(5, 90)))),
        "stop_token_ids": draw.choice(((), (11, 12))),
        "min_tokens": draw.choice((0, 9)),
    }


SAMPLED = {each.name for each in fields(SamplingParams) if each.metadata["rule"].startswith("sampling.")}
KEYS = {"seed", "bad_words", "dry_sequence_breakers", "logprobs", "logprob_token_ids"}
"""Parameters of the sampler that enter by other ways: as the key of draws, as token ids, and as a report."""


def test_random_requests_set_every_parameter_of_the_sampler() -> None:
    assert set(values(Random(0))) == (SAMPLED - KEYS) | {"stop_token_ids"}


def inputs(kind: int) -> SamplerInput:
    draw, rng = Random(kind), np.random.default_rng(kind)
    logits = (rng.standard_normal(VOCABULARY) * draw.choice((0.5, 3, 10))).astype(np.float32)
    history = [draw.randrange(draw.choice((4, VOCABULARY))) for _ in range(draw.randrange(1, 12))]
    words = tuple((word,) for word in draw.sample(range(VOCABULARY), draw.choice((0, 3))))
    sampling = replace(
        request(history, seed=draw.getrandbits(60), choice=draw.randrange(3), **{"max_tokens": 20, **values(draw)}),
        prompt_length=draw.randrange(len(history) + 1),
        eos_token_ids=(draw.randrange(VOCABULARY),),
        bad_words=words,
        dry_sequence_breakers=draw.choice(((), ((2,), (3, 1)))),
    )
    mask = draw.choice((None, bytes(rng.integers(0, 256, -(-VOCABULARY // 8), np.uint8))))
    return SamplerInput(logits, best_of(logits), Row(sampling, mask=mask))


@pytest.mark.parametrize("name", ["toy", *TIERS])
def test_random_requests_get_the_tokens_of_numpy(name: str) -> None:
    each = [inputs(kind) for kind in range(REQUESTS)]
    sampler, held = backends()[name], Rows if name == "toy" else np.asarray
    on_backend = [replace(one, logits=held(one.logits)) for one in each]
    assert list(map(repr, sampler.choose(on_backend))) == list(map(repr, REFERENCE.choose(each)))


def only_seven(candidates: Candidates, params: SamplingParams) -> Candidates:
    """Keep token 7: a rule that no backend has."""
    return candidates.keep(candidates.tokens == 7)


@pytest.mark.parametrize("name", ["toy", *TIERS])
def test_a_rule_that_a_backend_lacks_is_applied_by_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A regression: native kernels skipped a candidate rule that was added to the list of rules alone."""
    monkeypatch.setattr(rules, "CANDIDATE_RULES", (*rules.CANDIDATE_RULES, only_seven))
    sampler = backends()[name]
    logits = np.zeros(VOCABULARY, np.float32)
    held = (Rows if name == "toy" else np.asarray)(logits)
    given = SamplerInput(held, 0, Row(request([1, 2, 3])))
    assert sampler.choose([given]) == [7]


READINGS: dict[str, Callable[[Row], object]] = {
    "tokens": lambda row: row.tokens(),
    "the last two": lambda row: row.tokens(row.position - 2),
    "history": lambda row: list(row.sampling.history),
    "length of the history": lambda row: len(row.sampling.history),
    "drafts": lambda row: list(row.drafts),
    "last draft": lambda row: row.drafts[-1],
}


@pytest.mark.parametrize("name", ["numpy", "toy", *TIERS])
@pytest.mark.parametrize("reading", READINGS)
def test_a_rule_that_reads_tokens_without_saying_so_fails(
    name: str, reading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A regression: steps that run ahead gave such a rule a history without the newest tokens."""

    def planted(logits: EditableLogits, row: Row) -> None:
        READINGS[reading](row)

    sampler = {"numpy": REFERENCE, **backends()}[name]
    logits = np.zeros(VOCABULARY, np.float32)
    row = Row(request([1, 2, 3], logit_bias={1: 1.0}), [4, 5])
    given = SamplerInput((Rows if name == "toy" else np.asarray)(logits), 0, row)
    monkeypatch.setattr(rules, "LOGIT_RULES", (*rules.LOGIT_RULES, planted))
    with pytest.raises(RuntimeError, match="reads=HISTORY"):
        sampler.choose([given])
    monkeypatch.setattr(rules, "HISTORY_RULES", rules.HISTORY_RULES | {"planted"})
    assert sampler.choose([given]) == [sampler.choose([replace(given, row=replace(row, drafts=(4, 5)))])[0]]


def test_a_rule_may_count_tokens_without_reading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[tuple[int, int]] = []

    def planted(logits: EditableLogits, row: Row) -> None:
        counts.append((row.position, row.generated))

    monkeypatch.setattr(rules, "LOGIT_RULES", (planted,))
    rules.edited(np.zeros(9, np.float32), Row(request([1, 2, 3], prompt=2, logit_bias={1: 1.0}), [4, 5]))
    assert counts == [(5, 3)]


def test_history_without_the_newest_tokens_fails_only_rules_that_read_it() -> None:
    behind, logits = Row(request([1, 2, 3], frequency_penalty=1.0), (9,), start=5), np.zeros(9, np.float32)
    with pytest.raises(StepError, match="needs the 5 tokens"):
        rules.edited(logits, behind)
    assert rules.edited(logits, replace(behind, sampling=request([1, 2, 3], logit_bias={1: 1.0})))[1] == 1.0


def test_a_rule_with_a_parameter_is_numpys_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set(Draw._fields) - {"min_p"}
    within = rules.candidate_rules_within(names)
    assert within(SamplingParams()) and not within(SamplingParams(min_p=0.1))
    assert backend_sampler.candidate_rules_within(Draw._fields)(SamplingParams(min_p=0.1))
