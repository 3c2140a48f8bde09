"""Requests of a limited number of kinds that together use every sampling rule."""

from __future__ import annotations

from random import Random

from ferrum.core.params import SamplingParams
from ferrum.core.types import Request

VOCABULARY = 131
"""Vocabulary size of the tiny models."""


def recipe(kind: int) -> Request:
    """Return a request of one kind; its id and times are set later."""
    pick = Random(kind)
    length = pick.choice((1, 2, 5, pick.randrange(1, 20), pick.randrange(10, 55)))
    eos, *stops = pick.sample(range(VOCABULARY), 8)
    greedy = pick.random() < 0.3
    max_tokens = pick.choice((None, 0, 1, 4, 12, 20))
    params = SamplingParams(
        n=pick.choice((1, 1, 1, 2, 3)),
        temperature=0.0 if greedy else 0.8,
        top_p=pick.choice((1.0, 0.95)),
        top_k=pick.choice((0, 40)),
        max_tokens=max_tokens,
        min_tokens=pick.choice((0, 0, 4)) if max_tokens is None or max_tokens >= 4 else 0,
        prompt_logprobs=pick.choice((None, None, 2)),
        logprobs=2,
        stop_token_ids=stops,
        presence_penalty=pick.choice((0.0, 0.5)),
        frequency_penalty=pick.choice((0.0, 0.5)),
        repetition_penalty=pick.choice((1.0, 1.3)),
        no_repeat_ngram_size=pick.choice((0, 0, 3)),
        dry_multiplier=pick.choice((0.0, 0.0, 2.0)),
        dry_allowed_length=1,
        logit_bias=pick.choice((None, {3: 2.5, 7: -100.0})),
    )
    return Request(
        f"kind{kind}",
        # Few prompts, so that different requests hold pages of equal content.
        tuple((position * 7 + kind % 3) % VOCABULARY for position in range(length)),
        params,
        seed=kind % 5,
        stop_token_ids=frozenset((eos, *stops)),
        eos_token_ids=(eos,),
        bad_words=pick.choice(((), ((5, 9), (11,)))),
        priority=pick.randrange(3),
    )
