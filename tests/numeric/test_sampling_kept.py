"""State cached per request changes no result, and is freed with the request."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any
from weakref import ref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ferrum.core.params import SamplingParams
from ferrum.sampling.rows import OwnerCache, Row
from ferrum.sampling.rules import edited, truncate_counts
from sampling_twin import request

V = 12
TOKENS = st.lists(st.integers(0, V - 1), max_size=6)
RULES = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.3]),
        "presence_penalty": st.sampled_from([-1.5, 0.7]),
        "frequency_penalty": st.sampled_from([-0.3, 1.1]),
        "logit_bias": st.dictionaries(st.integers(0, V - 1), st.sampled_from([-3.0, 0.1]), min_size=1),
        "allowed_token_ids": st.lists(st.integers(0, V - 1), min_size=1, unique=True),
        "min_tokens": st.integers(1, 9),
        "no_repeat_ngram_size": st.integers(1, 3),
        "dry_multiplier": st.just(0.8),
        "dry_allowed_length": st.integers(1, 2),
        "dry_penalty_last_n": st.sampled_from([-1, 5]),
        "dry_sequence_breakers": st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=2), max_size=2),
        "stop_token_ids": st.lists(st.integers(0, 2 * V), max_size=4),
    },
)


@given(TOKENS.filter(bool), st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=5), RULES)
def test_incremental_counts_equal_a_full_count(
    prompt: list[int], turns: list[tuple[list[int], list[int]]], params: dict[str, Any]
) -> None:
    logits = np.random.default_rng(len(prompt)).normal(0, 3, V).astype(np.float32)
    growing = request(prompt, prompt=len(prompt), **params)
    for new, drafts in turns:
        growing.history.extend(new)  # type: ignore[attr-defined]
        fresh = request([*growing.history, *drafts], prompt=len(prompt), **params)
        got = edited(logits, Row(growing, drafts))
        np.testing.assert_array_equal(got.view(np.int32), edited(logits, Row(fresh)).view(np.int32))


@given(TOKENS.filter(bool), st.lists(st.tuples(TOKENS, st.integers(0, 6)), min_size=1, max_size=5), RULES)
def test_counts_after_truncation_equal_a_full_count(
    prompt: list[int], turns: list[tuple[list[int], int]], params: dict[str, Any]
) -> None:
    logits = np.random.default_rng(len(prompt)).normal(0, 3, V).astype(np.float32)
    cut = request(prompt, prompt=len(prompt), **params)
    history = cut.history
    assert isinstance(history, list)
    for new, gone in turns:
        length = max(len(prompt), len(history) - gone)
        truncate_counts(cut, length)
        del history[length:]
        history += new
        fresh = request(list(history), prompt=len(prompt), **params)
        got = edited(logits, Row(cut))
        np.testing.assert_array_equal(got.view(np.int32), edited(logits, Row(fresh)).view(np.int32))


def test_token_ids_of_a_request_are_converted_once_for_all_choices() -> None:
    """Converting an id list of the size of the vocabulary takes the time of a step, which delays all requests."""
    calls = 0

    class Named(int):
        def __lt__(self, other: int) -> bool:
            nonlocal calls
            calls += 1
            return int(self) < other

    params = SamplingParams(min_tokens=3, stop_token_ids=[7, V])
    object.__setattr__(params, "stop_token_ids", (Named(7), Named(V)))
    for choice in range(4):
        sampling = replace(request([1]), params=params, choice=choice)
        for each in (sampling, replace(sampling, history=[1, 2])):
            assert np.flatnonzero(np.isinf(edited(np.zeros(V, np.float32), Row(each)))).tolist() == [7]
    assert calls == 2


def test_owners_are_compared_by_identity_and_values_freed_with_them() -> None:
    class Thing:
        pass

    keep = OwnerCache[Thing]()
    one, other = SamplingParams(), SamplingParams()
    first = ref(keep(one, Thing))
    assert keep(one, Thing) is first() and keep(other, Thing) is not first()
    del one
    gc.collect()
    assert first() is None
    assert keep(other, Thing) is keep(other, Thing)
